package web_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"html"
	"image"
	"image/png"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/internal/web"
	"github.com/headroom-go/headroom/trace"
)

// evil is a name that is markup, ends scripts, and breaks out of attributes.
const evil = `/home/<script>alert(1)</script>"'><img src=x onerror=alert(2)></script><!--.py`

func report(t testing.TB, o web.ReportOptions, files ...[]*web.Record) string {
	t.Helper()
	var page bytes.Buffer
	if err := web.WriteReport(&page, files, o); err != nil {
		t.Fatal(err)
	}
	return page.String()
}

// TestReportHoldsWhatTheCommandsSay reads the page's figures and compares them
// with those of explain and replay.
func TestReportHoldsWhatTheCommandsSay(t *testing.T) {
	snapshot := newJob(4000, "/m.py", true)
	page := report(t, web.ReportOptions{}, []*web.Record{recordOf(t, snapshot)})
	var data struct {
		Records []struct {
			Findings struct{ Explain, Replay json.RawMessage }
			WhatIf   []struct {
				Name   string
				Result json.RawMessage
			}
		}
	}
	if err := json.Unmarshal([]byte(dataOf(page)), &data); err != nil {
		t.Fatal(err)
	}
	h := inspect.NewHistory(snapshot, 0)
	same := func(what string, got json.RawMessage, want any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(want)
		if err != nil || string(got) != string(text) {
			t.Errorf("%s:\n%s\nwant\n%s (%v)", what, got, text, err)
		}
	}
	same("explain", data.Records[0].Findings.Explain, h.Explain(), nil)
	recorded, err := h.Replay(inspect.Options{})
	same("replay", data.Records[0].Findings.Replay, recorded, err)
	conf, err := inspect.ParseConf("expandable_segments:True")
	if err != nil {
		t.Fatal(err)
	}
	other, err := h.Replay(inspect.Options{Conf: &conf})
	same(data.Records[0].WhatIf[0].Name, data.Records[0].WhatIf[0].Result, other, err)
	ours, err := h.Replay(inspect.Options{Policy: inspect.Headroom})
	same(data.Records[0].WhatIf[1].Name, data.Records[0].WhatIf[1].Result, ours, err)
}

// TestReportOfRanks: a page of several files has what is said of the job, of each rank
// its record while there is room, and of the job's own one in any case.
func TestReportOfRanks(t *testing.T) {
	var files [][]*web.Record
	var ranks []inspect.Member
	for i := range 4 {
		s := newJob(1000, "/m.py", i == 2)
		r, err := web.Records("memory.pickle", s)
		if err != nil {
			t.Fatal(err)
		}
		files, ranks = append(files, r), append(ranks, inspect.Member{Name: "memory.pickle", History: inspect.NewHistory(s, 0)})
	}
	whole := len(report(t, web.ReportOptions{}, files...))
	alone := len(report(t, web.ReportOptions{}, files[2]))
	for most, want := range map[int][]int{0: {1, 2, 0, 3}, (whole - alone) * 5 / 6: {1, -1, 0, -1}, 1: {-1, -1, 0, -1}} {
		page := report(t, web.ReportOptions{Most: most}, files...)
		var data struct {
			Job struct {
				inspect.JobReport
				Records []int
			}
			Records []json.RawMessage
		}
		if err := json.Unmarshal([]byte(dataOf(page)), &data); err != nil {
			t.Fatal(err)
		}
		if got := data.Job.Records; !slices.Equal(got, want) || len(data.Records) != slices.Max(want)+1 || strings.Count(page, `id="columns-`) != len(data.Records) {
			t.Errorf("%d bytes have room for records %v of %d, want %v", most, got, len(data.Records), want)
		}
		if most > 1 && len(page) > alone+most {
			t.Errorf("the page has %d bytes, one rank's %d: want %d more at most", len(page), alone, most)
		}
		said := inspect.ExplainJob(ranks)
		if said.Verdict != data.Job.Verdict || said.Summary != data.Job.Summary || !reflect.DeepEqual(said.Ranks, data.Job.Ranks) {
			t.Errorf("the page says\n%+v\nof the job, want\n%+v", data.Job.JobReport, said)
		}
		if !strings.Contains(page, "<noscript><p>"+html.EscapeString(string(said.Verdict)+": "+said.Summary)) {
			t.Error("without scripts the page does not say what the matter is with the job")
		}
	}
}

// dataOf is the page's data.
func dataOf(page string) string {
	return regexp.MustCompile(`(?s)<script type="application/json" id="data">(.*?)</script>`).FindStringSubmatch(page)[1]
}

// TestReportIsClosed checks that nothing of a record can become markup or run,
// and that the page needs nothing else.
func TestReportIsClosed(t *testing.T) {
	records, err := web.Records(evil, newJob(300, evil, false))
	if err != nil {
		t.Fatal(err)
	}
	page := report(t, web.ReportOptions{Version: evil, Try: []web.Setting{}}, records)
	if strings.Contains(page, "alert(1)</script>") || strings.Contains(page, "<img") {
		t.Error("a name of the record is markup")
	}
	if n := strings.Count(page, "</script"); n != 3 {
		t.Errorf("%d scripts end, want 3", n)
	}
	policy := regexp.MustCompile(`Content-Security-Policy" content="([^"]*)"`).FindStringSubmatch(page)[1]
	for tag, part := range map[string]string{`<style>`: "style-src", `<script type="module">`: "script-src"} {
		_, text, _ := strings.Cut(page, tag)
		text, _, _ = strings.Cut(text, "</"+strings.Fields(strings.Trim(tag, "<>"))[0]+">")
		sum := sha256.Sum256([]byte(text))
		want := part + " &#39;sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "&#39;;"
		if !strings.Contains(policy, want) {
			t.Errorf("the policy %s does not have %s", policy, want)
		}
	}
	if !strings.HasPrefix(policy, "default-src &#39;none&#39;") || !strings.Contains(policy, "connect-src &#39;none&#39;") {
		t.Errorf("policy %s", policy)
	}
	if link := regexp.MustCompile(`(?:src|href)="([^#d][^"]*)"`).FindString(page); link != "" {
		t.Errorf("the page needs %s", link)
	}
}

func TestReportErrors(t *testing.T) {
	if _, err := web.Records("empty", &trace.Snapshot{}); err == nil {
		t.Error("a snapshot without memory was taken")
	}
	r := recordOf(t, newJob(300, "/m.py", false))
	var all bytes.Buffer
	if err := web.WriteReport(&all, [][]*web.Record{{r}}, web.ReportOptions{Try: []web.Setting{}}); err != nil {
		t.Fatal(err)
	}
	places := 40
	if invariant.Slow {
		places = 5
	}
	for room := 0; room < all.Len(); room += all.Len()/places + 1 {
		if err := web.WriteReport(&full{room}, [][]*web.Record{{r}}, web.ReportOptions{Try: []web.Setting{}}); !errors.Is(err, errFull) {
			t.Fatalf("with room for %d bytes: %v", room, err)
		}
	}
	if err := web.WritePNG(&full{10}, r); !errors.Is(err, errFull) {
		t.Errorf("a picture with room for 10 bytes: %v", err)
	}
}

var errFull = errors.New("full")

// full is a writer with room for so many bytes.
type full struct{ room int }

func (f *full) Write(p []byte) (int, error) {
	if len(p) > f.room {
		return f.room, errFull
	}
	f.room -= len(p)
	return len(p), nil
}

// TestPNG looks for the areas where the figures say that they are.
func TestPNG(t *testing.T) {
	if invariant.Slow {
		t.Skip("one goroutine draws, for long; damaged records are drawn all the same")
	}
	for _, s := range []*trace.Snapshot{newJob(3000, "/m.py", true), strange(3, 400), strange(4, 1)} {
		var b bytes.Buffer
		if err := web.WritePNG(&b, recordOf(t, s)); err != nil {
			t.Fatal(err)
		}
		img, err := png.Decode(&b)
		if err != nil || img.Bounds() != image.Rect(0, 0, 1600, 980) {
			t.Fatalf("%v, %v", img.Bounds(), err)
		}
	}
	var b bytes.Buffer
	if err := web.WritePNG(&b, recordOf(t, newJob(3000, "/m.py", true))); err != nil {
		t.Fatal(err)
	}
	img, err := png.Decode(&b)
	if err != nil {
		t.Fatal(err)
	}
	white := func(x, y int) bool { r, g, b, _ := img.At(x, y).RGBA(); return r+g+b == 3*0xffff }
	if white(800, 630) {
		t.Error("nothing is drawn at the bottom of the plot, where parameters always are")
	}
	if !white(160, 100) {
		t.Error("something is drawn above the first moment, where nothing lives")
	}
}

// TestPNGOfDamage draws blocks that add up to more than 64 bits count: all lies within
// the plot.
func TestPNGOfDamage(t *testing.T) {
	var tr trace.Trace
	tr.Append(trace.Entry{Event: trace.Event{Action: trace.Alloc, Addr: 1 << 20, Size: 1 << 62, Purpose: trace.Parameter}})
	for i := range uint64(4) {
		tr.Append(trace.Entry{Event: trace.Event{Action: trace.Alloc, Addr: i << 60, Size: 1 << 62, Purpose: trace.Activation}})
	}
	var b bytes.Buffer
	if err := web.WritePNG(&b, recordOf(t, &trace.Snapshot{Traces: []*trace.Trace{&tr}})); err != nil {
		t.Fatal(err)
	}
	img, err := png.Decode(&b)
	if err != nil {
		t.Fatal(err)
	}
	for y := range 76 {
		if r, g, b, _ := img.At(800, y).RGBA(); r+g+b != 3*0xffff {
			t.Fatalf("something is drawn above the plot, in row %d", y)
		}
	}
}
