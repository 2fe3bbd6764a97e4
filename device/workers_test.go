package device

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"
)

// chunks calls For and returns each chunk's [lo, hi) with the times it came.
func chunks(w *Workers, n, grain int) map[[2]int]int {
	var mu sync.Mutex
	got := map[[2]int]int{}
	w.For(n, grain, func(lo, hi int) {
		mu.Lock()
		got[[2]int{lo, hi}]++
		mu.Unlock()
	})
	return got
}

// TestForChunks compares the chunks with those of a plain loop, for pools of
// all sizes.
func TestForChunks(t *testing.T) {
	for _, threads := range []int{1, 2, 5, 16} {
		w := NewWorkers(threads)
		for _, n := range []int{-1, 0, 1, 7, 64, 1000} {
			for _, grain := range []int{1, 3, 64, 999, 1000, math.MaxInt} {
				want := map[[2]int]int{}
				for lo := 0; lo < n; lo += min(grain, n) {
					want[[2]int{lo, lo + min(grain, n-lo)}] = 1
				}
				if got := chunks(w, n, grain); fmt.Sprint(got) != fmt.Sprint(want) {
					t.Fatalf("For(%d, %d) with %d threads ran %v, want %v", n, grain, threads, got, want)
				}
			}
		}
		if w.N() != threads {
			t.Fatalf("N is %d, want %d", w.N(), threads)
		}
		w.Close()
		w.Close()
	}
}

// TestForShares waits in each of n chunks for all others to have begun, which
// only ends if n threads take part.
func TestForShares(t *testing.T) {
	const n = 4
	w := NewWorkers(n)
	defer w.Close()
	for range 20 {
		var begun sync.WaitGroup
		begun.Add(n)
		w.For(n, 1, func(lo, hi int) {
			begun.Done()
			begun.Wait()
		})
	}
}

// TestForNests runs loops within loops from several goroutines at once.
func TestForNests(t *testing.T) {
	for _, threads := range []int{1, 2, 7} {
		w := NewWorkers(threads)
		var sum atomic.Int64
		var callers sync.WaitGroup
		for range 4 {
			callers.Go(func() {
				w.For(10, 1, func(lo, _ int) {
					w.For(10, 3, func(_, _ int) {
						w.For(100, 7, func(lo, hi int) { sum.Add(int64(hi - lo)) })
					})
				})
			})
		}
		callers.Wait()
		if want := int64(4 * 10 * 4 * 100); sum.Load() != want {
			t.Fatalf("%d threads ran %d indices, want %d", threads, sum.Load(), want)
		}
		w.Close()
	}
}

// caught runs f and returns what it panicked with.
func caught(f func()) (value any) {
	defer func() { value = recover() }()
	f()
	return nil
}

func TestForPanics(t *testing.T) {
	failure := errors.New("failure")
	for _, threads := range []int{1, 2, 5} {
		w := NewWorkers(threads)
		for _, n := range []int{1, 3, 200} {
			for _, at := range []int{0, n - 1} {
				p, ok := caught(func() {
					w.For(n, 1, func(outer, _ int) {
						w.For(n, 1, func(inner, _ int) {
							if outer == at && inner == at {
								panic(failure)
							}
						})
					})
				}).(*Panic)
				if !ok || !errors.Is(p, failure) || !strings.Contains(string(p.Stack), "TestForPanics") {
					t.Fatalf("%d threads, chunk %d of %d: panicked with %v", threads, at, n, p)
				}
			}
		}
		if got := len(chunks(w, 100, 1)); got != 100 {
			t.Fatalf("after panics, a loop of 100 chunks ran %d", got)
		}
		w.Close()
	}
}

// TestForStops lets the first chunk panic: with one thread no other may run.
func TestForStops(t *testing.T) {
	w := NewWorkers(1)
	ran := 0
	caught(func() { w.For(10, 1, func(lo, hi int) { ran++; panic("stop") }) })
	if ran != 1 {
		t.Fatalf("%d chunks ran", ran)
	}
}

func TestWorkersMisuse(t *testing.T) {
	w := NewWorkers(2)
	for what, f := range map[string]func(){
		"NewWorkers(0)": func() { NewWorkers(0) },
		"grain of 0":    func() { w.For(1, 0, func(lo, hi int) {}) },
		"Release":       func() { w.Release(make([]float32, 3)) },
	} {
		if v := caught(f); v == nil || !strings.Contains(v.(string), what) {
			t.Errorf("%s: panicked with %v", what, v)
		}
	}
	w.Close()
	if v := caught(func() { w.For(2, 1, func(lo, hi int) {}) }); v == nil {
		t.Error("For on closed workers did not panic")
	}
}

// TestWorkersEnd counts goroutines: Close leaves none, and calls of For start none.
func TestWorkersEnd(t *testing.T) {
	before := runtime.NumGoroutine()
	w := NewWorkers(6)
	for range 100 {
		w.For(100, 1, func(lo, hi int) {})
		if n := runtime.NumGoroutine(); n > before+5 {
			t.Fatalf("%d goroutines more than the pool has", n-before-5)
		}
	}
	w.Close()
	for runtime.NumGoroutine() > before { // ends of goroutines are counted a little later
		runtime.Gosched()
	}
}

func TestScratch(t *testing.T) {
	w := NewWorkers(1)
	sizes := []int{0, 1, 63, 64, 65, 100, 1000, 1025, 70000}
	var lent [][]float32
	for _, n := range sizes {
		buf := w.Scratch(n)
		if len(buf) != n || uintptr(unsafe.Pointer(unsafe.SliceData(buf)))%64 != 0 {
			t.Fatalf("Scratch(%d) has %d numbers at %p", n, len(buf), buf)
		}
		for i := range buf {
			buf[i] = float32(len(lent)) // overlapping buffers would overwrite each other
		}
		lent = append(lent, buf)
	}
	for i, buf := range lent {
		for _, x := range buf {
			if x != float32(i) {
				t.Fatalf("buffer %d holds %g", i, x)
			}
		}
		w.Release(buf)
	}
	bytes := w.ScratchBytes()
	allocs := testing.AllocsPerRun(10, func() {
		for i, n := range sizes {
			lent[i] = w.Scratch(n)
		}
		for _, buf := range lent {
			w.Release(buf)
		}
	})
	if allocs != 0 || w.ScratchBytes() != bytes {
		t.Errorf("using buffers again makes %g allocations; %d bytes before, %d after", allocs, bytes, w.ScratchBytes())
	}
}

func TestScratchSize(t *testing.T) {
	for n := range 20000 {
		size := scratchSize(n)
		if size < n || size%16 != 0 || scratchSize(size) != size || (n > 64 && size*4 >= n*5) {
			t.Fatalf("scratchSize(%d) = %d", n, size)
		}
	}
}

func BenchmarkFor(b *testing.B) {
	for _, threads := range []int{1, 2} {
		for _, chunks := range []int{2, 64} {
			b.Run(fmt.Sprintf("threads=%d/chunks=%d", threads, chunks), func(b *testing.B) {
				w := NewWorkers(threads)
				defer w.Close()
				b.ReportAllocs()
				for b.Loop() {
					w.For(chunks, 1, func(lo, hi int) {})
				}
			})
		}
	}
}
