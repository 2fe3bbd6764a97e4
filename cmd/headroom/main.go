// Command headroom trains models inside a memory budget and explains where
// memory goes. It parses flags, calls one function, prints.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run executes one command line and returns its exit status: 0 done, 1
// failed, 2 wrong use.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	root := rootCommand(stdout, stderr)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		err = errors.New("interrupted before there was anything to save")
	}
	fmt.Fprintln(stderr, "headroom:", err)
	if errors.As(err, new(usageError)) {
		return 2
	}
	return 1
}

// usageError is an error that a different command line would mend.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func rootCommand(stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:           "headroom",
		Short:         "Train models inside a memory budget, and see where memory goes",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q: headroom --help lists the commands", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w: %s --help lists the flags", err, cmd.CommandPath())
	})
	root.AddCommand(trainCommand(), planCommand(), explainCommand(), replayCommand(), diffCommand(), checkCommand(), doctorCommand())
	return root
}

// noArgs refuses arguments that are no flags.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s takes no argument %q: %s --help lists the flags", cmd.CommandPath(), args[0], cmd.CommandPath())
	}
	return nil
}
