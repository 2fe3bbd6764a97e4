package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/internal/web/webtest"
)

var shots = flag.String("shots", "", "keep the screenshots of the browser tests in this folder")

// said is what a command prints with --json.
func said(t *testing.T, command, file string) map[string]any {
	t.Helper()
	status, stdout, stderr := headroom(command, file, "--json")
	var out map[string]any
	if err := json.Unmarshal([]byte(stdout), &out); status != 0 || err != nil {
		t.Fatalf("%s: status %d, %v: %s", command, status, err, stderr)
	}
	return out
}

// TestReportInABrowser writes the report of a recorded training run and uses it
// as a person does. What stands on the page are the figures of explain --json
// and replay --json.
func TestReportInABrowser(t *testing.T) {
	trace := "testdata/bert_var.pickle.zst"
	if invariant.Slow { // everything takes ten times as long
		trace = "../../inspect/testdata/leak_cache.pickle.gz"
	}
	tab := webtest.Open(t, *shots)
	page := filepath.Join(t.TempDir(), "report.html")
	if status, _, stderr := headroom("report", trace, "-o", page, "--what-if", "headroom"); status != 0 {
		t.Fatal(stderr)
	}
	if info, err := os.Stat(page); err != nil || info.Size() > 15_000_000 {
		t.Errorf("the page is %v (%v)", info, err)
	}
	tab.Screen(1440, 900, "light")
	tab.Goto("file://" + page)
	tab.View("whatif")

	explain, replay := said(t, "explain", trace), said(t, "replay", trace)
	shown := webtest.Eval[map[string][]string](tab, `Object.fromEntries([...document.querySelectorAll("[data-key]")].map((e) => [e.dataset.key, [e.dataset.value, e.textContent]]))`)
	expect := func(key string, value any) {
		t.Helper()
		n, ok := value.(float64)
		if got := shown[key]; ok && (len(got) != 2 || got[0] != fmt.Sprintf("%.0f", n) || got[1] != size.Format(uint64(n))) {
			t.Errorf("the page shows %q for %s, which is %.0f", got, key, n)
		}
	}
	known := 0
	for key, value := range explain {
		if strings.HasSuffix(key, "_bytes") {
			expect(key, value)
			known++
		}
	}
	for _, key := range []string{"peak_live_bytes", "peak_reserved_bytes"} {
		expect("replay "+key, replay[key])
	}
	_, stdout, _ := headroom("replay", trace, "--json", "--policy", "headroom")
	var tried map[string]any
	if err := json.Unmarshal([]byte(stdout), &tried); err != nil || known < 8 {
		t.Fatalf("%d figures, %v", known, err)
	}
	expect("headroom peak_reserved_bytes", tried["peak_reserved_bytes"])
	var causes []string
	for _, c := range explain["causes"].([]any) {
		causes = append(causes, fmt.Sprintf("%.0f", c.(map[string]any)["bytes"]))
	}
	got := webtest.Eval[[]string](tab, `[...document.querySelectorAll("#verdict .causes [data-value]")].map((e) => e.dataset.value)`)
	if strings.Join(got, " ") != strings.Join(causes, " ") {
		t.Errorf("the page shows causes of %s bytes, explain says %s", got, causes)
	}
	if title := tab.Text("#verdict-title"); !strings.Contains(title, explain["verdict"].(string)) || !strings.EqualFold(tab.Text("#verdict .summary"), explain["summary"].(string)) {
		t.Errorf("the page says %q, explain says %q", title, explain["verdict"])
	}

	whole := webtest.Eval[float64](tab, `headroom.view.to - headroom.view.from`)
	tab.Wheel("#timeline", -400)
	tab.Settled()
	if zoomed := webtest.Eval[float64](tab, `headroom.view.to - headroom.view.from`); whole != replay["events"] || zoomed >= whole {
		t.Errorf("the wheel leaves %g of %g events in view; the record has %v", zoomed, whole, replay["events"])
	}
	tab.Do(chromedp.SendKeys(chromedp.CSS("#query"), "modeling_"+kb.Enter), chromedp.Click(chromedp.CSS(`#below button[aria-label^="stack of block"]`)), chromedp.WaitVisible(chromedp.CSS("#details .stack")))
	if stack := tab.Text("#details .stack"); !strings.Contains(stack, "modeling_") {
		t.Errorf("the stack of what was found is %q", stack)
	}
	for _, view := range []string{"segments", "blocks", "flame", "largest", "steps", "compare"} {
		tab.View(view)
	}
}

// TestReportOfAJobInABrowser writes the report of a folder with a job's snapshots. The
// page begins with what explain says of the job, and its ranks are reached with keys.
func TestReportOfAJobInABrowser(t *testing.T) {
	tab := webtest.Open(t, *shots)
	folder, _ := writeRanks(t, madeUp["pipeline"])
	page := filepath.Join(t.TempDir(), "ranks.html")
	if status, _, stderr := headroom("report", folder, "-o", page); status != 0 {
		t.Fatal(stderr)
	}
	tab.Screen(1440, 900, "light")
	tab.Goto("file://" + page)
	job := said(t, "explain", folder)
	if title := tab.Text("#job-title"); !strings.Contains(title, "IMBALANCE") || !strings.EqualFold(tab.Text("#job .summary"), job["summary"].(string)) {
		t.Errorf("the page says %q of the job, explain says %v", title, job["summary"])
	}
	cells := webtest.Eval[[][]string](tab, `[...document.querySelector("#job table").querySelectorAll("tbody tr")].map((r) => [...r.querySelectorAll(".bar")].map((b) => b.dataset.value))`)
	for i, rank := range job["ranks"].([]any) {
		r := rank.(map[string]any)
		want := []string{number(r["live_bytes"])}
		for _, purpose := range []string{"activation", "parameter"} {
			for _, s := range r["live_by_purpose"].([]any) {
				if s.(map[string]any)["what"] == purpose {
					want = append(want, number(s.(map[string]any)["bytes"]))
				}
			}
		}
		want = append(want, number(r["reserved_bytes"]), number(r["cached_bytes"]))
		if !slices.Equal(cells[i], want) {
			t.Errorf("rank %d has the figures %s, explain says %s", i, cells[i], want)
		}
	}
	if spread := tab.Text("#job table tbody tr:last-child"); !strings.Contains(spread, "2.64GiB") { // 4 and 1 blocks of 900 MiB
		t.Errorf("the spread is %q", spread)
	}
	tab.Shot("job")
	tab.Screen(390, 844, "dark")
	tab.Shot("job-small")
	tab.Do(chromedp.Focus(chromedp.CSS(`#job button[data-rank="2"]`)), chromedp.KeyEvent(kb.Enter))
	webtest.Eval[bool](tab, `(async () => { while (!document.querySelector("#verdict-title").textContent.includes("rank 2")) await new Promise(r => setTimeout(r, 20)); return true; })()`)
	tab.Settled()
	if at := webtest.Eval[string](tab, `document.activeElement.id`); at != "verdict" {
		t.Errorf("the focus is on %q", at)
	}
	if got := webtest.Eval[[]string](tab, `[...document.querySelectorAll("#job [aria-pressed=true]")].map((b) => b.textContent)`); !slices.Equal(got, []string{"rank 2: rank2.pickle"}) {
		t.Errorf("shown is %q", got)
	}
	alone := said(t, "explain", filepath.Join(folder, "rank2.pickle"))
	if got := tab.Text("#verdict .summary"); !strings.EqualFold(got, alone["summary"].(string)) {
		t.Errorf("of the rank the page says %q", got)
	}
	for _, view := range []string{"segments", "blocks", "flame", "largest", "steps", "whatif", "compare"} {
		tab.View(view)
	}
}

// number is a figure of JSON as the page keeps it.
func number(v any) string { return fmt.Sprintf("%.0f", v) }
