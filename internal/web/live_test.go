package web_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/pprof/profile"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/internal/web"
	"github.com/headroom-go/headroom/trace"
)

// figures is an allocator's figures that a test sets.
type figures struct {
	mu sync.Mutex
	s  alloc.Stats
}

func (f *figures) get() alloc.Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.s
}

func (f *figures) set(live uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.s.Live, f.s.ByPurpose[trace.Activation].Live = live, live
	f.s.Reserved = max(f.s.Reserved, live)
	if live > f.s.PeakLive {
		f.s.PeakLive, f.s.PeakByPurpose = live, f.s.LiveByPurpose()
	}
}

// TestLiveKeepsPeaks takes many more samples than are kept.
func TestLiveKeepsPeaks(t *testing.T) {
	f := &figures{}
	l := web.NewLive(web.LiveOptions{Name: "job", Stats: f.get})
	const samples = 50_000
	for i := range samples {
		f.set(uint64(1000 + i%77))
		if i == 31_337 {
			f.set(5_000_000)
			f.set(1) // gone again before the sample
		}
		l.Sample()
	}
	s := httptest.NewServer(l)
	defer s.Close()
	_, body, _ := get(t, s.URL+"/api/samples?from=0&to=50000&width=4096", nil)
	var view web.Samples
	if err := json.Unmarshal([]byte(body), &view); err != nil {
		t.Fatal(err)
	}
	var top int64
	for _, part := range view.Parts[0] {
		for _, b := range part {
			top = max(top, b)
		}
	}
	if n := len(view.Moments); n < 1<<11 || n > 1<<12 || top != 5_000_000 {
		t.Errorf("%d samples of which the highest has %d bytes", n, top)
	}
	for i, m := range view.Moments {
		if i > 0 && (m <= view.Moments[i-1] || view.Times[i] < view.Times[i-1]) {
			t.Fatalf("sample %d: moment %d after %d", i, m, view.Moments[i-1])
		}
	}
	if _, body, _ = get(t, s.URL+"/api/samples?from=49990&to=50000&width=1", nil); !strings.Contains(body, `"moments":[`) {
		t.Error(body)
	}
}

// TestLiveSamplesEndTheirSpan: a sample shows the highest moment since the one
// before, so it stands for the time before it. A job that was not let run for
// long is sampled twice at once afterwards, and its peak is as wide as the wait.
func TestLiveSamplesEndTheirSpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &figures{}
		l := web.NewLive(web.LiveOptions{Name: "job", Stats: f.get})
		time.Sleep(time.Second)
		f.set(10)
		l.Sample()
		time.Sleep(5 * time.Second)
		f.set(5_000_000)
		f.set(10)
		l.Sample()
		l.Sample()
		answer := httptest.NewRecorder()
		l.ServeHTTP(answer, httptest.NewRequest("GET", "http://127.0.0.1/api/samples?from=0&to=9&width=100", nil))
		var view web.Samples
		if err := json.Unmarshal(answer.Body.Bytes(), &view); err != nil {
			t.Fatalf("%v: %s", err, answer.Body)
		}
		if want := []int64{0, 0, 1e6, 6e6}; !slices.Equal(view.Times, want) || !slices.Contains(parts(view, 2), 5_000_000) {
			t.Errorf("samples at %v, want %v: %v", view.Times, want, view.Parts[0])
		}
	})
}

// parts are the bytes of a sample by purpose.
func parts(view web.Samples, i int) (bytes []int64) {
	for _, part := range view.Parts[0] {
		bytes = append(bytes, part[i])
	}
	return bytes
}

func TestLiveTellsItsNews(t *testing.T) {
	f := &figures{}
	l := web.NewLive(web.LiveOptions{Name: "<script>job</script>", Stats: f.get, Budget: 1 << 30})
	s := httptest.NewServer(l)
	defer s.Close()
	read := func() (n struct {
		Step    int
		Loss    *float64
		Losses  []struct{ Step int }
		Events  []struct{ Text string }
		Figures map[string]uint64
	}) {
		_, body, _ := get(t, s.URL+"/api/live", nil)
		if err := json.Unmarshal([]byte(body), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := read(); n.Loss != nil || n.Step != 0 || len(n.Events) != 0 {
		t.Errorf("before the first step: %+v", n)
	}
	f.set(4096)
	for step := 1; step <= 10_000; step++ {
		l.Step(step, 10/float64(step))
	}
	for range 700 {
		l.Event("step 7 was repeated with half the micro-batch")
	}
	if n := read(); n.Step != 10_000 || *n.Loss != 0.001 || len(n.Losses) > 1<<11 || len(n.Losses) < 1<<9 || n.Losses[len(n.Losses)-1].Step < 9_900 || len(n.Events) != 500 || n.Figures["live_bytes"] != 4096 {
		t.Errorf("step %d, %d losses, %d events, figures %v", n.Step, len(n.Losses), len(n.Events), n.Figures)
	}
	l.Step(10_001, math.NaN())
	if n := read(); n.Loss != nil {
		t.Errorf("a loss that is no number is told as %v", *n.Loss)
	}
	if _, body, _ := get(t, s.URL+"/", nil); strings.Contains(body, "<script>job") {
		t.Error("the name of the job is markup")
	}
}

// TestMetrics reads the page as Prometheus does and compares with the table.
func TestMetrics(t *testing.T) {
	f := &figures{}
	f.set(123456789012)
	l := web.NewLive(web.LiveOptions{Name: "job", Stats: f.get, Budget: 1 << 40})
	l.Step(5, 2.5)
	s := httptest.NewServer(l)
	defer s.Close()
	_, body, header := get(t, s.URL+"/metrics", nil)
	if !strings.HasPrefix(header.Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Errorf("content type %q", header.Get("Content-Type"))
	}
	values := map[string]float64{}
	for _, m := range regexp.MustCompile(`(?m)^# HELP (\w+) .+\n# TYPE (\w+) (gauge|counter)\n(\w+) (\S+)$`).FindAllStringSubmatch(body, -1) {
		if m[1] != m[2] || m[1] != m[4] || (m[3] == "counter") != strings.HasSuffix(m[1], "_total") {
			t.Errorf("%q", m[0])
		}
		v, err := strconv.ParseFloat(m[5], 64)
		if err != nil {
			t.Error(err)
		}
		values[m[1]] = v
	}
	if 3*len(values) != strings.Count(body, "\n") {
		t.Errorf("%d metrics in %d lines", len(values), strings.Count(body, "\n"))
	}
	for _, row := range f.get().Table() {
		if v, ok := values["headroom_"+row.Name]; !ok || v != float64(row.Value) {
			t.Errorf("headroom_%s is %v, want %d", row.Name, v, row.Value)
		}
	}
	if values["headroom_train_loss"] != 2.5 || values["headroom_train_steps_total"] != 5 || values["headroom_budget_bytes"] != 1<<40 {
		t.Errorf("the job's own figures: %v", values)
	}
}

func TestDeviceProfile(t *testing.T) {
	var fails bool
	snapshot := func() (*trace.Snapshot, error) {
		if fails {
			return nil, errors.New("the job is closing")
		}
		return newJob(500, "/m.py", false), nil
	}
	f := &figures{}
	s := httptest.NewServer(web.NewLive(web.LiveOptions{Name: "job", Stats: f.get, Snapshot: snapshot}))
	defer s.Close()
	_, body, _ := get(t, s.URL+"/debug/pprof/device", nil)
	p, err := profile.Parse(bytes.NewReader([]byte(body)))
	if err != nil || len(p.Sample) == 0 || p.DefaultSampleType != "inuse_space" {
		t.Fatalf("profile: %v", err)
	}
	fails = true
	if status, body, _ := get(t, s.URL+"/debug/pprof/device", nil); status != 503 || !strings.Contains(body, "closing") {
		t.Errorf("a failing job: %d %s", status, body)
	}
	without := httptest.NewServer(web.NewLive(web.LiveOptions{Name: "job", Stats: f.get}))
	defer without.Close()
	if status, _, _ := get(t, without.URL+"/debug/pprof/device", nil); status != 404 {
		t.Errorf("a job without a record: status %d", status)
	}
	if status, body, _ := get(t, without.URL+"/debug/pprof/heap?debug=1", nil); status != 200 || !strings.Contains(body, "heap profile") {
		t.Errorf("the heap: %d", status)
	}
}

// TestLiveInUse tells, samples and asks at once, for the race detector.
func TestLiveInUse(t *testing.T) {
	f := &figures{}
	l := web.NewLive(web.LiveOptions{Name: "job", Stats: f.get, Every: time.Millisecond})
	s := httptest.NewServer(l)
	defer s.Close()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { l.Run(ctx) })
	wg.Go(func() {
		for i := range 300 {
			f.set(uint64(i))
			l.Step(i, 1)
			l.Event("something")
		}
	})
	for range 20 {
		for _, path := range []string{"/api/live", "/api/samples?to=9&width=9", "/metrics"} {
			if status, _, _ := get(t, s.URL+path, nil); status != 200 {
				t.Errorf("%s: status %d", path, status)
			}
		}
	}
	cancel()
	wg.Wait()
}

// BenchmarkStep is what a job pays for each step.
func BenchmarkStep(b *testing.B) {
	l := web.NewLive(web.LiveOptions{Name: "job", Stats: (&figures{}).get})
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		l.Step(i, 1.5)
	}
}

// BenchmarkSample is what a sample costs, a few times a second.
func BenchmarkSample(b *testing.B) {
	l := web.NewLive(web.LiveOptions{Name: "job", Stats: (&figures{}).get})
	b.ReportAllocs()
	for b.Loop() {
		l.Sample()
	}
}
