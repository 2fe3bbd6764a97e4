package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/internal/size"
)

type replayFlags struct {
	device   int
	policy   string
	conf     string
	capacity string
	json     bool
	recorded bool // no --alloc-conf was given
}

func replayCommand() *cobra.Command {
	f := &replayFlags{}
	cmd := &cobra.Command{
		Use:   "replay FILE|-",
		Short: "Replay a memory snapshot under other allocator settings, or on another device",
		Long: `Replay asks an allocator for what a recorded job asked for, and says what that
would have reserved, up to the first request that fails. Under the recorded
settings it proves itself: "exact" says that every address, every change of a
segment and every block at the end are as recorded.`,
		Example: `  headroom replay snapshot.pickle
  headroom replay snapshot.pickle --alloc-conf expandable_segments:True --capacity 24GiB
  headroom replay snapshot.pickle --policy headroom --json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("replay needs one file, or - for standard input")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f.recorded = !cmd.Flags().Changed("alloc-conf")
			return f.run(args[0], cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fl := cmd.Flags()
	fl.IntVar(&f.device, "gpu", 0, "device whose trace to replay")
	fl.StringVar(&f.policy, "policy", "pytorch", "allocator: pytorch, headroom, or planned (headroom following a plan of the whole trace)")
	fl.StringVar(&f.conf, "alloc-conf", "", "`SETTINGS` as in PYTORCH_CUDA_ALLOC_CONF (default: the recorded ones)")
	fl.StringVar(&f.capacity, "capacity", "", "`SIZE` that the device has for the allocator (default: any)")
	fl.BoolVar(&f.json, "json", false, "print the result as JSON")
	return cmd
}

func (f *replayFlags) run(path string, stdin io.Reader, stdout, stderr io.Writer) error {
	o, err := f.options()
	if err != nil {
		return usageError{err}
	}
	s, err := readSnapshot(path, stdin, stderr)
	if err != nil {
		return err
	}
	r, err := inspect.Replay(s, o)
	if err != nil {
		return usageError{err}
	}
	if f.json {
		return json.NewEncoder(stdout).Encode(r)
	}
	return writeReplay(newPage(stdout), r)
}

func (f *replayFlags) options() (inspect.Options, error) {
	o := inspect.Options{Device: f.device, Policy: inspect.Policy(f.policy)}
	if !f.recorded {
		conf, err := inspect.ParseConf(f.conf)
		if err != nil {
			return o, err
		}
		o.Conf = &conf
	}
	if f.capacity != "" {
		n, err := size.Parse(f.capacity)
		if err != nil {
			return o, err
		}
		o.Capacity = n
	}
	return o, nil
}

func writeReplay(p *page, r *inspect.Result) error {
	p.line(plain, "replayed %d events on device %d: policy %s, settings %s", r.Events, r.Device, r.Policy, cmp.Or(r.AllocConf, "default"))
	rows := [][]string{
		{"peak live", bytesText(r.PeakLiveBytes)},
		{"peak requested", bytesText(r.PeakRequestedBytes)},
		{"peak reserved", bytesText(r.PeakReservedBytes)},
		{"retries", fmt.Sprint(r.Retries)},
		{"exact", fmt.Sprint(r.Exact)},
	}
	if r.Mismatch != "" {
		rows = append(rows, []string{"first difference", r.Mismatch})
	}
	if r.OOM != nil {
		rows = append(rows, []string{"out of memory", r.OOM.String()})
	}
	for _, n := range r.Notes {
		rows = append(rows, []string{"note", n})
	}
	p.table("lw", rows...)
	return p.err
}
