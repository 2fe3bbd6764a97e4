package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/internal/spill"
)

func lendCommand() *cobra.Command {
	var listen string
	var grace time.Duration
	var overMPI bool
	cmd := &cobra.Command{
		Use:   "lend SIZE",
		Short: "Lend memory of this machine to trainings on others",
		Long: `Lend lends so much of this machine's memory to who trains elsewhere with
--away SIZE,tcp://HOST:PORT, and says who has how much of it. A borrower's memory
is taken as it is written to, is nobody else's, and is this machine's again when the
borrower's run ends.

Ctrl-C calls all memory back: borrowers fetch what is theirs, for which they have
--grace, and go on without. A second Ctrl-C ends at once: steps that had values here
are done again.

Nothing is encrypted, and whoever reaches the address may borrow: it is for networks
that are trusted. It answers only to this machine unless --listen says otherwise.

With --mpi it is a rank of an MPI job that does not train, but lends to those that do
(--away SIZE,mpi), each of which has an equal part of what all such ranks lend. It ends
with them, and calls nothing back.`,
		Example: `  headroom lend 64GiB --listen 10.0.0.7:9402
  headroom train --device cuda:0,8GiB --away 64GiB,tcp://10.0.0.7:9402
  mpirun -n 2 headroom train --device cuda:0,8GiB --away 32GiB,mpi : -n 1 headroom lend 64GiB --mpi`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("lend needs one size, as in headroom lend 16GiB")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			bytes, err := size.Parse(args[0])
			if err == nil && bytes == 0 {
				err = fmt.Errorf("0 bytes are nothing to lend")
			}
			if err != nil {
				return usageError{err}
			}
			if !overMPI {
				return lend(cmd.Context(), bytes, listen, grace, cmd.OutOrStdout())
			}
			if cmd.Flags().Changed("listen") || cmd.Flags().Changed("grace") {
				return usagef("--mpi listens nowhere and calls nothing back: leave --listen and --grace out")
			}
			return lendMPI(cmd.Context(), bytes, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:9402", "`ADDRESS` to listen at; a port alone is on 127.0.0.1, and port 0 any that is free")
	cmd.Flags().DurationVar(&grace, "grace", 30*time.Second, "`TIME` that borrowers have to fetch what is theirs")
	cmd.Flags().BoolVar(&overMPI, "mpi", false, "lend to the ranks of this MPI job that train, until they end")
	return cmd
}

// lend lends until ctx ends and borrowers have fetched what is theirs.
func lend(ctx context.Context, bytes uint64, address string, grace time.Duration, w io.Writer) error {
	if err := available(bytes); err != nil {
		return err
	}
	address, err := addressOf("--listen", address)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return usagef("--listen %s: %w", address, err)
	}
	defer listener.Close()
	if err := fact(w, "lends", "%s at tcp://%s", size.Format(bytes), listener.Addr()); err != nil {
		return err
	}
	return spill.Lend(ctx, listener, spill.LendOptions{Bytes: bytes, Grace: grace, Notify: func(c spill.LoanChange) {
		what := "borrows"
		if c.Ended {
			what = "gave back"
		}
		text := fmt.Sprintf("%s %s %s", c.Borrower, what, size.Format(c.Bytes))
		if c.After > 0 {
			text += fmt.Sprintf(", %v after they were called back", c.After.Round(100*time.Microsecond))
		}
		if c.Err != nil {
			text += fmt.Sprintf(" (%v)", c.Err)
		}
		fact(w, "loan", "%s; %s of %s are lent", text, size.Format(c.LentNow), size.Format(bytes))
	}})
}

// lendMPI lends until the ranks of the job that train have ended. Those who end the job
// with a signal send it to all, and trainings then finish their step: so the first one
// changes nothing here.
func lendMPI(ctx context.Context, bytes uint64, out io.Writer) error {
	w, err := worldOf(os.Getenv)
	if err != nil {
		return usageError{err}
	}
	if w.size < 2 {
		return usagef("--mpi lends to ranks of the same MPI job: start it with them, as in mpirun -n 2 headroom train … : -n 1 headroom lend 64GiB --mpi")
	}
	if err := available(bytes); err != nil {
		return err
	}
	m, err := startMPI(ctx, w, bytes)
	if err != nil {
		return err
	}
	_, trains, _ := m.Place()
	if trains == 0 {
		return errors.Join(usagef("all %d ranks of this MPI job lend, and none trains", m.Size()), m.Close(true))
	}
	if err := fact(out, "lends", "%s as rank %d of %d, to %d that train", size.Format(bytes), m.Rank(), m.Size(), trains); err != nil {
		return err
	}
	err = m.Lend()
	return errors.Join(err, m.Close(err == nil))
}

// available refuses to lend what the machine has not.
func available(bytes uint64) error {
	host, err := device.OpenHost(device.HostOptions{})
	if err != nil {
		return err
	}
	defer host.Close()
	if has := host.Info().Capacity; bytes > has {
		return usagef("%s to lend: this machine has %s available", size.Format(bytes), size.Format(has))
	}
	return nil
}
