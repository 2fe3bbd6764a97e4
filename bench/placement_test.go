package bench

import (
	"compress/gzip"
	"context"
	"encoding/csv"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headroom-go/headroom/internal/placement"
)

var (
	placementData = flag.String("placement-data", "", "folder with minimalloc/*.CAPACITY.csv and lifetimes/*.csv.gz")
	placementTime = flag.Duration("placement-time", time.Minute, "time to lower the peaks without a capacity")
)

// placementSeeds is how often each instance is solved.
const placementSeeds = 10

// BenchmarkPlacement solves minimalloc's instances at the capacity in their
// names and training steps without one, each with ten seeds, and reports seconds
// of processor time (run it with -benchtime 1x -cpu 1). The peaks of D and J are
// then lowered for a while.
func BenchmarkPlacement(b *testing.B) {
	hard, steps := instances(b, "minimalloc/*.csv"), instances(b, "lifetimes/*.csv.gz")
	for _, f := range hard {
		capacity, err := strconv.ParseUint(strings.Split(filepath.Base(f), ".")[1], 10, 64)
		if err != nil {
			b.Fatalf("%s: the name holds no capacity: %v", f, err)
		}
		b.Run(instanceName(f)+"/capacity", func(b *testing.B) { placeAll(b, f, capacity) })
	}
	for _, f := range steps {
		b.Run(instanceName(f), func(b *testing.B) { placeAll(b, f, 0) })
	}
	for _, f := range hard {
		if n := instanceName(f); n == "D" || n == "J" {
			b.Run(n+"/peak", func(b *testing.B) { lowerPeak(b, f) })
		}
	}
}

// placeAll reports the median and the worst time over the seeds; without a
// capacity the plans must be at their bound.
func placeAll(b *testing.B, file string, capacity uint64) {
	bs := lifetimes(b, file)
	for b.Loop() {
		var took []float64
		for seed := range uint64(placementSeeds) {
			ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
			start := userSeconds(b)
			p, err := placement.Solve(ctx, bs, placement.Options{Capacity: capacity, Seed: seed})
			took = append(took, userSeconds(b)-start)
			cancel()
			if err == nil {
				err = placement.Validate(bs, p)
			}
			if err != nil {
				b.Fatal(err)
			}
			if capacity == 0 && p.Peak != p.Bound {
				b.Errorf("seed %d: the peak of %d is above the bound of %d", seed, p.Peak, p.Bound)
			}
		}
		slices.Sort(took)
		b.ReportMetric(took[len(took)/2], "median-s")
		b.ReportMetric(took[len(took)-1], "worst-s")
	}
}

// lowerPeak reports the lowest peak found in the time, in bytes, and its bound.
func lowerPeak(b *testing.B, file string) {
	bs := lifetimes(b, file)
	for b.Loop() {
		ctx, cancel := context.WithTimeout(b.Context(), *placementTime)
		p, err := placement.Solve(ctx, bs, placement.Options{})
		cancel()
		if err == nil {
			err = placement.Validate(bs, p)
		}
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(p.Peak), "peak-B")
		b.ReportMetric(float64(p.Bound), "bound-B")
	}
}

func instances(b *testing.B, pattern string) []string {
	if *placementData == "" {
		b.Skip("no -placement-data")
	}
	files, err := filepath.Glob(filepath.Join(*placementData, pattern))
	if err != nil || len(files) == 0 {
		b.Fatalf("%s has no %s (%v)", *placementData, pattern, err)
	}
	return files
}

func instanceName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".")
	return name
}

// lifetimes reads a table of id, lower, upper, size.
func lifetimes(b *testing.B, file string) []placement.Buffer {
	f, err := os.Open(file)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	var r io.Reader = f
	if strings.HasSuffix(file, ".gz") {
		if r, err = gzip.NewReader(f); err != nil {
			b.Fatal(err)
		}
	}
	rows, err := csv.NewReader(r).ReadAll()
	if err != nil {
		b.Fatal(err)
	}
	var bs []placement.Buffer
	for _, row := range rows[1:] {
		lower, err1 := strconv.Atoi(row[1])
		upper, err2 := strconv.Atoi(row[2])
		size, err3 := strconv.ParseUint(row[3], 10, 64)
		if err1 != nil || err2 != nil || err3 != nil {
			b.Fatalf("%s: row %q", file, row)
		}
		bs = append(bs, placement.Buffer{Lower: lower, Upper: upper, Size: size})
	}
	return bs
}

// userSeconds is the processor time spent by the program so far.
func userSeconds(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Sec) + float64(u.Utime.Usec)/1e6
}
