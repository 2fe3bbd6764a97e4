package bench

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/trace"
)

// traces is the folder of TestFragmentation.
var traces = flag.String("traces", "", "folder of memory snapshots with their history, for TestFragmentation")

// Prices of the driver's calls on an H200, in microseconds for a handle of
// 2 MiB: measured with driver 580 and CUDA 13.0.
const (
	priceCreate  = 26
	priceMap     = 2.5 + 50 // cuMemMap and cuMemSetAccess
	priceViewMap = 42
	priceUnmap   = 25
	priceWait    = 0.4
)

// cost is what the driver's calls of these figures take on an H200.
func cost(s alloc.Stats) float64 {
	return priceCreate*float64(s.Creates) + priceMap*float64(s.Maps) + priceViewMap*float64(s.ViewMaps) +
		priceUnmap*float64(s.Unmaps+s.ViewUnmaps) + priceWait*float64(s.Waits)
}

// TestFragmentation replays traces on the allocator over a null device and
// prints what it reserved for what was live, and what it asked of the driver:
//
//	go test -run Fragmentation -v . -args -traces DIR
func TestFragmentation(t *testing.T) {
	if *traces == "" {
		t.Skip("no -traces DIR was given")
	}
	files, err := filepath.Glob(filepath.Join(*traces, "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "trace\treserved/live\tplanned\tPyTorch\tcreates\tmaps\tunmaps\tview maps\treused\twaits\tsyncs\tµs/alloc\t2nd half: creates\tmaps\tview maps\twaits\tsyncs\tµs/alloc\tlast call at\t")
	var online, planned ratios
	for _, file := range files {
		o, p := fragmentation(t, w, file)
		online, planned = append(online, o), append(planned, p)
	}
	w.Flush()
	fmt.Printf("online: %v\nplanned: %v\n", online, planned)
}

// ratios are those of several traces.
type ratios []float64

func (r ratios) String() string {
	sum := 0.0
	for _, x := range r {
		sum += math.Log(x)
	}
	return fmt.Sprintf("geometric mean %.5f, worst %.5f", math.Exp(sum/float64(len(r))), slices.Max(r))
}

// fragmentation writes the line of a trace and gives its ratios without and
// with a plan.
func fragmentation(t *testing.T, w *tabwriter.Writer, file string) (online, planned float64) {
	s, err := trace.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	h := inspect.NewHistory(s, 0)
	pytorch, err := h.Replay(inspect.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var half, end alloc.Stats
	last := 0 // event with a call of the driver
	r, err := h.Replay(inspect.Options{Policy: inspect.Headroom, Observe: func(i int, s alloc.Stats) {
		if cost(s) > cost(end) || s.Syncs > end.Syncs {
			last = i
		}
		if end = s; i == h.Len()/2 {
			half = s
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := h.Replay(inspect.Options{Policy: inspect.Planned})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(w, "%s\t%.5f\t%.5f\t%.4f\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%.2f\t%d\t%d\t%d\t%d\t%d\t%.2f\t%.1f %%\t\n",
		strings.TrimSuffix(filepath.Base(file), ".pickle.gz"), ratio(r), ratio(p), ratio(pytorch),
		end.Creates, end.Maps, end.Unmaps, end.ViewMaps, end.Reuses, end.Waits, end.Syncs, cost(end)/float64(end.Allocs),
		end.Creates-half.Creates, end.Maps-half.Maps, end.ViewMaps-half.ViewMaps, end.Waits-half.Waits, end.Syncs-half.Syncs,
		(cost(end)-cost(half))/float64(max(1, end.Allocs-half.Allocs)), 100*float64(last)/float64(h.Len()))
	return ratio(r), ratio(p)
}

// ratio is reserved / live at their peaks.
func ratio(r *inspect.Result) float64 { return float64(r.PeakReservedBytes) / float64(r.PeakLiveBytes) }
