package web

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/pprof"
	"sync"
	"time"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/trace"
)

// LiveOptions say what a Live shows.
type LiveOptions struct {
	Name    string             // of the job
	Version string             // of the program, for the foot of the page
	Names   []string           // hosts' names that lead to the server beside addresses and localhost
	Budget  uint64             // bytes that the device has; 0: not told
	Stats   func() alloc.Stats // the allocator's figures: (*alloc.Allocator).Stats; called from several goroutines
	// High gives what was live at the highest moment since its last call:
	// (*alloc.Allocator).TakeHigh. Nil: samples are what Stats tells.
	High func() alloc.High
	// Snapshot gives the memory of this moment for the profile of device
	// memory; nil: there is none. It may wait until the job can be looked at.
	Snapshot func() (*trace.Snapshot, error)
	// Every is the time between two samples; 0: a quarter of a second.
	Every time.Duration
}

// Live shows a job that runs. The job tells it of steps and of what happens;
// what is live it asks the allocator for. Its memory is bounded however long
// the job runs: what lies back gets coarser. All methods may be called from
// several goroutines at once.
type Live struct {
	o       LiveOptions
	handler http.Handler
	begun   time.Time

	mu      sync.Mutex
	samples summary
	times   []int64 // by span of samples: when it begins, which is when the sample before it was taken; microseconds
	last    int64   // when the last sample was taken
	count   int     // of samples so far
	peak    uint64  // PeakLive of the last sample
	top     int64   // most live bytes in a sample, and
	topAt   int     // … its number
	step    int
	loss    float64 // NaN: none yet
	losses  []lossPoint
	every   int // steps between two points of losses
	events  []liveEvent
	told    int // events so far
}

type lossPoint struct {
	Step int     `json:"step"`
	Loss float64 `json:"loss"`
}

type liveEvent struct {
	Time int64  `json:"time"` // microseconds since the job began
	Text string `json:"text"`
}

// What a Live keeps at most.
const (
	maxLiveBins   = 1 << 12
	maxLosses     = 1 << 11
	maxLiveEvents = 500
)

// NewLive gives a Live. It takes samples while Run runs.
func NewLive(o LiveOptions) *Live {
	if o.Every == 0 {
		o.Every = time.Second / 4
	}
	l := &Live{o: o, begun: time.Now(), samples: summary{size: 1}, loss: math.NaN(), every: 1}
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", showPage(page{mode: "live", title: o.Name + " · Headroom", version: o.Version, records: []json.RawMessage{}}))
	mux.HandleFunc("/healthz", healthy)
	mux.HandleFunc("/metrics", l.metrics)
	mux.HandleFunc("/api/live", func(w http.ResponseWriter, r *http.Request) { answer(w, r, l.news(), nil) })
	mux.HandleFunc("/api/samples", l.answerSamples)
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/debug/pprof/device", l.deviceProfile)
	l.handler = guard(o.Names, mux)
	l.Sample()
	return l
}

// ServeHTTP shows the page at /, figures for Prometheus at /metrics, profiles
// at /debug/pprof/, with that of device memory at /debug/pprof/device, and
// «ok» at /healthz.
func (l *Live) ServeHTTP(w http.ResponseWriter, r *http.Request) { l.handler.ServeHTTP(w, r) }

// Run takes samples until ctx ends.
func (l *Live) Run(ctx context.Context) {
	t := time.NewTicker(l.o.Every)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			l.Sample()
		case <-ctx.Done():
			return
		}
	}
}

// Step tells that a step is done, with its loss.
func (l *Live) Step(step int, loss float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.step, l.loss = step, loss
	if math.IsNaN(loss) || math.IsInf(loss, 0) || step%l.every != 0 {
		return
	}
	if len(l.losses) == maxLosses {
		l.every *= 2
		kept := l.losses[:0]
		for _, p := range l.losses {
			if p.Step%l.every == 0 {
				kept = append(kept, p)
			}
		}
		l.losses = kept
	}
	if len(l.losses) < maxLosses && step%l.every == 0 {
		l.losses = append(l.losses, lossPoint{step, loss})
	}
}

// Event tells what else has happened, in a sentence.
func (l *Live) Event(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told++
	if len(l.events) == maxLiveEvents {
		l.events = append(l.events[:0], l.events[1:]...)
	}
	l.events = append(l.events, liveEvent{time.Since(l.begun).Microseconds(), text})
}

// Sample takes a sample now: of the highest moment since the last one or,
// without LiveOptions.High, of this moment, unless the peak has risen.
func (l *Live) Sample() {
	s := l.o.Stats()
	l.mu.Lock()
	defer l.mu.Unlock()
	begins := l.last
	l.last = time.Since(l.begun).Microseconds()
	f := figures{moment: l.count, live: int64(s.Live), reserved: int64(s.Reserved)}
	by := s.LiveByPurpose()
	if s.PeakLive > l.peak && l.count > 0 {
		f.live, by = int64(s.PeakLive), s.PeakByPurpose
		f.reserved = max(f.reserved, f.live)
	}
	l.peak = s.PeakLive
	if l.o.High != nil {
		h := l.o.High()
		f.live, f.reserved, by = int64(h.Live), int64(h.Reserved), h.ByPurpose
	}
	for i, p := range inspect.PurposeOrder() {
		f.parts[byPurpose][i] = int64(by[p])
	}
	if f.live > l.top {
		l.top, l.topAt = f.live, l.count
	}
	if l.count%l.samples.size == 0 {
		l.makeRoom()
	}
	if l.count%l.samples.size == 0 {
		l.samples.bins = append(l.samples.bins, f)
		l.times = append(l.times, begins)
	}
	l.samples.bins[len(l.samples.bins)-1].merge(&f)
	l.count++
}

// makeRoom merges neighbours where all spans are taken.
func (l *Live) makeRoom() {
	bins := l.samples.bins
	if len(bins) < maxLiveBins {
		return
	}
	for i := range maxLiveBins / 2 {
		merged := bins[2*i]
		merged.merge(&bins[2*i+1])
		bins[i], l.times[i] = merged, l.times[2*i]
	}
	l.samples.bins, l.times = bins[:maxLiveBins/2], l.times[:maxLiveBins/2]
	l.samples.size *= 2
}

// answerSamples gives the figures of a view.
func (l *Live) answerSamples(w http.ResponseWriter, r *http.Request) {
	var from, to, width int
	for name, n := range map[string]*int{"from": &from, "to": &to, "width": &width} {
		_, _ = fmt.Sscan(r.FormValue(name), n) // what is no number is 0
	}
	answer(w, r, l.view(from, to, width), nil)
}

func (l *Live) view(from, to, width int) *Samples {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := len(l.samples.bins) - 1
	first := min(max(from/l.samples.size, 0), last)
	end := min(max(to/l.samples.size, first), last)
	names := purposeNames()
	group := max((end-first+1)/min(max(width, 1), maxWidth), 1)
	s := &Samples{Parts: [numSplits][][]int64{make([][]int64, len(names)), {}}}
	for i := first; i <= end; i += group {
		f := l.samples.bins[i]
		for j := i; j <= min(i+group-1, end); j++ {
			f.merge(&l.samples.bins[j])
		}
		s.Moments, s.Times, s.Reserved = append(s.Moments, f.moment), append(s.Times, l.times[i]), append(s.Reserved, f.reserved)
		for p := range names {
			s.Parts[byPurpose][p] = append(s.Parts[byPurpose][p], f.parts[byPurpose][p])
		}
	}
	return s
}

func purposeNames() []string {
	var names []string
	for _, p := range inspect.PurposeOrder() {
		names = append(names, p.String())
	}
	return names
}

// news is what the page asks for again and again.
type news struct {
	Meta       meta              `json:"meta"`
	Step       int               `json:"step"`
	Loss       *float64          `json:"loss"`
	Losses     []lossPoint       `json:"losses"`
	Events     []liveEvent       `json:"events"`
	Figures    map[string]uint64 `json:"figures"`
	Statistics []statistic       `json:"statistics"`
	Budget     uint64            `json:"budget_bytes"`
}

type statistic struct {
	Name  string `json:"name"`
	Doc   string `json:"doc"`
	Value uint64 `json:"value"`
}

func (l *Live) news() news {
	table := l.o.Stats().Table()
	l.mu.Lock()
	defer l.mu.Unlock()
	n := news{Step: l.step, Losses: append([]lossPoint{}, l.losses...), Events: append([]liveEvent{}, l.events...), Figures: map[string]uint64{}, Budget: l.o.Budget}
	if !math.IsNaN(l.loss) && !math.IsInf(l.loss, 0) {
		loss := l.loss
		n.Loss = &loss
	}
	for _, s := range table {
		n.Figures[s.Name] = s.Value
		n.Statistics = append(n.Statistics, statistic{s.Name, s.Doc, s.Value})
	}
	n.Meta = meta{Name: l.o.Name, Events: l.count - 1, Timed: true, Duration: time.Since(l.begun).Microseconds(), Peak: l.topAt,
		Purposes: purposeNames(), Sites: []string{}, Failures: []failure{}, Annotations: []annotation{}, Live: true}
	return n
}

// deviceProfile writes what is live on the device, for go tool pprof.
func (l *Live) deviceProfile(w http.ResponseWriter, _ *http.Request) {
	if l.o.Snapshot == nil {
		http.Error(w, "this job does not record its memory, so there is no profile of it", http.StatusNotFound)
		return
	}
	s, err := l.o.Snapshot()
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", `attachment; filename="device.pb.gz"`)
	h, err := inspect.Worst(s)
	if err == nil {
		err = inspect.WritePprof(w, s, h.Device())
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}
