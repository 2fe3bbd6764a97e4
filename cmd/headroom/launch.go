package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
)

// launchFlags are the flags of launch.
type launchFlags struct {
	n        int
	address  string
	restarts int
}

func launchCommand() *cobra.Command {
	f := &launchFlags{}
	cmd := &cobra.Command{
		Use:   "launch -n N -- COMMAND",
		Short: "Run a command of headroom as several processes of one job",
		Long: `Launch runs a command of headroom as N processes on this machine, which are the
ranks of one job: each finds its rank and where the others are in its environment
(RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, as
torchrun sets them). What they print comes with their rank before it. The first
one that fails ends all others, and signals are passed on. With --restarts the
same command is then started again: with train --resume=auto it goes on from its
last checkpoint.

On several machines torchrun, mpirun or srun start the same command.`,
		Example: `  headroom launch -n 2 -- train --device host:128MiB --out runs/two
  headroom launch -n 2 -- train --device host:128MiB --resume --out runs/two
  headroom launch -n 2 --restarts 3 -- train --device host:128MiB --save-every 100 --resume=auto --out runs/two`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || cmd.ArgsLenAtDash() != 0 {
				return usagef("say what to run behind --, as in headroom launch -n 2 -- train")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.n < 1 || f.restarts < 0 {
				return usagef("-n %d --restarts %d: there must be one process or more, and as many restarts or none", f.n, f.restarts)
			}
			if f.restarts > 0 && !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--resume") }) {
				return usagef("--restarts %d: what is started again must go on where it was: add --resume=auto (and --save-every) to the command", f.restarts)
			}
			outlive()
			program, err := os.Executable()
			if err != nil {
				return err
			}
			return f.launchAgain(cmd.Context(), program, args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().IntVarP(&f.n, "processes", "n", 2, "number of processes")
	cmd.Flags().IntVar(&f.restarts, "restarts", 0, "`TIMES` to start the job again after a failure")
	cmd.Flags().StringVar(&f.address, "address", "", "`HOST:PORT` where rank 0 meets the others (default: a free port of this machine)")
	return cmd
}

// endPatience is how long processes that were told to end may take: they finish
// their step and save.
const endPatience = time.Minute

// launchAgain is launch, again and again while it fails, as often as it may. What
// was interrupted is not started again.
func (f *launchFlags) launchAgain(ctx context.Context, program string, args []string, stdout, stderr io.Writer) error {
	for left := f.restarts; ; left-- {
		err := f.launch(ctx, program, args, stdout, stderr)
		if err == nil || left == 0 || ctx.Err() != nil {
			return err
		}
		fact(stderr, "launch", "%v; it is started again, as it may be %d times more", err, left)
	}
}

// launch runs program with args as all ranks of a job, and waits for them. Its
// error names the first rank that failed.
func (f *launchFlags) launch(ctx context.Context, program string, args []string, stdout, stderr io.Writer) error {
	env, err := f.environment()
	if err != nil {
		return err
	}
	ctx, failed := context.WithCancelCause(ctx)
	defer failed(nil)
	var writing sync.Mutex
	var running sync.WaitGroup
	for rank := range f.n {
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Env = append(append(os.Environ(), env...), "RANK="+strconv.Itoa(rank), "LOCAL_RANK="+strconv.Itoa(rank))
		cmd.Cancel = func() error { return cmd.Process.Signal(endSignal) }
		cmd.WaitDelay = endPatience
		apart(cmd)
		prefix := fmt.Sprintf("[%d] ", rank)
		out, words := &prefixed{to: &writing, w: stdout, prefix: prefix}, &prefixed{to: &writing, w: stderr, prefix: prefix}
		cmd.Stdout, cmd.Stderr = out, words
		if err := cmd.Start(); err != nil {
			failed(fmt.Errorf("rank %d did not start: %w", rank, err))
			break
		}
		running.Go(func() {
			err := cmd.Wait()
			out.end()
			words.end()
			if err != nil {
				failed(fmt.Errorf("rank %d was the first to fail: %w", rank, err))
			}
		})
	}
	running.Wait()
	if ctx.Err() == nil {
		return nil
	}
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return errInterrupted
}

// environment is what all ranks are told.
func (f *launchFlags) environment() ([]string, error) {
	address := f.address
	if address == "" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		address = l.Addr().String()
		if err := l.Close(); err != nil {
			return nil, err
		}
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, usagef("--address %s: %w", address, err)
	}
	n := strconv.Itoa(f.n)
	return []string{"MASTER_ADDR=" + host, "MASTER_PORT=" + port, "WORLD_SIZE=" + n, "LOCAL_WORLD_SIZE=" + n}, nil
}

// prefixed writes the lines of one process with its rank before them, whole
// ones, so that those of several don't mix. The process goes on where they can't be written.
type prefixed struct {
	to     *sync.Mutex
	w      io.Writer
	prefix string
	rest   []byte
}

func (p *prefixed) Write(b []byte) (int, error) {
	p.rest = append(p.rest, b...)
	for {
		i := bytes.IndexByte(p.rest, '\n')
		if i < 0 {
			return len(b), nil
		}
		p.line(p.rest[:i+1])
		p.rest = p.rest[i+1:]
	}
}

func (p *prefixed) line(text []byte) {
	p.to.Lock()
	defer p.to.Unlock()
	fmt.Fprintf(p.w, "%s%s", p.prefix, text)
}

// end writes a line that was not ended.
func (p *prefixed) end() {
	if len(p.rest) > 0 {
		p.line(append(p.rest, '\n'))
		p.rest = nil
	}
}
