package main

import (
	"bufio"
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
	var e explainer
	e.failOn = verdictsToFailOn()
	cmd := &cobra.Command{
		Use:   "explain FILE…|FOLDER|TEXT|-",
		Short: "Say why memory ran out, from an error text or a memory snapshot",
		Long: `Explain reads an out-of-memory error (the text itself, a file with it, or
standard input for -) or a memory snapshot of PyTorch or Headroom (a pickle, plain
or compressed; nothing in it is executed), or a memory profile of JAX's, and says what the verdict is, with its
arithmetic, what would help and what would not.

Of several snapshots, or a folder of them, it explains the ranks of a job together: a
table of them, in what they differ, which of them ran out, why that one, and what
would have evened it out. The files of a folder are taken in the order of the numbers
in their names; one that is alone there is explained by itself.`,
		Example: `  headroom explain snapshot.pickle
  headroom explain 'CUDA out of memory. Tried to allocate 2.00 GiB. ...'
  python train.py 2>&1 | tee train.log; headroom explain train.log
  headroom explain rank0.pickle rank1.pickle rank2.pickle rank3.pickle`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("explain needs a file, a text, or - for standard input")
			}
			return nil
		},
		RunE: promptly(func(cmd *cobra.Command, args []string) error {
			e.stdin, e.stderr = cmd.InOrStdin(), cmd.ErrOrStderr()
			ranks, err := ranksIn(args)
			switch {
			case err != nil:
				return err
			case len(ranks) > 1:
				return e.explainJob(cmd.OutOrStdout(), ranks)
			case len(ranks) == 1:
				args = ranks
			}
			r, err := e.explain(args)
			if err != nil {
				return err
			}
			return e.reportOn(cmd.OutOrStdout(), r)
		}),
	}
	fl := cmd.Flags()
	fl.BoolVar(&e.json, "json", false, "print the result as JSON")
	fl.Var(&e.failOn, "fail-on", "exit with 1 for these VERDICTs, such as LEAK,FRAGMENTATION, or any but HEALTHY for \"any\"")
	e.exports.add(fl)
	e.gpu.add(fl)
	return cmd
}

// verdictsToFailOn are the verdicts, of which only HEALTHY is none that "any"
// stands for.
func verdictsToFailOn() failOn {
	f := failOn{kind: "verdict"}
	for _, v := range inspect.Verdicts() {
		f.known = append(f.known, string(v.Verdict))
		if v.Verdict != inspect.Healthy {
			f.any = append(f.any, string(v.Verdict))
		}
	}
	return f
}

// explainer is the command's flags and streams.
type explainer struct {
	exports
	gpu    gpuFlag
	json   bool
	failOn failOn
	stdin  io.Reader
	stderr io.Writer
}

// explain reads what the arguments name: a file or standard input or, if there
// is no such file, the text that they are.
func (e *explainer) explain(args []string) (*inspect.Report, error) {
	path := args[0]
	if len(args) > 1 {
		r, err := e.explainText(strings.Join(args, " "))
		return r, orNoFile(path, err)
	}
	if err := e.refuse(statInput(path, e.stdin)); err != nil {
		return nil, err
	}
	in, err := openInput(path, e.stdin)
	var noPath *fs.PathError
	switch {
	case err == nil:
		defer in.Close()
		return e.explainInput(path, in)
	case !errors.As(err, &noPath) || errors.Is(err, fs.ErrPermission):
		return nil, err
	}
	r, err := e.explainText(path)
	return r, orNoFile(path, err)
}

// orNoFile is the error of a text that may have been meant as a file's name.
func orNoFile(path string, err error) error {
	if err == nil || path == "" || strings.ContainsAny(path, " \n") {
		return err
	}
	return fmt.Errorf("there is no file %s, and as a text it says nothing: %w", path, err)
}

// headSize is how much of an input is looked at to tell what it is: enough for
// a compressed one to show its first bytes.
const headSize = 256 << 10

// explainInput tells a text from a snapshot by its first bytes.
func (e *explainer) explainInput(path string, in io.Reader) (*inspect.Report, error) {
	all := bufio.NewReaderSize(in, headSize)
	head, err := all.Peek(headSize)
	if err != nil && err != io.EOF {
		return nil, naming(path, err)
	}
	if inspect.IsErrorText(plainHead(head)) {
		r, err := e.explainLog(all)
		if err != nil {
			return nil, naming(path, err)
		}
		return r, nil
	}
	s, err := readShown(path, all, statInput(path, e.stdin), e.stderr)
	if err != nil {
		return nil, err
	}
	return e.explainSnapshot(path, s)
}

// plainHead gives the first bytes of an input without their compression, as
// far as they go.
func plainHead(head []byte) []byte {
	const enough = 4 << 10
	plain, closeAll, err := trace.Decompress(bytes.NewReader(head))
	defer closeAll()
	if err != nil {
		return head
	}
	out := make([]byte, enough)
	n, _ := io.ReadFull(plain, out)
	return out[:n]
}

// explainLog explains a text, plain or compressed, to its end or as far as it
// goes.
func (e *explainer) explainLog(in io.Reader) (*inspect.Report, error) {
	plain, closeAll, err := trace.Decompress(in)
	defer closeAll()
	if err != nil {
		return nil, err
	}
	text, err := inspect.ReadText(plain)
	if err != nil && text == "" {
		return nil, err
	}
	if err != nil {
		fmt.Fprintf(e.stderr, "headroom: the input is damaged or cut after %d bytes of text (%v): only what stands before is looked at\n", len(text), err)
	}
	return e.explainText(text)
}

func (e *explainer) explainSnapshot(path string, s *trace.Snapshot) (*inspect.Report, error) {
	h, err := e.gpu.choose(s)
	if err != nil {
		return nil, naming(path, err)
	}
	return h.Explain(), e.write(s, h.Device())
}

// explainText explains a text, of which nothing can be exported.
func (e *explainer) explainText(text string) (*inspect.Report, error) {
	if e.exports != (exports{}) {
		return nil, usagef("--pprof, --perfetto and --svg need a memory snapshot, and the input is a text")
	}
	return inspect.ExplainText(text)
}

func (e *explainer) reportOn(w io.Writer, r *inspect.Report) error {
	var err error
	if e.json {
		err = json.NewEncoder(w).Encode(r)
	} else {
		p := newPage(w)
		e.gpu.say(p, "")
		err = writeReport(p, r)
	}
	return e.failing(r.Verdict, err)
}

// failing is err or, without one, that --fail-on names the verdict.
func (e *explainer) failing(v inspect.Verdict, err error) error {
	if err == nil && e.failOn.names(string(v)) {
		err = fmt.Errorf("the verdict is %s, which --fail-on names", v)
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
