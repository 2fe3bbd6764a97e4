package data

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// counted is a source whose sample i is i·factor, in the given number of bytes.
type counted struct {
	n, bytes int
	factor   uint64
	read     func(i int) error // called at each read, if there is one
}

func (c counted) Len() int     { return c.n }
func (c counted) Shape() []int { return []int{c.bytes / 8} }
func (c counted) DType() DType { return Uint64 }

func (c counted) Read(i int, dst []byte) error {
	checkWhole(c, i, dst)
	if c.read != nil {
		if err := c.read(i); err != nil {
			return err
		}
	}
	for b := dst; len(b) > 0; b = b[8:] {
		binary.LittleEndian.PutUint64(b, uint64(i)*c.factor)
	}
	return nil
}

// ends fails the test if goroutines are left when it is over.
func ends(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		for i := 0; runtime.NumGoroutine() > before; i++ {
			if i == 1000 {
				t.Errorf("%d goroutines, before there were %d", runtime.NumGoroutine(), before)
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
}

func newTestLoader(t testing.TB, sources []Source, o LoaderOptions) *Loader {
	t.Helper()
	l, err := NewLoader(t.Context(), sources, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// drain takes batches, at most so many, checks them and lists their samples.
func drain(t testing.TB, l *Loader, batches int) (samples [][]int) {
	t.Helper()
	for range batches {
		b, err := l.Next()
		if err == io.EOF {
			return samples
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(b.Samples) != b.Len || len(b.Fields) != len(l.sources) {
			t.Fatalf("%d samples, length %d, %d fields", len(b.Samples), b.Len, len(b.Fields))
		}
		for f, s := range l.sources {
			c := s.(counted)
			if len(b.Fields[f]) != b.Len*c.bytes {
				t.Fatalf("field %d has %d bytes for %d samples", f, len(b.Fields[f]), b.Len)
			}
			for k := range b.Len * c.bytes / 8 {
				if got, want := binary.LittleEndian.Uint64(b.Fields[f][8*k:]), uint64(b.Samples[k*8/c.bytes])*c.factor; got != want {
					t.Fatalf("field %d, number %d of samples %v: %d, want %d", f, k, b.Samples, got, want)
				}
			}
		}
		samples = append(samples, slices.Clone(b.Samples))
		b.Release()
	}
	return samples
}

// slowOrder is the samples of some epochs, from the definition of Order.
func slowOrder(o Order, epochs int) (samples []int) {
	for e := range uint64(epochs) {
		permutation := make([]int, o.Samples)
		for i := range permutation {
			permutation[i] = Order{Samples: o.Samples, Shuffle: o.Shuffle, Seed: o.Seed, Ranks: 1}.Epoch(e)(i)
		}
		for k := range o.Samples / o.Ranks {
			samples = append(samples, permutation[k*o.Ranks+o.Rank])
		}
	}
	return samples
}

// TestLoader compares what loaders of many kinds give with the definition.
func TestLoader(t *testing.T) {
	ends(t)
	for n := 1; n < 30; n += 4 {
		for _, batch := range []int{1, 3, 8, 40} {
			for _, ranks := range []int{1, 3} {
				if n < ranks {
					continue
				}
				for _, unordered := range []bool{false, true} {
					o := LoaderOptions{Batch: batch, Epochs: 3, Workers: 1 + n%4, Prefetch: 1 + n%3, Shuffle: n%8 != 1, Seed: uint64(n), Rank: n % ranks, Ranks: ranks, Unordered: unordered}
					l := newTestLoader(t, []Source{counted{n, 8, 1, nil}, counted{n, 24, 5, nil}}, o)
					got := drain(t, l, math.MaxInt)
					want := slices.Collect(slices.Chunk(slowOrder(l.order, 3), batch))
					if unordered {
						slices.SortFunc(got, slices.Compare)
						slices.SortFunc(want, slices.Compare)
					}
					if fmt.Sprint(got) != fmt.Sprint(want) {
						t.Fatalf("%+v with %d samples: %v, want %v", o, n, got, want)
					}
					if _, err := l.Next(); err != io.EOF {
						t.Fatalf("after the end: %v", err)
					}
					if got, want := l.State(), (Place{Epoch: 3}); got != want {
						t.Fatalf("state at the end %v, want %v", got, want)
					}
					l.work.Wait() // the workers end by themselves
					l.Close()
				}
			}
		}
	}
}

// TestOrdered: the first batch gets ready last, and comes first.
func TestOrdered(t *testing.T) {
	ends(t)
	third := make(chan struct{})
	s := counted{8, 8, 1, func(i int) error {
		switch i {
		case 1:
			<-third
		case 5:
			close(third)
		}
		return nil
	}}
	l := newTestLoader(t, []Source{s}, LoaderOptions{Batch: 2, Epochs: 1, Workers: 3, Prefetch: 3})
	if got := fmt.Sprint(drain(t, l, math.MaxInt)); got != "[[0 1] [2 3] [4 5] [6 7]]" {
		t.Errorf("got %v", got)
	}
}

// TestRanks: in an epoch the ranks' samples are disjoint, equally many, and all
// but a few; in which the shuffles of epochs and seeds differ.
func TestRanks(t *testing.T) {
	for _, shuffle := range []bool{false, true} {
		for n := 1; n < 60; n += 3 {
			for ranks := 1; ranks <= min(n, 9); ranks++ {
				seen := map[int]bool{}
				for r := range ranks {
					o := Order{n, shuffle, 7, r, ranks}
					at := o.Epoch(3)
					for i := range o.Len() {
						if s := at(i); s < 0 || s >= n || seen[s] {
							t.Fatalf("%+v: sample %d at %d, seen before: %v", o, s, i, seen[s])
						}
						seen[at(i)] = true
					}
				}
				if len(seen) != n/ranks*ranks {
					t.Errorf("%d samples, %d ranks: %d are given out", n, ranks, len(seen))
				}
			}
		}
	}
	orders := map[string]bool{}
	for seed := range uint64(10) {
		for epoch := range uint64(10) {
			orders[fmt.Sprint(func() (s []int) {
				at := Order{20, true, seed, 0, 1}.Epoch(epoch)
				for i := range 20 {
					s = append(s, at(i))
				}
				return s
			}())] = true
		}
	}
	if len(orders) != 100 {
		t.Errorf("%d orders of 100", len(orders))
	}
	if s := (Order{math.MaxInt, true, 1, 0, 1}).Epoch(0)(math.MaxInt - 1); s < 0 {
		t.Errorf("sample %d of MaxInt", s)
	}
}

// TestLoaderResume stops after every number of batches and goes on in a new
// loader, with other workers, from the state in JSON.
func TestLoaderResume(t *testing.T) {
	ends(t)
	sources := []Source{counted{11, 8, 1, nil}}
	o := LoaderOptions{Batch: 4, Epochs: 3, Workers: 2, Prefetch: 2, Shuffle: true, Seed: 9}
	whole := slices.Concat(drain(t, newTestLoader(t, sources, o), math.MaxInt)...)
	for stop := range 10 {
		l := newTestLoader(t, sources, o)
		drain(t, l, stop)
		text, err := json.Marshal(l.State())
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		next := o
		if err := json.Unmarshal(text, &next.Start); err != nil {
			t.Fatal(err)
		}
		next.Workers, next.Prefetch = 1+stop%3, 1+stop%4
		if got, want := slices.Concat(drain(t, newTestLoader(t, sources, next), math.MaxInt)...), whole[min(4*stop, 33):]; !slices.Equal(got, want) {
			t.Errorf("after %d batches, at %s: %v, want %v", stop, text, got, want)
		}
	}
}

// TestUnorderedResume: no sample is lost, and few come again.
func TestUnorderedResume(t *testing.T) {
	ends(t)
	const prefetch = 3
	var block atomic.Bool
	block.Store(true)
	gate := make(chan struct{})
	slow := counted{40, 8, 1, func(i int) error {
		if i == 4 && block.Load() { // the third batch waits
			<-gate
		}
		return nil
	}}
	o := LoaderOptions{Batch: 2, Epochs: 1, Workers: 3, Prefetch: prefetch, Unordered: true}
	l := newTestLoader(t, []Source{slow}, o)
	got := slices.Concat(drain(t, l, 5)...)
	if slices.Contains(got, 4) {
		t.Fatalf("the batch that waits was given out: %v", got)
	}
	missing := 0 // the first sample not given out: at most 4, less where a worker of an earlier batch came late
	for slices.Contains(got, missing) {
		missing++
	}
	o.Start = l.State()
	if want := (Place{0, missing}); o.Start != want {
		t.Errorf("state %v, want %v", o.Start, want)
	}
	block.Store(false)
	close(gate)
	l.Close()
	rest := slices.Concat(drain(t, newTestLoader(t, []Source{slow}, o), math.MaxInt)...)
	seen := map[int]int{}
	for _, s := range slices.Concat(got, rest) {
		seen[s]++
	}
	if len(seen) != 40 || len(got)+len(rest)-40 > 2*5 {
		t.Errorf("given out %v, then %v", got, rest)
	}
}

// TestEndless goes far beyond one epoch.
func TestEndless(t *testing.T) {
	ends(t)
	l := newTestLoader(t, []Source{counted{5, 8, 1, nil}}, LoaderOptions{Batch: 7, Workers: 2, Prefetch: 3})
	got := slices.Concat(drain(t, l, 30)...)
	for k, s := range got {
		if s != k%5 {
			t.Fatalf("sample %d at %d", s, k)
		}
	}
	if got, want := l.State(), (Place{42, 0}); got != want {
		t.Errorf("state %v, want %v", got, want)
	}
}

// TestSampleError: the batches before come, then the error with its sample, and
// again at each further call.
func TestSampleError(t *testing.T) {
	ends(t)
	broken := errors.New("broken")
	for bad := range 20 {
		bads := counted{20, 8, 1, func(i int) error {
			if i == bad {
				return broken
			}
			return nil
		}}
		l := newTestLoader(t, []Source{counted{20, 16, 2, nil}, bads}, LoaderOptions{Batch: 3, Epochs: 1, Workers: 3, Prefetch: 4})
		if got := slices.Concat(drain(t, l, bad/3)...); len(got) != bad/3*3 {
			t.Fatalf("before sample %d: %v", bad, got)
		}
		for range 2 {
			_, err := l.Next()
			var e *SampleError
			if !errors.As(err, &e) || e.Sample != bad || e.Source != 1 || !errors.Is(err, broken) || !strings.Contains(err.Error(), fmt.Sprintf("sample %d of source 1", bad)) {
				t.Fatalf("sample %d: %v", bad, err)
			}
		}
		if got, want := l.State(), (Place{0, bad / 3 * 3}); got != want {
			t.Errorf("state %v, want %v", got, want)
		}
		l.Close()
	}
}

func TestLoaderIsCancelled(t *testing.T) {
	ends(t)
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	l, err := NewLoader(ctx, []Source{counted{10, 8, 1, nil}}, LoaderOptions{Batch: 2, Workers: 2, Prefetch: 2})
	if err != nil {
		t.Fatal(err)
	}
	drain(t, l, 3)
	cancel(stop)
	for err = nil; err == nil; { // what is ready may still come
		var b *Batch
		if b, err = l.Next(); err == nil {
			b.Release()
		}
	}
	if !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
	l.Close()
}

// TestCloseWhileWaiting closes under a Next that waits for buffers which the
// caller holds.
func TestCloseWhileWaiting(t *testing.T) {
	ends(t)
	l := newTestLoader(t, []Source{counted{10, 8, 1, nil}}, LoaderOptions{Batch: 2, Workers: 2, Prefetch: 1})
	var held []*Batch
	for range 2 {
		b, err := l.Next()
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, b)
	}
	done := make(chan error)
	go func() {
		_, err := l.Next()
		done <- err
	}()
	l.Close()
	if err := <-done; !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
	for _, b := range held {
		b.Release()
	}
	l.Close()
}

// TestBuffers: so many buffers as promised are made, each is freed once, never
// while the caller has it, and what a batch holds stays while others are made.
func TestBuffers(t *testing.T) {
	ends(t)
	made, freed := 0, map[*byte]int{}
	o := LoaderOptions{Batch: 3, Workers: 4, Prefetch: 4, NewBuffer: func(n int) ([]byte, func(), error) {
		made++
		b := make([]byte, n)
		return b, func() { freed[&b[0]]++ }, nil
	}}
	l := newTestLoader(t, []Source{counted{10, 8, 1, nil}, counted{10, 8, 1, nil}}, o)
	first, err := l.Next()
	if err != nil {
		t.Fatal(err)
	}
	before := slices.Clone(first.Fields[1])
	drain(t, l, 50)
	if !bytes.Equal(first.Fields[1], before) {
		t.Error("the content of a batch changed before its release")
	}
	l.Close()
	if made != 5 || len(freed) != 4 || freed[&first.buffer[0]] != 0 {
		t.Errorf("%d buffers made, %d freed while one is held", made, len(freed))
	}
	first.Release()
	l.Close()
	for _, n := range freed {
		if n != 1 {
			t.Errorf("a buffer was freed %d times", n)
		}
	}
	if len(freed) != 5 {
		t.Errorf("%d of 5 buffers freed", len(freed))
	}
	defer func() {
		if recover() == nil {
			t.Error("released twice without a panic")
		}
	}()
	first.Release()
}

// TestBufferFaults lets each allocation fail in turn: those before are freed.
func TestBufferFaults(t *testing.T) {
	ends(t)
	full := errors.New("full")
	for good := range 3 {
		made, freed := 0, 0
		_, err := NewLoader(t.Context(), []Source{counted{10, 8, 1, nil}}, LoaderOptions{Batch: 3, Workers: 1, Prefetch: 2, NewBuffer: func(n int) ([]byte, func(), error) {
			if made == good {
				return nil, nil, full
			}
			made++
			return make([]byte, n), func() { freed++ }, nil
		}})
		if !errors.Is(err, full) || freed != good {
			t.Errorf("allocation %d fails: %v, %d freed", good, err, freed)
		}
	}
}

func TestLoaderRefuses(t *testing.T) {
	ok := LoaderOptions{Batch: 1, Workers: 1, Prefetch: 1}
	ten := counted{10, 8, 1, nil}
	for _, test := range []struct {
		sources []Source
		change  func(*LoaderOptions)
		want    string
	}{
		{nil, func(*LoaderOptions) {}, "without sources"},
		{[]Source{ten, counted{11, 8, 1, nil}}, func(*LoaderOptions) {}, "source 1 has 11"},
		{[]Source{counted{0, 8, 1, nil}}, func(*LoaderOptions) {}, "0 samples"},
		{[]Source{ten}, func(o *LoaderOptions) { o.Batch = 0 }, "batches of 0"},
		{[]Source{ten}, func(o *LoaderOptions) { o.Workers = 0 }, "0 workers"},
		{[]Source{ten}, func(o *LoaderOptions) { o.Prefetch = 0 }, "0 batches ahead"},
		{[]Source{ten}, func(o *LoaderOptions) { o.Epochs = -1 }, "-1 epochs"},
		{[]Source{ten}, func(o *LoaderOptions) { o.Epochs = math.MaxInt }, "too many"},
		{[]Source{ten}, func(o *LoaderOptions) { o.Batch = math.MaxInt }, "too large"},
		{[]Source{ten}, func(o *LoaderOptions) { o.Batch = math.MaxInt / 8 }, "too large"},
		{[]Source{ten}, func(o *LoaderOptions) { o.Rank = 1 }, "rank 1 of 1"},
		{[]Source{ten}, func(o *LoaderOptions) { o.Ranks = 11 }, "11 ranks"},
		{[]Source{ten}, func(o *LoaderOptions) { o.Start.Position = 11 }, "position 11"},
		{[]Source{ten}, func(o *LoaderOptions) { o.Start.Position = -1 }, "position -1"},
	} {
		o := ok
		test.change(&o)
		if _, err := NewLoader(t.Context(), test.sources, o); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got %v, want an error with %q", err, test.want)
		}
	}
}

// TestLoaderAllocates next to nothing: the order of an epoch, not the batches.
func TestLoaderAllocates(t *testing.T) {
	a, err := OpenTokens(tokenFile(t, 1000), Uint16)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	l := newTestLoader(t, []Source{a}, LoaderOptions{Batch: 10, Workers: 1, Prefetch: 2, Shuffle: true})
	defer l.Close()
	if n := testing.AllocsPerRun(100, func() {
		b, err := l.Next()
		if err != nil {
			t.Fatal(err)
		}
		b.Release()
	}); n > 2 {
		t.Errorf("%v allocations a batch", n)
	}
}

func BenchmarkLoader(b *testing.B) {
	a, err := OpenTokens(tokenFile(b, 1<<20), Uint16)
	if err != nil {
		b.Fatal(err)
	}
	defer a.Close()
	w, err := a.Windows(1025, 1024)
	if err != nil {
		b.Fatal(err)
	}
	l := newTestLoader(b, []Source{w}, LoaderOptions{Batch: 8, Workers: 2, Prefetch: 4, Shuffle: true})
	b.SetBytes(8 * 1025 * 2)
	b.ReportAllocs()
	for b.Loop() {
		batch, err := l.Next()
		if err != nil {
			b.Fatal(err)
		}
		batch.Release()
	}
}
