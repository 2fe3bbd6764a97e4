package main

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/internal/atomicfile"
	"github.com/headroom-go/headroom/internal/web"
	"github.com/headroom-go/headroom/trace"
)

// reportFlags are the command's flags and streams.
type reportFlags struct {
	out, svg, png string
	whatIf        []string
	given         func(flag string) bool
	stdin         io.Reader
	stderr        io.Writer
}

func reportCommand() *cobra.Command {
	f := &reportFlags{}
	cmd := &cobra.Command{
		Use:   "report FILE…|FOLDER",
		Short: "Write a page that shows memory snapshots in a browser",
		Long: `Report writes one page about a memory snapshot. It opens in any browser, needs no
network, and holds the verdict of explain, live memory over time by purpose and by
call site, every block with its stack and lifetime, the segments at any moment with
their holes and what pins them, a flame graph, steps, and what other settings would
have reserved.

Several snapshots, or a folder of them, are the ranks of a job: the page begins with
what explain says of all of them together, and a table of them from which each can be
chosen. Ranks beyond 64 MiB of page are in the table alone.

For files of more than some hundred MiB see headroom serve.`,
		Example: `  headroom report snapshot.pickle -o report.html
  headroom report rank0.pickle rank1.pickle -o ranks.html
  headroom report runs/pipe -o ranks.html
  headroom report snapshot.pickle --what-if max_split_size_mb:128 --what-if planned
  headroom report snapshot.pickle --svg memory.svg --png memory.png`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("report needs one or more files, a folder, or - for standard input")
			}
			return nil
		},
		RunE: promptly(func(cmd *cobra.Command, args []string) error {
			f.stdin, f.stderr = cmd.InOrStdin(), cmd.ErrOrStderr()
			return f.run(args)
		}),
	}
	fl := cmd.Flags()
	f.given = fl.Changed
	fl.StringVarP(&f.out, "output", "o", "report.html", "`FILE` to write the page to")
	fl.StringVar(&f.svg, "svg", "", "write a picture of the first file's live memory over time, for a ticket, to `FILE` and, without -o, no page")
	fl.StringVar(&f.png, "png", "", "the same as pixels")
	fl.StringArrayVar(&f.whatIf, "what-if", nil, "`SETTINGS` to replay: as in PYTORCH_CUDA_ALLOC_CONF, or headroom, planned or none; may be given again (default: expandable segments the other way, and headroom)")
	return cmd
}

func (f *reportFlags) run(files []string) error {
	if ranks, err := ranksIn(files); err != nil {
		return err
	} else if ranks != nil {
		files = ranks
	}
	try, err := f.settings()
	if err != nil {
		return usageError{err}
	}
	outputs, err := f.outputs(files)
	if err != nil {
		return err
	}
	var records [][]*web.Record // by file
	var first *trace.Snapshot
	for _, path := range files {
		s, err := readSnapshot(path, f.stdin, f.stderr)
		if err != nil {
			return amongRanks(files, err)
		}
		if first == nil {
			first = s
		}
		these, err := web.Records(nameOf(path), s)
		if err != nil {
			return naming(path, err)
		}
		records = append(records, these)
	}
	for _, o := range outputs {
		err := atomicfile.Write(o.path, func(w io.Writer) error { return o.write(w, first, records, try) })
		if err != nil {
			return err
		}
		fact(f.stderr, "wrote", "%s", o.path)
	}
	return nil
}

// nameOf is how a page calls a file.
func nameOf(path string) string {
	if path == standardInput {
		return "standard input"
	}
	return filepath.Base(path)
}

// settings reads --what-if; nil stands for the default.
func (f *reportFlags) settings() ([]web.Setting, error) {
	if !f.given("what-if") {
		return nil, nil
	}
	try := []web.Setting{}
	for _, text := range f.whatIf {
		if strings.TrimSpace(text) == "none" {
			continue
		}
		s, err := web.ParseSetting(text)
		if err != nil {
			return nil, fmt.Errorf("--what-if %s: %w", text, err)
		}
		try = append(try, s)
	}
	return try, nil
}

// output is a file to write.
type output struct {
	path  string
	write func(w io.Writer, s *trace.Snapshot, records [][]*web.Record, try []web.Setting) error
}

// outputs lists the files to write, none of which may be an input or another
// output.
func (f *reportFlags) outputs(files []string) ([]output, error) {
	var out []output
	if f.given("output") || f.svg == "" && f.png == "" {
		out = append(out, output{f.out, func(w io.Writer, _ *trace.Snapshot, records [][]*web.Record, try []web.Setting) error {
			return web.WriteReport(w, records, web.ReportOptions{Version: version(), Try: try})
		}})
	}
	if f.svg != "" {
		out = append(out, output{f.svg, func(w io.Writer, s *trace.Snapshot, records [][]*web.Record, _ []web.Setting) error {
			return inspect.WriteSVG(w, s, records[0][0].Device())
		}})
	}
	if f.png != "" {
		out = append(out, output{f.png, func(w io.Writer, _ *trace.Snapshot, records [][]*web.Record, _ []web.Setting) error {
			return web.WritePNG(w, records[0][0])
		}})
	}
	for i, o := range out {
		for _, other := range out[:i] {
			if sameFile(o.path, other.path) {
				return nil, usagef("two results would be written to %s: name another file", o.path)
			}
		}
		for _, in := range files {
			if sameFile(o.path, in) {
				return nil, usagef("%s is an input, which would be written over: name another file", o.path)
			}
		}
	}
	return out, nil
}
