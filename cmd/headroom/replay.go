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
	gpu      gpuFlag
	policy   string
	conf     string
	capacity string
	json     bool
	failOn   failOn
	given    func(flag string) bool
}

func replayCommand() *cobra.Command {
	f := &replayFlags{failOn: failOn{kind: "result", known: []string{resultOOM}, any: []string{resultOOM}}}
	cmd := &cobra.Command{
		Use:   "replay FILE|-",
		Short: "Replay a memory snapshot under other allocator settings, or on another device",
		Long: `Replay asks an allocator for what a recorded job asked for, and says what that
would have reserved, up to the first request that fails. Under the recorded
settings it proves itself: "exact" says that every address, every change of a
segment and every block at the end are as recorded.

Under other settings the addresses that the driver would give are not known, and
which segments a request fits depends on them a little: take the figures as right
within about 1 %.`,
		Example: `  headroom replay snapshot.pickle
  headroom replay snapshot.pickle --alloc-conf expandable_segments:True --capacity 24GiB
  headroom replay snapshot.pickle --capacity 16GiB --fail-on oom
  headroom replay snapshot.pickle --policy headroom --json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("replay needs one file, or - for standard input")
			}
			return nil
		},
		RunE: promptly(func(cmd *cobra.Command, args []string) error {
			return f.run(args[0], cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		}),
	}
	fl := cmd.Flags()
	f.given = fl.Changed
	f.gpu.add(fl)
	fl.StringVar(&f.policy, "policy", "pytorch", "allocator: pytorch, headroom, or planned (headroom following a plan of the whole trace)")
	fl.StringVar(&f.conf, "alloc-conf", "", "`SETTINGS` as in PYTORCH_CUDA_ALLOC_CONF (default: the recorded ones)")
	fl.StringVar(&f.capacity, "capacity", "", "`SIZE` that the device has for the allocator (default: any)")
	fl.Var(&f.failOn, "fail-on", "exit with 1 for this RESULT: oom, a request that did not fit")
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
	h, err := f.gpu.choose(s)
	if err != nil {
		return naming(path, err)
	}
	r, err := h.Replay(o)
	if err != nil {
		return usageError{err}
	}
	return f.resultOn(stdout, r)
}

// resultOOM is a result for --fail-on: a request failed.
const resultOOM = "oom"

func (f *replayFlags) resultOn(w io.Writer, r *inspect.Result) error {
	var err error
	if f.json {
		err = json.NewEncoder(w).Encode(r)
	} else {
		p := newPage(w)
		f.gpu.say(p, "")
		err = writeReplay(p, r)
	}
	if err == nil && r.OOM != nil && f.failOn.names(resultOOM) {
		err = fmt.Errorf("a request did not fit, which --fail-on names: %v", r.OOM)
	}
	return err
}

func (f *replayFlags) options() (inspect.Options, error) {
	o := inspect.Options{Policy: inspect.Policy(f.policy)}
	if f.given("alloc-conf") {
		if o.Policy != inspect.PyTorch {
			return o, fmt.Errorf("--alloc-conf holds settings of PyTorch's allocator, which --policy %s is not: leave one of them out", f.policy)
		}
		conf, err := inspect.ParseConf(f.conf)
		if err != nil {
			return o, err
		}
		o.Conf = &conf
	}
	if f.given("capacity") {
		n, err := size.Parse(f.capacity)
		if err != nil {
			return o, fmt.Errorf("--capacity: %w", err)
		}
		if n == 0 {
			return o, fmt.Errorf("--capacity %s leaves no memory: leave the flag out for any", f.capacity)
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
