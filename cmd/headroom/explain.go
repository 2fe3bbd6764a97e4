package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
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
			r, err := explain(args, cmd.InOrStdin(), x)
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

// explain reads what the arguments name.
func explain(args []string, stdin io.Reader, x exports) (*inspect.Report, error) {
	var in io.Reader
	switch f, err := os.Open(args[0]); {
	case len(args) == 1 && args[0] == "-":
		in = stdin
	case len(args) == 1 && err == nil:
		defer f.Close()
		in = f
	default:
		if err == nil {
			f.Close()
		}
		return explainText(strings.Join(args, " "), x)
	}
	return explainInput(in, x)
}

// explainInput tells a text from a snapshot by its first bytes.
func explainInput(in io.Reader, x exports) (*inspect.Report, error) {
	head := make([]byte, 4096)
	n, err := io.ReadFull(in, head)
	if err != nil && err != io.ErrUnexpectedEOF && err != io.EOF {
		return nil, err
	}
	all := io.MultiReader(bytes.NewReader(head[:n]), in)
	if inspect.IsErrorText(head[:n]) {
		text, err := inspect.ReadText(all)
		if err != nil {
			return nil, err
		}
		return explainText(text, x)
	}
	s, err := trace.Read(all)
	if err != nil {
		return nil, err
	}
	r, err := inspect.ExplainSnapshot(s)
	if err != nil {
		return nil, err
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
		err = writeReport(w, r)
	}
	if err == nil && slices.Contains(failOn, string(r.Verdict)) {
		err = fmt.Errorf("the verdict is %s, which --fail-on names", r.Verdict)
	}
	return err
}

// writeReport prints a report for people. Causes of one kind stand together.
func writeReport(w io.Writer, r *inspect.Report) error {
	fmt.Fprintf(w, "%s  %s\n", r.Verdict, r.Summary)
	kind := ""
	for _, c := range r.Causes {
		title, what := "where the memory is", c.What
		if many := causeTitles[c.What]; many != "" {
			title, what = many, ""
		}
		if title != kind {
			fmt.Fprintf(w, "\n%s\n", title)
			kind = title
		}
		fmt.Fprintf(w, "  %10s  %s\n", size.Format(c.Bytes), strings.TrimSpace(what+"  "+c.Where))
	}
	writeList(w, "what to do", r.Actions)
	writeList(w, "what will not help", r.Unhelpful)
	_, err := fmt.Fprintln(w)
	return err
}

// causeTitles are the titles of causes that come in lists.
var causeTitles = map[string]string{"call site": "by call site", "grows": "what grows", "cache left over": "cache left over at the end"}

func writeList(w io.Writer, title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s\n", title)
	for i, l := range lines {
		fmt.Fprintf(w, "  %d. %s\n", i+1, l)
	}
}
