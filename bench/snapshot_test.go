package bench

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/trace"
)

// snapshot is the file of BenchmarkExplain and BenchmarkRead.
var snapshot = flag.String("snapshot", "", "memory snapshot to measure with: a pickle, which BenchmarkExplain takes compressed by gzip, too")

func snapshotSize(b *testing.B) float64 {
	if *snapshot == "" {
		b.Skip("no -snapshot FILE was given")
	}
	i, err := os.Stat(*snapshot)
	if err != nil {
		b.Fatal(err)
	}
	return float64(i.Size())
}

// load is what a Python program does before it knows anything of a snapshot.
const load = `import gzip, pickle, sys
with open(sys.argv[1], "rb") as f:
    zipped = f.read(2) == b"\x1f\x8b"
with (gzip.open if zipped else open)(sys.argv[1], "rb") as f:
    pickle.load(f)`

// BenchmarkExplain runs the whole of "headroom explain" and Python's bare
// pickle.load of the same file in turn, each in a fresh process.
func BenchmarkExplain(b *testing.B) {
	snapshotSize(b)
	python, err := exec.LookPath("python3")
	if err != nil {
		b.Skip("no python3")
	}
	bin := filepath.Join(b.TempDir(), "headroom")
	build := exec.Command("go", "build", "-o", bin, "./cmd/headroom")
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	var ours, theirs []float64
	for b.Loop() {
		s, _ := runOnce(b, exec.Command(bin, "explain", *snapshot))
		ours = append(ours, s)
		s, _ = runOnce(b, exec.Command(python, "-c", load, *snapshot))
		theirs = append(theirs, s)
	}
	b.ReportMetric(median(ours), "s-explain")
	b.ReportMetric(median(theirs), "s-pickle.load")
	b.ReportMetric(median(ours)/median(theirs), "explain/load")
	b.ReportMetric(0, "ns/op")
}

// readSnapshot is the child process of BenchmarkRead.
func readSnapshot() error {
	s, err := trace.ReadFile(os.Getenv(child))
	if err == nil && s.Cut != nil {
		err = s.Cut
	}
	return err
}

// BenchmarkRead reads the snapshot in a fresh process and reports the peak of
// its resident memory as a multiple of the file's size.
func BenchmarkRead(b *testing.B) {
	size := snapshotSize(b)
	var seconds, resident []float64
	for b.Loop() {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), child+"="+*snapshot)
		s, bytes := runOnce(b, cmd)
		seconds, resident = append(seconds, s), append(resident, bytes)
	}
	b.ReportMetric(size/1e6, "MB-file")
	b.ReportMetric(median(seconds), "s-read")
	b.ReportMetric(median(resident)/size, "maxrss/file")
	b.ReportMetric(0, "ns/op")
}

// runOnce gives the seconds that a process took, and its peak of resident bytes.
func runOnce(b *testing.B, cmd *exec.Cmd) (seconds, resident float64) {
	cmd.Stderr = os.Stderr
	start := time.Now()
	if err := cmd.Run(); err != nil {
		b.Fatalf("%s: %v", cmd, err)
	}
	return time.Since(start).Seconds(), float64(cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss) * 1024
}

func median(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}

// BenchmarkSeek rebuilds the state at random events of a trace of a million,
// with about 10,000 blocks alive at most moments.
func BenchmarkSeek(b *testing.B) {
	h := inspect.NewHistory(longTrace(1_000_000), 0)
	var ms []float64
	for b.Loop() {
		n := rand.IntN(h.Len() + 1)
		start := time.Now()
		h.At(n)
		ms = append(ms, float64(time.Since(start).Microseconds())/1e3)
	}
	b.ReportMetric(median(ms), "ms-median")
	b.ReportMetric(slices.Max(ms), "ms-worst")
	b.ReportMetric(0, "ns/op")
}

// longTrace is a trace of n events: blocks of all sizes come and go in places
// of 1 MiB, twenty of them in a segment.
func longTrace(n int) *trace.Snapshot {
	const base, place, places, perSegment = 1 << 40, 1 << 20, 20_000, 20
	rng := rand.New(rand.NewPCG(1, 2))
	var t trace.Trace
	add := func(a trace.Action, addr, size uint64) {
		t.Append(trace.Entry{Event: trace.Event{Action: a, Addr: addr, Size: size, TimeUS: int64(t.Len())},
			Stack: trace.NewStack([]trace.Frame{{File: "train.py", Line: int(addr/place) % 60, Func: fmt.Sprint(a)}})})
	}
	s := &trace.Snapshot{Traces: []*trace.Trace{&t}}
	held := make([]uint64, places)
	for i := range places / perSegment {
		g := trace.Segment{Addr: base + uint64(i)*perSegment*place, Size: perSegment * place}
		add(trace.SegmentAlloc, g.Addr, g.Size)
		s.Segments = append(s.Segments, g)
	}
	for t.Len() < n {
		i := rng.IntN(places)
		addr := base + uint64(i)*place
		if held[i] == 0 {
			held[i] = 512 << rng.IntN(12)
			add(trace.Alloc, addr, held[i])
			continue
		}
		add(trace.FreeRequested, addr, held[i])
		add(trace.FreeCompleted, addr, held[i])
		held[i] = 0
	}
	for i, size := range held {
		g := &s.Segments[i/perSegment]
		addr := base + uint64(i)*place
		if size > 0 {
			g.Blocks = append(g.Blocks, trace.Block{Addr: addr, Size: size, Requested: size})
		}
		if size < place {
			g.Blocks = append(g.Blocks, trace.Block{Addr: addr + size, Size: place - size, State: trace.Free})
		}
	}
	return s
}
