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
	var histories []*inspect.History
	for _, file := range files {
		s, err := trace.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		histories = append(histories, inspect.NewHistory(s, 0))
	}
	for _, policy := range []inspect.Policy{inspect.Headroom, inspect.Planned, inspect.PyTorch} {
		w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintf(w, "%s\treserved/live\tcreates\tmaps\tunmaps\tview maps\twaits\tsyncs\tµs/alloc\tin the 2nd half: creates\tmaps\tview maps\twaits\tsyncs\tµs/alloc\tlast call at\t\n", policy)
		var all ratios
		for i, h := range histories {
			name := strings.TrimSuffix(filepath.Base(files[i]), ".pickle.gz")
			all = append(all, fragmentation(t, w, name, h, policy))
		}
		w.Flush()
		fmt.Printf("%s: %v\n\n", policy, all)
	}
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

// fragmentation writes the line of a trace under a policy and gives its ratio.
func fragmentation(t *testing.T, w *tabwriter.Writer, name string, h *inspect.History, policy inspect.Policy) float64 {
	var half, end alloc.Stats
	last := 0 // event with a call of the driver
	r, err := h.Replay(inspect.Options{Policy: policy, Observe: func(i int, s alloc.Stats) {
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
	ratio := float64(r.PeakReservedBytes) / float64(r.PeakLiveBytes)
	if policy == inspect.PyTorch {
		fmt.Fprintf(w, "%s\t%.5f\t\n", name, ratio)
		return ratio
	}
	fmt.Fprintf(w, "%s\t%.5f\t%d\t%d\t%d\t%d\t%d\t%d\t%.2f\t%d\t%d\t%d\t%d\t%d\t%.2f\t%.1f %%\t\n", name, ratio,
		end.Creates, end.Maps, end.Unmaps, end.ViewMaps, end.Waits, end.Syncs, cost(end)/float64(end.Allocs),
		end.Creates-half.Creates, end.Maps-half.Maps, end.ViewMaps-half.ViewMaps, end.Waits-half.Waits, end.Syncs-half.Syncs,
		(cost(end)-cost(half))/float64(max(1, end.Allocs-half.Allocs)), 100*float64(last)/float64(h.Len()))
	return ratio
}
