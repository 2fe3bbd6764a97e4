package web_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"image"
	"image/png"
	"regexp"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/internal/web"
	"github.com/headroom-go/headroom/trace"
)

// evil is a name that is markup, ends scripts, and breaks out of attributes.
const evil = `/home/<script>alert(1)</script>"'><img src=x onerror=alert(2)></script><!--.py`

func report(t testing.TB, o web.ReportOptions, records ...*web.Record) string {
	t.Helper()
	var page bytes.Buffer
	if err := web.WriteReport(&page, records, o); err != nil {
		t.Fatal(err)
	}
	return page.String()
}

// TestReportHoldsWhatTheCommandsSay reads the page's figures and compares them
// with those of explain and replay.
func TestReportHoldsWhatTheCommandsSay(t *testing.T) {
	snapshot := newJob(4000, "/m.py", true)
	page := report(t, web.ReportOptions{}, recordOf(t, snapshot))
	text := regexp.MustCompile(`(?s)<script type="application/json" id="data">(.*?)</script>`).FindStringSubmatch(page)[1]
	var data struct {
		Records []struct {
			Findings struct{ Explain, Replay json.RawMessage }
			WhatIf   []struct {
				Name   string
				Result json.RawMessage
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &data); err != nil {
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

// TestReportIsClosed checks that nothing of a record can become markup or run,
// and that the page needs nothing else.
func TestReportIsClosed(t *testing.T) {
	records, err := web.Records(evil, newJob(300, evil, false))
	if err != nil {
		t.Fatal(err)
	}
	page := report(t, web.ReportOptions{Version: evil, Try: []web.Setting{}}, records...)
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
	if err := web.WriteReport(&all, []*web.Record{r}, web.ReportOptions{Try: []web.Setting{}}); err != nil {
		t.Fatal(err)
	}
	for room := 0; room < all.Len(); room += all.Len()/40 + 1 {
		if err := web.WriteReport(&full{room}, []*web.Record{r}, web.ReportOptions{Try: []web.Setting{}}); !errors.Is(err, errFull) {
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
