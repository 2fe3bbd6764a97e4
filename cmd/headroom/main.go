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
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run executes one command line and returns its exit status: 0 done, 1
// failed (also where a step does not fit), 2 wrong use.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, forget := untilHangup()
	defer forget()
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	root := rootCommand(stdout, stderr)
	root.SetArgs(args)
	err := attempt(func() error { return root.ExecuteContext(ctx) })
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

// untilHangup gives a context that ends when the terminal is gone, until forget is called.
// Shells send that signal once more, so further ones change nothing. Under nohup there
// is none.
func untilHangup() (ctx context.Context, forget func()) {
	ctx, end := context.WithCancel(context.Background())
	gone := make(chan os.Signal, 1)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(gone, syscall.SIGHUP)
	}
	go func() {
		select {
		case <-gone:
			end()
		case <-ctx.Done():
		}
	}()
	return ctx, func() { signal.Stop(gone); end() }
}

// outlive lets the program go on when nobody reads any more what it prints: what it
// computes is worth more.
func outlive() { signal.Ignore(syscall.SIGPIPE) }

// attempt calls f and makes an error of a panic, which is a mistake of ours.
func attempt(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("a mistake of this program, not of yours: %v\nPlease report it with the command line, the input if you can share it, and this:\n%s", v, debug.Stack())
		}
	}()
	return f()
}

// errInterrupted is the error of a command that a signal ended.
var errInterrupted = errors.New("interrupted")

// promptly lets a command that only reads and prints end at the first signal,
// also while it waits for its input: what it is doing then is left to itself,
// since the program ends.
func promptly(run func(cmd *cobra.Command, args []string) error) func(cmd *cobra.Command, args []string) error {
	return func(cmd *cobra.Command, args []string) error {
		defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
		done := make(chan error, 1)
		go func() { done <- attempt(func() error { return run(cmd, args) }) }()
		select {
		case err := <-done:
			return err
		case <-cmd.Context().Done():
			return errInterrupted
		}
	}
}

// usageError is an error that a different command line would mend.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func rootCommand(stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:           "headroom",
		Version:       version(),
		Short:         "Train models inside a memory budget, and see where memory goes",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(root *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(root, args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w: %s --help lists the flags", plainFlagError(err), cmd.CommandPath())
	})
	root.SetUsageTemplate(usageTemplate(columnsOf(stdout)))
	root.SetHelpCommand(helpCommand())
	root.AddCommand(trainCommand(), launchCommand(), lendCommand(), generateCommand(), planCommand(), explainCommand(), replayCommand(), diffCommand(), checkCommand(), reportCommand(), serveCommand(), watchCommand(), doctorCommand())
	return root
}

// version is the module's version as the build noted it.
func version() string {
	if i, ok := debug.ReadBuildInfo(); ok && i.Main.Version != "" {
		return i.Main.Version
	}
	return "unknown"
}

// plainFlagError says of a flag's value what it should be, where the flag's
// parser speaks of itself.
func plainFlagError(err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	name := "--" + invalid.GetFlag().Name
	switch kind := invalid.GetFlag().Value.Type(); kind {
	case "int", "uint", "uint64":
		return fmt.Errorf("%s %q is no whole number", name, invalid.GetValue())
	case "float64":
		return fmt.Errorf("%s %q is no number", name, invalid.GetValue())
	}
	return fmt.Errorf("%s: %w", name, invalid.Unwrap())
}

// helpCommand is cobra's, but that it fails for a command that there is not.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Say what a command does and which flags it takes",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return unknownCommand(cmd.Root(), strings.Join(args, " "))
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}

// usageTemplate is cobra's, with what flags do wrapped to so many columns (0: any).
func usageTemplate(columns int) string {
	return strings.ReplaceAll(new(cobra.Command).UsageTemplate(), "FlagUsages ", fmt.Sprintf("FlagUsagesWrapped %d ", columns))
}

// unknownCommand names the commands that are spelled nearly so.
func unknownCommand(root *cobra.Command, name string) error {
	root.SuggestionsMinimumDistance = 2
	near := ""
	if names := root.SuggestionsFor(name); len(names) > 0 {
		near = " did you mean " + strings.Join(names, " or ") + "?"
	}
	return usagef("unknown command %q:%s headroom --help lists the commands", name, near)
}

// noArgs refuses arguments that are no flags.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s takes no argument %q: %s --help lists the flags", cmd.CommandPath(), args[0], cmd.CommandPath())
	}
	return nil
}
