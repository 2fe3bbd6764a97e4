package web_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/internal/web"
	"github.com/headroom-go/headroom/internal/web/webtest"
	"github.com/headroom-go/headroom/trace"
)

var shots = flag.String("shots", "", "keep the screenshots of the browser tests in this folder")

// file writes a report into a folder and gives its URL.
func file(t testing.TB, o web.ReportOptions, files ...[]*web.Record) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "report.html")
	if err := os.WriteFile(path, []byte(report(t, o, files...)), 0o644); err != nil {
		t.Fatal(err)
	}
	return "file://" + path
}

// TestBrowser uses the pages in a real browser.
func TestBrowser(t *testing.T) {
	b := webtest.Open(t, *shots)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *webtest.Tab)
	}{{"million", testMillion}, {"same answers", testSameAnswers}, {"names", testNamesAreText}, {"compare", testCompare}, {"live", testLive}} {
		t.Run(test.name, func(t *testing.T) {
			test.run(t, b.Of(t))
			b.Do(chromedp.Navigate("about:blank"))
			b.Quiet()
		})
	}
}

// testMillion uses the report of a million events as a person does.
func testMillion(t *testing.T, b *webtest.Tab) {
	events := 1_000_000
	if raceEnabled {
		events = 50_000
	}
	snapshot := newJob(events, "/home/user/model.py", true)
	record := recordOf(t, snapshot)
	b.Screen(1440, 900, "light")
	b.Goto(file(t, web.ReportOptions{Try: []web.Setting{}}, []*web.Record{record}))

	h := inspect.NewHistory(snapshot, 0)
	explain := h.Explain()
	if got := b.Text("#verdict-title"); !strings.Contains(got, string(explain.Verdict)) {
		t.Errorf("the verdict is %q, want %s", got, explain.Verdict)
	}
	for key, want := range map[string]uint64{"allocated_bytes": *explain.AllocatedBytes, "reserved_bytes": *explain.ReservedBytes, "peak_reserved_bytes": *explain.PeakReservedBytes} {
		if got := webtest.Eval[uint64](b, fmt.Sprintf(`Number(document.querySelector('[data-key="%s"]').dataset.value)`, key)); got != want {
			t.Errorf("%s is %d, want %d", key, got, want)
		}
	}
	b.View("segments")
	for key, want := range map[string]uint64{"live": *explain.AllocatedBytes, "reserved": *explain.ReservedBytes, "cached": *explain.CachedBytes} {
		if got := webtest.Eval[uint64](b, fmt.Sprintf(`Number(document.querySelector(".totals").dataset.%s)`, key)); got != want {
			t.Errorf("the segments at the peak have %d bytes %s, explain says %d", got, key, want)
		}
	}

	whole := webtest.Eval[float64](b, `headroom.view.to - headroom.view.from`)
	for range 12 {
		b.Wheel("#timeline", -400)
	}
	b.Settled()
	if zoomed := webtest.Eval[float64](b, `headroom.view.to - headroom.view.from`); zoomed > whole/100 {
		t.Errorf("twelve turns of the wheel leave %g of %g events in view", zoomed, whole)
	}
	b.Do(chromedp.Focus(chromedp.CSS("#timeline")), chromedp.KeyEvent("0"), chromedp.KeyEvent(kb.ArrowUp), chromedp.KeyEvent(kb.ArrowRight), chromedp.KeyEvent("p"))
	b.Settled()
	if at, peak := webtest.Eval[int](b, `headroom.moment`), h.Peak(); at != peak {
		t.Errorf("the key for the peak leads to moment %d, the peak is %d", at, peak)
	}

	b.View("segments")
	at := webtest.Eval[webtest.Point](b, `(() => { const m = headroom.map; const box = m.boxes.find(x => x.tile.lease >= 0 && x.parts[0].w > 4); const p = box.parts[0];
		m.canvas.scrollIntoView({block: "start"}); const r = m.canvas.getBoundingClientRect(); return {X: r.x + p.x + p.w / 2, Y: r.y + p.y + 8}; })()`)
	b.Do(chromedp.MouseClickXY(at.X, at.Y), chromedp.WaitVisible(chromedp.CSS("#details .stack")))
	if stack := b.Text("#details .stack"); !strings.Contains(stack, "model.py:1") || !strings.Contains(stack, "train.py:7 <module>") {
		t.Errorf("the stack of the block is %q", stack)
	}
	b.Shot("segments")

	b.Do(chromedp.SendKeys(chromedp.CSS("#query"), "model.py:103"+kb.Enter))
	b.Do(chromedp.WaitVisible(chromedp.CSS("#below table")))
	if found, want := b.Text("#hits"), record.Search("model.py:103", 0).Count; strings.Map(digits, found) != fmt.Sprint(want) {
		t.Errorf("the search tells of %q, want %d", found, want)
	}
	for _, name := range []string{"blocks", "flame", "largest", "steps", "whatif", "compare"} {
		b.View(name)
		if *shots != "" {
			b.Shot(name)
		}
	}
	b.Do(chromedp.Click(chromedp.CSS(`input[name=split][value="1"]`)), chromedp.Click(chromedp.CSS(`input[name=axis][value="time"]`)))
	b.Settled()
	b.View("segments")
	b.Screen(1440, 900, "dark")
	b.Shot("dark")
	b.Screen(390, 844, "light")
	b.Shot("small")
}

// digits keeps digits alone.
func digits(r rune) rune {
	if r >= '0' && r <= '9' {
		return r
	}
	return -1
}

// questions are asked of a report and of a server, which must say the same.
var questions = []string{
	`r.samples(0, r.meta.events, 50)`, `r.samples(3, 90, 500)`, `r.samples(100, 100, 1)`, `r.samples(-5, 1e9, 33)`,
	`r.state(0)`, `r.state(57)`, `r.state(r.meta.events)`, `r.state(211)`,
	`r.lives(0, r.meta.events, 5000)`, `r.lives(50, 90, 10)`, `r.lives(300, 300, 100)`,
	`r.weights(0, r.meta.events)`, `r.weights(20, 180)`,
	`r.block(0)`, `r.block(41)`, `r.block(1e6)`, `r.stacks()`, `r.sites()`, `r.findings()`,
	`r.search("b.py:3", 50)`, `r.search("", 50)`, `r.search(">=1MiB", 50)`, `r.search("1.5MiB", 50)`, `r.search("<=300KB", 9)`, `r.search("0x10000200000", 9)`, `r.search("4096", 50)`,
}

// testSameAnswers compares the answers of a report, computed in the page, with
// those of the server, computed in Go.
func testSameAnswers(t *testing.T, b *webtest.Tab) {
	for seed, s := range []*trace.Snapshot{strange(7, 400), newJob(40_000, "/m/b.py", true)} {
		dir := t.TempDir()
		write(t, dir, "job.pickle", s)
		s, err := trace.ReadFile(filepath.Join(dir, "job.pickle"))
		if err != nil {
			t.Fatal(err)
		}
		ask := func(url string) []string {
			b.Goto(url)
			var out []string
			for _, q := range questions {
				out = append(out, webtest.Eval[string](b, `(async () => { const r = headroom.record; return JSON.stringify(await `+q+`); })()`))
			}
			return out
		}
		records, err := web.Records("job.pickle", s)
		if err != nil {
			t.Fatal(err)
		}
		served, inPage := ask(serve(t, dir).URL), ask(file(t, web.ReportOptions{Try: []web.Setting{}}, records))
		for i, q := range questions {
			if !sameJSON(t, inPage[i], served[i]) {
				t.Errorf("record %d: %s is\n%.400s\nin the page, and of the server\n%.400s", seed, q, inPage[i], served[i])
			}
		}
	}
}

func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y any
	if err := json.Unmarshal([]byte(a), &x); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(b), &y); err != nil {
		t.Fatal(err)
	}
	return reflect.DeepEqual(x, y)
}

// testNamesAreText opens a record whose names are markup, from a file and from
// a server, and looks everywhere.
func testNamesAreText(t *testing.T, b *webtest.Tab) {
	records, err := web.Records(evil, newJob(2000, evil, true))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write(t, dir, "<img src=x onerror=alert(3)>.pickle", newJob(2000, evil, true))
	write(t, dir, "other.pickle", newJob(300, "/m.py", true))
	for _, url := range []string{file(t, web.ReportOptions{}, records), serve(t, dir).URL} {
		b.Do(chromedp.Navigate(url))
		if strings.HasPrefix(url, "http") {
			b.Do(chromedp.Click(chromedp.CSS("#files button")))
		}
		b.Do(chromedp.WaitReady(chromedp.CSS("body[data-ready=segments]")))
		for _, name := range []string{"blocks", "flame", "largest", "steps", "whatif", "compare", "segments"} {
			b.View(name)
		}
		webtest.Eval[bool](b, `headroom.details.block(3).then(() => true)`)
		if text := b.Text("#details .stack"); !strings.Contains(text, `<!--.py`) {
			t.Errorf("the stack shows %q", text)
		}
		if n := webtest.Eval[int](b, `document.querySelectorAll("img, main script, [onerror]").length`); n != 0 {
			t.Errorf("%s: %d elements were made from names", url, n)
		}
	}
}

// testCompare shows two ranks, the job's own first, on one axis and other settings beside.
func testCompare(t *testing.T, b *webtest.Tab) {
	var records [][]*web.Record
	for i := range 2 {
		more, err := web.Records(fmt.Sprintf("rank%d.pickle", i), newJob(3000+1000*i, "/m.py", i == 1))
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, more)
	}
	b.Goto(file(t, web.ReportOptions{}, records...))
	b.View("compare")
	b.Do(chromedp.Click(chromedp.CSS("#below tr:nth-child(2) input")))
	b.View("whatif")
	b.Do(chromedp.Click(chromedp.CSS("#below tr:nth-child(2) input")))
	if n := webtest.Eval[int](b, `headroom.curves().length`); n != 2 {
		t.Errorf("%d curves are drawn beside", n)
	}
	want, err := web.ParseSetting("headroom")
	if err != nil {
		t.Fatal(err)
	}
	replay, err := records[1][0].WhatIf(want)
	if err != nil {
		t.Fatal(err)
	}
	if got := webtest.Eval[uint64](b, `Number(document.querySelector('[data-key="headroom peak_reserved_bytes"]').dataset.value)`); got != replay.Result.PeakReservedBytes {
		t.Errorf("the page says %d for Headroom's allocator, replay says %d", got, replay.Result.PeakReservedBytes)
	}
	b.Shot("compare-ranks")
	if got := b.Text("#verdict-title"); !strings.Contains(got, "LEAK") || !strings.Contains(got, "rank 1: rank1.pickle") {
		t.Errorf("the job's rank has the verdict %q", got)
	}
	webtest.Eval[bool](b, `headroom.open(1).then(() => true)`)
	if got := b.Text("#verdict-title"); !strings.Contains(got, "HEALTHY") || !strings.Contains(got, "rank 0: rank0.pickle") {
		t.Errorf("the other rank has the verdict %q", got)
	}
}

// testLive watches a job.
func testLive(t *testing.T, b *webtest.Tab) {
	f := &figures{}
	l := web.NewLive(web.LiveOptions{Name: "job", Stats: f.get, Budget: 1 << 28})
	for i := range 200 {
		f.set(uint64(50+i%20) << 20)
		l.Sample()
		l.Step(i, 8/float64(i+1))
	}
	l.Event("step 7 was repeated with half the micro-batch")
	s := httptest.NewServer(l)
	defer s.Close()
	defer b.Do(chromedp.Navigate("about:blank")) // or it would complain of a server that has gone
	b.Goto(s.URL)
	b.Do(chromedp.WaitVisible(chromedp.CSS("#verdict .figures")))
	for _, name := range []string{"events", "statistics", "loss"} {
		b.View(name)
	}
	if got := b.Text("#verdict"); !strings.Contains(got, "199") || !strings.Contains(got, "256MiB") {
		t.Errorf("the page says %q", got)
	}
	b.Shot("live")
	f.set(200 << 20)
	l.Sample()
	webtest.Eval[bool](b, `(async () => { while (headroom.record.meta.events < 201) await new Promise(r => setTimeout(r, 50)); return true; })()`)
	b.Settled()
	if got := b.Text("#now"); !strings.Contains(got, "200MiB live") {
		t.Errorf("the page follows to %q", got)
	}
}

// inputs are what a person does to the page, each with what says that the page
// has answered.
const inputs = `(() => {
  const app = headroom, pick = (s) => document.querySelector(s);
  const timeline = pick("#timeline"), box = timeline.getBoundingClientRect();
  const drawn = () => !app.busy();
  const shows = (tab) => [() => { delete document.body.dataset.ready; pick("#tab-" + tab).click(); }, () => document.body.dataset.ready === tab];
  const key = (key, shiftKey) => () => timeline.dispatchEvent(new KeyboardEvent("keydown", { key, shiftKey, bubbles: true, cancelable: true }));
  const wheel = (deltaY, share) => () => timeline.dispatchEvent(new WheelEvent("wheel", { deltaY, clientX: box.x + share * box.width, clientY: box.y + 50, bubbles: true, cancelable: true }));
  const find = (text) => [() => { delete document.body.dataset.ready; pick("#query").value = text; pick("#search").requestSubmit(); }, () => document.body.dataset.ready === "found"];
  let lease = 0;
  return {
    zoom: [...[0.2, 0.7, 0.4, 0.5, 0.6, 0.3].map((s) => [wheel(-300, s), drawn]), [wheel(500, 0.5), drawn], [key("ArrowUp"), drawn], [key("ArrowDown"), drawn]],
    pan: [[key("PageDown"), drawn], [key("PageUp"), drawn], [key("ArrowRight", true), drawn], [key("ArrowLeft", true), drawn]],
    cursor: [[key("ArrowRight"), drawn], [key("p"), drawn], [key("End"), drawn], [key("Home"), drawn]],
    whole: [[key("0"), drawn]],
    search: [find("model.py:103"), find("512MiB"), find(">=1MiB"), find("forward"), find("")],
    select: Array.from({ length: 5 }, () => [() => { lease = (lease + 99_991) % 300_000; pick("#details").textContent = ""; app.chooseBlock(lease); }, () => pick("#details .stack")]),
    switch: ["segments", "blocks", "flame", "largest", "steps", "compare", "segments"].map(shows),
  };
})()`

// BenchmarkInput reports how long the page of a million events takes to answer,
// from the input to the frame with the finished picture: the median of each
// kind of input and the longest, in milliseconds, and the processor time that
// the page's thread used meanwhile, which other programs don't lengthen. A
// frame lasts 16.7 milliseconds.
func BenchmarkInput(b *testing.B) {
	tab := webtest.Open(b, *shots)
	tab.Screen(1440, 900, "light")
	tab.Goto(file(b, web.ReportOptions{Try: []web.Setting{}}, []*web.Record{recordOf(b, newJob(1_000_000, "/home/user/model.py", true))}))
	if _, err := chromedp.Call(tab.Context, performance.Enable, performance.EnableParams{TimeDomain: performance.EnableTimeDomainThreadTicks}); err != nil {
		b.Fatal(err)
	}
	wall, used := map[string][]float64{}, map[string][]float64{}
	for b.Loop() {
		kinds := webtest.Eval[[]string](tab, `(() => { window.inputs = `+inputs+`; return Object.keys(inputs); })()`)
		for _, kind := range kinds {
			for i := range webtest.Eval[int](tab, fmt.Sprintf(`inputs[%q].length`, kind)) {
				before := processorTime(b, tab)
				wall[kind] = append(wall[kind], webtest.Eval[float64](tab, fmt.Sprintf(`(async () => {
					const frame = () => new Promise(requestAnimationFrame), [act, answered] = inputs[%q][%d], begun = performance.now();
					act();
					do await frame(); while (!answered());
					return performance.now() - begun;
				})()`, kind, i)))
				used[kind] = append(used[kind], processorTime(b, tab)-before)
				tab.Do(chromedp.Sleep(300 * time.Millisecond)) // what follows later is not the next one's
			}
		}
	}
	for kind := range wall {
		slices.Sort(wall[kind])
		slices.Sort(used[kind])
		n := len(wall[kind])
		b.ReportMetric(wall[kind][n/2], kind+"-ms")
		b.ReportMetric(wall[kind][n-1], kind+"-ms-max")
		b.ReportMetric(used[kind][n/2], kind+"-ms-cpu")
		b.ReportMetric(used[kind][n-1], kind+"-ms-cpu-max")
	}
}

// processorTime is what the page's thread has used, in milliseconds.
func processorTime(t testing.TB, tab *webtest.Tab) float64 {
	t.Helper()
	got, err := chromedp.Call(tab.Context, performance.GetMetrics, cdp.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(got.Metrics, func(m *performance.Metric) bool { return m.Name == "TaskDuration" })
	return 1000 * got.Metrics[i].Value
}
