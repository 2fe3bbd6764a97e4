package inspect

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/headroom-go/headroom/internal/size"
)

// textCase is a message of testdata/texts with what is to be found in it:
//
//	== name
//	verdict TIGHT
//	request 80MiB
//	…
//	--
//	the text
type textCase struct {
	name string
	want [][2]string // a field of the report and its value
	text string
}

func textCases(t testing.TB) []textCase {
	t.Helper()
	files, err := filepath.Glob("testdata/texts/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	var cases []textCase
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for story := range strings.SplitSeq("\n"+string(b), "\n== ") {
			head, text, ok := strings.Cut(story, "\n--\n")
			if !ok {
				continue
			}
			name, fields, _ := strings.Cut(head, "\n")
			c := textCase{name: filepath.Base(file) + "/" + name, text: strings.TrimRight(text, "\n")}
			for line := range strings.SplitSeq(fields, "\n") {
				field, value, _ := strings.Cut(line, " ")
				c.want = append(c.want, [2]string{field, value})
			}
			cases = append(cases, c)
		}
	}
	if len(cases) < 90 {
		t.Fatalf("only %d cases: the test reads the wrong files", len(cases))
	}
	return cases
}

// field is what a report says for one word of a case; figures are written so
// that their last digits, which depend on rounding, do not show.
func field(r *Report, name string) string {
	figures := map[string]*uint64{
		"request": r.RequestBytes, "total": r.TotalBytes, "free": r.FreeBytes, "allocated": r.AllocatedBytes,
		"reserved": r.ReservedBytes, "cached": r.CachedBytes, "outside": r.OutsideBytes, "limit": r.LimitBytes,
	}
	p, ok := figures[name]
	switch {
	case name == "verdict":
		return string(r.Verdict)
	case name == "framework":
		return r.Framework
	case name == "device":
		return r.Device
	case name == "summary":
		return r.Summary
	case !ok:
		return "there is no field " + name
	case p == nil:
		return "none"
	}
	return size.Format(*p)
}

func TestExplainText(t *testing.T) {
	for _, c := range textCases(t) {
		t.Run(c.name, func(t *testing.T) {
			r, err := ExplainText(c.text)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range c.want {
				value := want[1]
				if n, err := size.Parse(value); err == nil {
					value = size.Format(n)
				}
				if got := field(r, want[0]); got != value {
					t.Errorf("%s is %s, want %s\n%+v", want[0], got, value, r)
				}
			}
			if !IsErrorText([]byte(c.text)) {
				t.Error("IsErrorText is false")
			}
		})
	}
}

// TestTablesAreUsed finds rows of the tables that no case of testdata reaches:
// a wording or a phrase without proof, a sentence that can never be said.
func TestTablesAreUsed(t *testing.T) {
	said := map[string]bool{}
	for _, c := range textCases(t) {
		m := bestMessage(newLayout(c.text).streams(false))
		if m == nil {
			t.Fatalf("%s: no message", c.name)
		}
		said[fmt.Sprint("wording ", m.rank)] = true
		for _, p := range m.wording.phrases {
			if p.re.MatchString(m.text) {
				said[fmt.Sprint("phrase ", m.wording.framework, p.pattern)] = true
			}
		}
		v := m.wording.judge(m)
		used := func(table []sentence, first bool) {
			for _, s := range table {
				if _, ok := m.expand(s.text); ok && s.holds(v, m) {
					said[s.when+string(v)+s.text] = true
					if first {
						return
					}
				}
			}
		}
		used(summaries, true)
		used(actions, false)
		used(unhelpful, false)
	}
	for rank, w := range wordings() {
		if !said[fmt.Sprint("wording ", rank)] {
			t.Errorf("no case has wording %d of %s with %q", rank, w.framework, w.keys)
		}
		for _, p := range w.phrases {
			if !said[fmt.Sprint("phrase ", w.framework, p.pattern)] {
				t.Errorf("no case of %s has %s as %q", w.framework, p.figure, p.pattern)
			}
		}
	}
	for _, table := range [][]sentence{summaries, actions, unhelpful} {
		for _, s := range table {
			if !said[s.when+string(s.verdict)+s.text] {
				t.Errorf("no case says, for %s when %q: %s", s.verdict, s.when, s.text)
			}
		}
	}
}

// TestEveryVerdictHasActions looks for what a report relies on. IMBALANCE is no verdict
// of one rank.
func TestEveryVerdictHasActions(t *testing.T) {
	for _, v := range Verdicts() {
		if v.Verdict != Healthy && v.Verdict != Imbalance && !slices.ContainsFunc(actions, func(s sentence) bool { return s.verdict == v.Verdict }) {
			t.Errorf("%s has no action", v.Verdict)
		}
	}
}

// TestServersAreNotTrained: what PyTorch's error says within a server is answered by
// the server's settings.
func TestServersAreNotTrained(t *testing.T) {
	const message = "CUDA out of memory. Tried to allocate 900.00 MiB. GPU 0 has a total capacity of 40.00 GiB of which 500.00 MiB is free. " +
		"Of the allocated memory 38.00 GiB is allocated by PyTorch, and 130.00 MiB is reserved by PyTorch but unallocated."
	for before, want := range map[string]string{
		"":                             "gradient accumulation",
		"gpu_memory_utilization: 0.4 ": "gradient accumulation",
		"vllm/v1/engine: ":             "--gpu-memory-utilization",
		"sglang/srt/model: ":           "--mem-fraction-static",
	} {
		r, err := ExplainText(before + message)
		if err != nil {
			t.Fatal(err)
		}
		advice := strings.Join(r.Actions, "\n")
		if !strings.Contains(advice, want) || strings.Contains(advice, "torch.utils.checkpoint") != (want == "gradient accumulation") {
			t.Errorf("after %q:\n%s\nwant %s", before, advice, want)
		}
	}
}

// TestBrokenLines inserts what pasting does to a text and expects the same
// report: line breaks and blanks between words, a width that cuts words in two,
// quoting, colours, the prefix of a rank.
func TestBrokenLines(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	between := func(text string, with ...string) string {
		words := strings.Split(text, " ")
		var b strings.Builder
		for i, w := range words {
			if i > 0 {
				b.WriteString(with[random.IntN(len(with))])
			}
			b.WriteString(w)
		}
		return b.String()
	}
	for _, c := range textCases(t) {
		if strings.Contains(c.text, "[rank") {
			continue
		}
		want, err := ExplainText(c.text)
		if err != nil {
			t.Fatal(err)
		}
		broken := []string{
			between(c.text, " ", "  ", "\n", " \r\n", "\u00a0"),
			"> " + strings.ReplaceAll(c.text, "\n", "\n> "),
			"\x1b[31m" + between(c.text, " ", "\x1b[0m ") + "\x1b[0m",
			"[rank7]: " + strings.ReplaceAll(c.text, "\n", "\n[rank7]: "),
			"\xff\xfe" + strings.Join(strings.Split(c.text, ""), "\x00") + "\x00",
		}
		if !strings.Contains(c.text, "\n") {
			broken = append(broken, wrap(c.text, 20+random.IntN(60)), wrap(c.text, 7))
		}
		for _, text := range broken {
			if got, err := ExplainText(text); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %+v, %v; want %+v\nfrom %q", c.name, got, err, want, text)
			}
		}
	}
}

// wrap cuts text into lines of one width, as terminals do.
func wrap(text string, width int) string {
	var lines []string
	for ; len(text) > width; text = text[width:] {
		lines = append(lines, text[:width])
	}
	return strings.Join(append(lines, text), "\n")
}

// TestLongText hides each message among more lines than are looked at.
func TestLongText(t *testing.T) {
	noise := strings.Repeat("step 120 loss 2.31 lr 1e-4 tokens per second 41230, waiting for the next batch\n", maxText/2/70)
	for i, c := range textCases(t) {
		if i%4 > 0 {
			continue // enough to meet most wordings
		}
		want, _ := ExplainText(c.text)
		places := []string{noise + c.text + "\n" + noise, noise + noise + c.text, c.text + "\n" + noise + noise}
		got, err := ExplainText(places[i/4%len(places)])
		if err == nil {
			got.Summary = strings.Replace(got.Summary, " holds at least ", " holds ", 1)
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v; want %+v", c.name, got, err, want)
		}
	}
	repeated := strings.Repeat("Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 4.0\n", 5000)
	r, err := ExplainText(repeated + "CUDA out of memory. Tried to allocate 7.00 GiB. GPU 0 has a total capacity of 6.00 GiB\n" + repeated)
	if err != nil || r.Verdict != OversizeRequest {
		t.Errorf("%+v, %v; want the one message among warnings", r, err)
	}
}

// TestManyMessages: their number is the true one, or said to be a lower bound,
// and every device is named.
func TestManyMessages(t *testing.T) {
	const message = "CUDA out of memory. Tried to allocate 7.00 GiB. GPU %d has a total capacity of 6.00 GiB\n"
	for n, want := range map[int]string{
		300:    "The text holds 300 such messages (GPU 0, GPU 1)",
		20_000: "The text holds at least 20000 such messages (GPU 0, GPU 1, GPU 3)",
	} {
		var b strings.Builder
		for i := range n {
			device := i % 2
			if i == 7_001 {
				device = 3
			}
			fmt.Fprintf(&b, message, device)
		}
		if r, err := ExplainText(b.String()); err != nil || !strings.Contains(r.Summary, want) {
			t.Errorf("%d messages: %+v, %v; want %q", n, r, err, want)
		}
	}
}

func TestNoMessage(t *testing.T) {
	for text, want := range map[string]string{
		"":    "the text is empty",
		" \n": "the text is empty",
		"<!DOCTYPE html><html><body>Sign in</body></html>": "HTML page",
		"all is well\n":                      "12 bytes of text",
		"\x80\x04\x95\x10\x00\x00\x00}":      "binary data",
		"\x1f\x8b\x08\x00 CUDA out of memor": "binary data",
	} {
		r, err := ExplainText(text)
		if r != nil || !errors.Is(err, ErrNoMessage) || !strings.Contains(err.Error(), want) {
			t.Errorf("ExplainText(%q) = %+v, %v; want an error with %q", text, r, err, want)
		}
	}
}

// TestReadText compares with cutting the whole text, for all lengths, and looks
// for an error that breaks off the reading.
func TestReadText(t *testing.T) {
	const n = 5
	whole := "abcdefghijklmnopqrstuvwxyz0123456789"
	for length := range len(whole) + 1 {
		want := whole[:length]
		if length > 2*n {
			want = want[:n] + want[length-n:]
		}
		got, err := readEnds(iotest.OneByteReader(strings.NewReader(whole[:length])), n)
		if err != nil || got != want {
			t.Errorf("%d bytes: %q, %v; want %q", length, got, err, want)
		}
		broken := io.MultiReader(strings.NewReader(whole[:length]), iotest.ErrReader(errors.New("gone")))
		if _, err := readEnds(broken, n); err == nil {
			t.Errorf("%d bytes: the error of the reader is lost", length)
		}
	}
	if text, err := ReadText(strings.NewReader("CUDA out of memory")); err != nil || text != "CUDA out of memory" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestIsErrorText(t *testing.T) {
	for head, want := range map[string]bool{
		"":                                      false,
		"\x80\x04 CUDA out of memory":           false,
		"PK\x03\x04\x00 out of memory":          false,
		"{\"segments\": []}":                    false,
		" [[0, 1, 512, 3]]":                     false,
		"[{\"addr\": 1}]":                       false,
		"{\"msg\": \"CUDA out of memory\"}":     true,
		"[rank0]: Traceback":                    true,
		"[2026-01-01 10:00:00] epoch 1":         true,
		"a log whose error stands further down": true,
		"\xff\xfee\x00r\x00r\x00o\x00r\x00":     true,
	} {
		if got := IsErrorText([]byte(head)); got != want {
			t.Errorf("IsErrorText(%q) = %t", head, got)
		}
	}
}

// TestVerdicts holds the table to its constants and to one sentence each.
func TestVerdicts(t *testing.T) {
	seen := map[Verdict]bool{}
	for _, v := range Verdicts() {
		if seen[v.Verdict] || v.Meaning == "" || strings.Count(v.Meaning, ".") != 1 || !strings.HasSuffix(v.Meaning, ".") {
			t.Errorf("%+v: want one sentence, once", v)
		}
		seen[v.Verdict] = true
	}
	Verdicts()[0].Meaning = ""
	if Verdicts()[0].Meaning == "" {
		t.Error("Verdicts gives its own table away")
	}
}

// TestReportJSON keeps the keys that programs read.
func TestReportJSON(t *testing.T) {
	r, err := ExplainText("CUDA out of memory. Tried to allocate 3.00 GiB")
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"kind":"error_text","verdict":"UNKNOWN","summary":"Memory ran out when 3GiB was asked; the message was cut before the figures that would say why.",` +
		`"framework":"PyTorch","device":"","request_bytes":3221225472,"total_bytes":null,"free_bytes":null,"allocated_bytes":null,` +
		`"reserved_bytes":null,"peak_reserved_bytes":null,"cached_bytes":null,"outside_bytes":null,"limit_bytes":null,"causes":[],"actions":[`
	if !strings.HasPrefix(string(b), want) {
		t.Errorf("got  %s\nwant %s…", b, want)
	}
}

func FuzzExplainText(f *testing.F) {
	for _, c := range textCases(f) {
		f.Add(c.text)
	}
	known := map[Verdict]bool{}
	for _, v := range Verdicts() {
		known[v.Verdict] = true
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ExplainText(text)
		if err != nil {
			if r != nil || !errors.Is(err, ErrNoMessage) {
				t.Fatalf("%+v, %v", r, err)
			}
			return
		}
		if !known[r.Verdict] || r.Verdict == Healthy || r.Summary == "" || r.Framework == "" || len(r.Actions) == 0 {
			t.Fatalf("incomplete: %+v", r)
		}
		for _, s := range slices.Concat(r.Actions, r.Unhelpful, []string{r.Summary}) {
			if strings.ContainsAny(s, "{}") {
				t.Fatalf("%q was not filled in", s)
			}
		}
		if a, c, v := r.AllocatedBytes, r.CachedBytes, r.ReservedBytes; a != nil && c != nil && v != nil && *a+*c != *v {
			t.Fatalf("allocated %d + cached %d ≠ reserved %d", *a, *c, *v)
		}
		if _, err := json.Marshal(r); err != nil {
			t.Fatal(err)
		}
	})
}

func BenchmarkExplainText(b *testing.B) {
	cases := textCases(b)
	long := strings.Repeat("step 120 loss 2.31 lr 1e-4\n", 4<<20/27)
	for name, text := range map[string]string{"line": cases[1].text, "log of 4 MiB": long + cases[1].text} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, err := ExplainText(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
