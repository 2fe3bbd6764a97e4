package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/trace"
)

func explainCommand() *cobra.Command {
	var asJSON bool
	var failOn []string
	var x exports
	cmd := &cobra.Command{
		Use:   "explain FILE|TEXT|-",
		Short: "Say why memory ran out, from an error text or a memory snapshot",
		Long: `Explain reads an out-of-memory error (the text itself, a file with it, or
standard input for -) or a memory snapshot of PyTorch or Headroom (a pickle, plain
or compressed; nothing in it is executed), and says what the verdict is, with its
arithmetic, what would help and what would not.`,
		Example: `  headroom explain snapshot.pickle
  headroom explain 'CUDA out of memory. Tried to allocate 2.00 GiB. ...'
  python train.py 2>&1 | headroom explain -`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("explain needs a file, a text, or - for standard input")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := explain(args, cmd.InOrStdin(), cmd.ErrOrStderr(), x)
			if err != nil {
				return err
			}
			return reportOn(cmd.OutOrStdout(), r, asJSON, failOn)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	cmd.Flags().StringSliceVar(&failOn, "fail-on", nil, "exit with 1 for these `VERDICT`s, such as LEAK,FRAGMENTATION")
	cmd.Flags().StringVar(&x.pprof, "pprof", "", "of a snapshot: write what is live as a profile for go tool pprof to `FILE`")
	cmd.Flags().StringVar(&x.perfetto, "perfetto", "", "of a snapshot: write the record as a trace for ui.perfetto.dev to `FILE`")
	return cmd
}

// explain reads what the arguments name: a file or standard input or, if there
// is no such file, the text that they are.
func explain(args []string, stdin io.Reader, stderr io.Writer, x exports) (*inspect.Report, error) {
	if len(args) > 1 {
		return explainText(strings.Join(args, " "), x)
	}
	path := args[0]
	in, err := openInput(path, stdin)
	var noPath *fs.PathError
	switch {
	case err == nil:
		defer in.Close()
		return explainInput(path, in, stderr, x)
	case !errors.As(err, &noPath) || errors.Is(err, fs.ErrPermission):
		return nil, err
	}
	r, err := explainText(path, x)
	if err != nil && path != "" && !strings.ContainsAny(path, " \n") {
		err = fmt.Errorf("there is no file %s, and as a text it says nothing: %w", path, err)
	}
	return r, err
}

// explainInput tells a text from a snapshot by its first bytes.
func explainInput(path string, in io.Reader, stderr io.Writer, x exports) (*inspect.Report, error) {
	head := make([]byte, 4096)
	n, err := io.ReadFull(in, head)
	if err != nil && err != io.ErrUnexpectedEOF && err != io.EOF {
		return nil, naming(path, err)
	}
	all := io.MultiReader(bytes.NewReader(head[:n]), in)
	if inspect.IsErrorText(head[:n]) {
		text, err := inspect.ReadText(all)
		if err != nil {
			return nil, naming(path, err)
		}
		r, err := explainText(text, x)
		if err != nil {
			err = naming(path, err)
		}
		return r, err
	}
	s, err := trace.Read(all)
	if err != nil {
		return nil, naming(path, err)
	}
	warnOfCut(path, s, stderr)
	r, err := inspect.ExplainSnapshot(s)
	if err != nil {
		return nil, naming(path, err)
	}
	return r, x.write(s)
}

// explainText explains a text, of which nothing can be exported.
func explainText(text string, x exports) (*inspect.Report, error) {
	if x != (exports{}) {
		return nil, usagef("--pprof and --perfetto need a memory snapshot, and the input is a text")
	}
	return inspect.ExplainText(text)
}

func reportOn(w io.Writer, r *inspect.Report, asJSON bool, failOn []string) error {
	var err error
	if asJSON {
		err = json.NewEncoder(w).Encode(r)
	} else {
		err = writeReport(newPage(w), r)
	}
	if err == nil && slices.Contains(failOn, string(r.Verdict)) {
		err = fmt.Errorf("the verdict is %s, which --fail-on names", r.Verdict)
	}
	return err
}

// writeReport prints a report for people. Causes of one kind stand together.
func writeReport(p *page, r *inspect.Report) error {
	s := bad
	if r.Verdict == inspect.Healthy {
		s = good
	}
	p.line(s, "%s  %s", r.Verdict, r.Summary)
	for causes := r.Causes; len(causes) > 0; {
		title := titleOf(causes[0])
		n := slices.IndexFunc(causes, func(c inspect.Cause) bool { return titleOf(c) != title })
		if n < 0 {
			n = len(causes)
		}
		writeCauses(p, title, causes[:n])
		causes = causes[n:]
	}
	writeList(p, "what to do", r.Actions)
	writeList(p, "what will not help", r.Unhelpful)
	p.line(plain, "")
	return p.err
}

// causeTitles are the titles of causes that come in lists.
var causeTitles = map[string]string{"call site": "by call site", "grows": "what grows", "cache left over": "cache left over at the end"}

// titleOf is the title of the section in which a cause stands.
func titleOf(c inspect.Cause) string {
	switch c.What {
	case "pending", "rounding", "free segments", "holes", "largest hole":
		return "what is reserved beside that"
	}
	return cmp.Or(causeTitles[c.What], "where the memory is")
}

func writeCauses(p *page, title string, causes []inspect.Cause) {
	p.title(title)
	var rows [][]string
	for _, c := range causes {
		text := c.Where
		if causeTitles[c.What] == "" {
			text = strings.TrimSpace(c.What + "  " + c.Where)
		}
		rows = append(rows, []string{"", size.Format(c.Bytes), text})
	}
	p.table("lrw", rows...)
}

func writeList(p *page, title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	p.title(title)
	var rows [][]string
	for i, l := range lines {
		rows = append(rows, []string{"", fmt.Sprintf("%d.", i+1), l})
	}
	p.table("lrw", rows...)
}
