package placement

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// optimum is the lowest peak, by putting the buffers in every order on the
// highest top below them. The order of ascending offsets gives the best
// placement, so orders that descend are left out.
func optimum(bs []Buffer) uint64 {
	best, bound := uint64(math.MaxUint64), maxLive(bs)
	offsets, placed := make([]uint64, len(bs)), make([]bool, len(bs))
	var try func(left int, low, peak uint64)
	try = func(left int, low, peak uint64) {
		if left == 0 {
			best = min(best, peak)
		}
		for i, a := range bs {
			if placed[i] || best == bound {
				continue
			}
			offsets[i] = 0
			for j, b := range bs {
				if placed[j] && a.Lower < b.Upper && b.Lower < a.Upper {
					offsets[i] = max(offsets[i], offsets[j]+b.Size)
				}
			}
			if top := max(peak, offsets[i]+a.Size); offsets[i] >= low && top < best {
				placed[i] = true
				try(left-1, offsets[i], top)
				placed[i] = false
			}
		}
	}
	try(len(bs), 0, 0)
	return best
}

// maxLive is the largest sum of sizes live when a buffer begins.
func maxLive(bs []Buffer) uint64 {
	var most uint64
	for _, a := range bs {
		var live uint64
		for _, b := range bs {
			if b.Lower <= a.Lower && a.Lower < b.Upper {
				live += b.Size
			}
		}
		most = max(most, live)
	}
	return most
}

// random makes n buffers within some time and size.
func random(rnd *rand.Rand, n, time, size int) []Buffer {
	bs := make([]Buffer, n)
	for i := range bs {
		a, b := rnd.IntN(time), rnd.IntN(time)
		bs[i] = Buffer{min(a, b), max(a, b) + 1, uint64(rnd.IntN(size + 1))}
	}
	return bs
}

// packed cuts a rectangle of time and memory into n buffers, which fill it: the
// peak can be capacity, and no less.
func packed(rnd *rand.Rand, n, time int, capacity uint64) []Buffer {
	bs := []Buffer{{0, time, capacity}}
	for len(bs) < n {
		i := rnd.IntN(len(bs))
		b := bs[i]
		if cut := b.Lower + 1 + rnd.IntN(b.Upper-b.Lower); rnd.IntN(2) == 0 && cut < b.Upper {
			bs[i].Upper = cut
			bs = append(bs, Buffer{cut, b.Upper, b.Size})
		} else if b.Size > 1 {
			bs[i].Size = 1 + rnd.Uint64N(b.Size-1)
			bs = append(bs, Buffer{b.Lower, b.Upper, b.Size - bs[i].Size})
		}
	}
	rnd.Shuffle(n, func(i, j int) { bs[i], bs[j] = bs[j], bs[i] })
	return bs
}

// full makes about n buffers that are live to the sum of capacity at all times:
// some end together and others of the same sum begin, with no regard to where
// they could lie. The peak is often above capacity.
func full(rnd *rand.Rand, n int, capacity uint64) []Buffer {
	bs, live, free, now := []Buffer{}, []int{}, capacity, 0
	for len(bs) < n {
		for free > 0 {
			s := 1 + rnd.Uint64N(min(free, 1+capacity/3))
			live, free = append(live, len(bs)), free-s
			bs = append(bs, Buffer{now, 0, s})
		}
		now++
		rnd.Shuffle(len(live), func(i, j int) { live[i], live[j] = live[j], live[i] })
		for range 1 + rnd.IntN(2) {
			i := live[0]
			bs[i].Upper, free, live = now, free+bs[i].Size, live[1:]
			if len(live) == 0 {
				break
			}
		}
	}
	for _, i := range live {
		bs[i].Upper = now
	}
	return bs
}

// mustSolve solves and validates.
func mustSolve(t *testing.T, bs []Buffer, o Options) Plan {
	t.Helper()
	p, err := Solve(t.Context(), bs, o)
	if err != nil {
		t.Fatalf("%v\nbuffers %v\noptions %+v", err, bs, o)
	}
	if err := Validate(bs, p); err != nil {
		t.Fatalf("%v\nbuffers %v\noptions %+v\nplan %+v", err, bs, o, p)
	}
	for i, off := range p.Offsets {
		if off%max(o.Align, 1) != 0 {
			t.Fatalf("offset %d of buffer %d isn't a multiple of %d", off, i, o.Align)
		}
	}
	return p
}

func TestOptimumOfSmallInstances(t *testing.T) {
	for seed := range uint64(3000) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		bs := random(rnd, 1+rnd.IntN(8), 2+rnd.IntN(8), 1+rnd.IntN(9))
		want := optimum(bs)
		p := mustSolve(t, bs, Options{Seed: seed})
		if p.Peak != want || p.Bound != want {
			t.Fatalf("seed %d: peak %d, bound %d, want %d\nbuffers %v", seed, p.Peak, p.Bound, want, bs)
		}
	}
}

// TestProver leaves the dives out, which would solve most small instances.
func TestProver(t *testing.T) {
	known := conflicts(t)
	gaps := 0
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		bs := varied(rnd, known[rnd.IntN(len(known))].bs)
		if len(bs) > 9 {
			continue // the oracle takes long
		}
		want := optimum(bs)
		if got := prove(t, rnd, bs); got != want {
			t.Fatalf("seed %d: %d, want %d\nbuffers %v", seed, got, want, bs)
		}
		if want > LowerBound(bs) {
			gaps++
		}
	}
	if gaps < 15 {
		t.Errorf("only %d of the instances are above their lower bound: the test proves little", gaps)
	}
}

// prove raises the ceiling until the prover finds a placement; below, each of its
// lines must refute it.
func prove(t *testing.T, rnd *rand.Rand, bs []Buffer) uint64 {
	t.Helper()
	pr := newProblem(bs, 1)
	var top uint64
	for _, p := range pr.parts {
		r := newProver(p, rnd, func() bool { return false })
		ceiling := p.bound
		for line := 0; ; {
			v := r.step(ceiling)
			if v == found {
				break
			}
			if v == stopped {
				t.Fatalf("stopped after %d nodes", r.nodes)
			}
			if line++; line == len(r.lines) {
				ceiling, line = ceiling+1, 0
			}
		}
		top = max(top, uint64(p.top(r.support))*pr.unit)
	}
	return top
}

// varied changes a buffer or two.
func varied(rnd *rand.Rand, bs []Buffer) []Buffer {
	bs = slices.Clone(bs)
	for range rnd.IntN(3) {
		b := &bs[rnd.IntN(len(bs))]
		switch rnd.IntN(4) {
		case 0:
			b.Size++
		case 1:
			b.Size = max(b.Size, 2) - 1
		case 2:
			b.Upper++
		case 3:
			b.Lower--
		}
	}
	rnd.Shuffle(len(bs), func(i, j int) { bs[i], bs[j] = bs[j], bs[i] })
	return bs
}

// conflict is a line of testdata/conflicts.txt.
type conflict struct {
	capacity uint64
	bs       []Buffer
}

func conflicts(t *testing.T) []conflict {
	t.Helper()
	text, err := os.ReadFile("testdata/conflicts.txt")
	if err != nil {
		t.Fatal(err)
	}
	var out []conflict
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		var c conflict
		head, list, _ := strings.Cut(line, ":")
		if _, err := fmt.Sscan(head, &c.capacity); err != nil {
			t.Fatal(err)
		}
		for word := range strings.FieldsSeq(list) {
			var b Buffer
			if _, err := fmt.Sscanf(word, "%d-%d:%d", &b.Lower, &b.Upper, &b.Size); err != nil {
				t.Fatalf("%q: %v", word, err)
			}
			c.bs = append(c.bs, b)
		}
		out = append(out, c)
	}
	return out
}

func TestKnownConflicts(t *testing.T) {
	for _, c := range conflicts(t) {
		if live := maxLive(c.bs); live > c.capacity {
			t.Errorf("%v: %d are live", c.bs, live)
		}
		explained(t, c.bs, c.capacity)
		extra := append(slices.Clone(c.bs), Buffer{-9, -3, 1}, Buffer{20, 30, 2})
		_, err := Solve(t.Context(), extra, Options{Capacity: c.capacity})
		var e *ConflictError
		if !errors.As(err, &e) || !e.Minimal || len(e.Buffers) > len(c.bs) {
			t.Errorf("%v, with others: %v (%+v)", c.bs, err, e)
		}
	}
}

func TestPackedRectangles(t *testing.T) {
	for seed := range uint64(12) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		bs := packed(rnd, 20+8*int(seed), 100, 1000)
		if p := mustSolve(t, bs, Options{Seed: seed, Capacity: 1000}); p.Peak != 1000 || p.Bound != 1000 {
			t.Errorf("seed %d: peak %d, bound %d, want 1000", seed, p.Peak, p.Bound)
		}
	}
}

func TestCapacity(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		bs := full(rnd, 6, 4+rnd.Uint64N(12))
		if len(bs) > 9 {
			continue // too many for the oracle
		}
		want := optimum(bs)
		if p := mustSolve(t, bs, Options{Capacity: want}); p.Peak != want {
			t.Fatalf("seed %d: peak %d at capacity %d", seed, p.Peak, want)
		}
		mustSolve(t, bs, Options{Capacity: want + 3})
		explained(t, bs, want-1)
	}
}

// explained checks that the capacity is reported as too small, for a set of
// buffers that is so by itself and is minimal.
func explained(t *testing.T, bs []Buffer, capacity uint64) {
	t.Helper()
	p, err := Solve(t.Context(), bs, Options{Capacity: capacity})
	var e *ConflictError
	if !errors.As(err, &e) || !e.Proved || e.Capacity != capacity {
		t.Fatalf("capacity %d: %v (%+v)\nbuffers %v", capacity, err, e, bs)
	}
	if err := Validate(bs, p); err != nil {
		t.Fatal(err)
	}
	var set []Buffer
	for _, i := range e.Buffers {
		set = append(set, bs[i])
	}
	if optimum(set) <= capacity {
		t.Fatalf("buffers %v fit into %d: no conflict", set, capacity)
	}
	if e.Live {
		for _, b := range set {
			if e.At < b.Lower || b.Upper <= e.At {
				t.Fatalf("buffer %v isn't live at %d", b, e.At)
			}
		}
		return
	}
	if !e.Minimal {
		t.Fatalf("%v isn't said to be minimal", set)
	}
	for i := range set {
		if optimum(slices.Delete(slices.Clone(set), i, i+1)) > capacity {
			t.Fatalf("%v is a conflict without buffer %d", set, i)
		}
	}
}

func TestAlign(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		bs := random(rnd, 1+rnd.IntN(7), 6, 40)
		align := uint64(1) << rnd.IntN(5)
		rounded := slices.Clone(bs)
		for i := range rounded {
			rounded[i].Size = (rounded[i].Size + align - 1) / align * align
		}
		want := optimum(rounded)
		p := mustSolve(t, bs, Options{Align: align})
		if got := (p.Peak + align - 1) / align * align; got != want {
			t.Fatalf("seed %d: align %d: peak %d, want %d rounded up", seed, align, p.Peak, want)
		}
		if want > 0 {
			mustSolve(t, bs, Options{Align: align, Capacity: want})
		}
	}
}

// TestSameSeedSamePlan uses an instance that needs restarts.
func TestSameSeedSamePlan(t *testing.T) {
	bs := full(rand.New(rand.NewPCG(1, 200)), 200, 1024)
	o := Options{Capacity: 1060, Seed: 7}
	a, b := mustSolve(t, bs, o), mustSolve(t, bs, o)
	if !slices.Equal(a.Offsets, b.Offsets) {
		t.Errorf("two runs differ:\n%v\n%v", a, b)
	}
	o.Seed = 8
	if c := mustSolve(t, bs, o); slices.Equal(a.Offsets, c.Offsets) {
		t.Errorf("seeds 7 and 8 give the same plan of %d buffers: the seed isn't used", len(bs))
	}
}

func TestManyEqualBuffers(t *testing.T) {
	var bs []Buffer
	for i := range 3000 {
		bs = append(bs, Buffer{i / 3, i/3 + 2, 512})
	}
	if p := mustSolve(t, bs, Options{}); p.Peak != 6*512 {
		t.Errorf("peak %d", p.Peak)
	}
}

func TestNothingToPlace(t *testing.T) {
	for _, bs := range [][]Buffer{nil, {{1, 2, 0}}, {{1, 2, 0}, {0, 9, 0}}} {
		if p := mustSolve(t, bs, Options{Capacity: 1}); p.Peak != 0 || p.Bound != 0 {
			t.Errorf("%v: %+v", bs, p)
		}
	}
}

// TestContext ends the context before, and soon after, the solver begins.
func TestContext(t *testing.T) {
	bs := random(rand.New(rand.NewPCG(1, 7)), 400, 150, 1000)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	p, err := Solve(ended, bs, Options{})
	if err != nil || Validate(bs, p) != nil {
		t.Errorf("ended: %v, %v", err, Validate(bs, p))
	}
	p, err = Solve(ended, bs, Options{Capacity: LowerBound(bs)})
	var e *ConflictError
	if !errors.As(err, &e) || e.Proved || len(e.Buffers) == 0 || e.Need != p.Peak {
		t.Errorf("ended, with a capacity: %v, %+v", err, e)
	}
	for _, i := range e.Buffers {
		if p.Offsets[i]+bs[i].Size <= e.Capacity {
			t.Errorf("buffer %d is within the capacity", i)
		}
	}
	soon, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	q, err := Solve(soon, bs, Options{})
	if err != nil || Validate(bs, q) != nil {
		t.Errorf("20 ms: %v, %v", err, Validate(bs, q))
	}
}

// TestEveryPollCanBeTheLast ends the search after any number of polls.
func TestEveryPollCanBeTheLast(t *testing.T) {
	bs := packed(rand.New(rand.NewPCG(4, 8)), 70, 100, 1000)
	p := newProblem(bs, 1).parts[0]
	for polls := range 20 {
		r := newProver(p, rand.New(rand.NewPCG(1, 1)), func() bool { polls--; return polls < 0 })
		switch v := r.step(p.bound); {
		case v == refuted:
			t.Fatalf("a packed rectangle was refuted when stopped after some polls")
		case v == found && p.top(r.support) != p.bound:
			t.Fatalf("found %d above %d", p.top(r.support), p.bound)
		}
	}
}

func TestBadInput(t *testing.T) {
	for _, c := range []struct {
		bs   []Buffer
		o    Options
		want string
	}{
		{[]Buffer{{0, 1, 1}, {5, 5, 8}}, Options{}, "buffer 1 is live during [5, 5)"},
		{[]Buffer{{5, 4, 8}}, Options{}, "buffer 0 is live during [5, 4)"},
		{nil, Options{Align: 12}, "align is 12"},
		{[]Buffer{{0, 1, 1}, {0, 1, 1 << 62}}, Options{}, "buffers 0 to 1 sum to 2^62 or more"},
		{[]Buffer{{0, 1, math.MaxUint64}}, Options{Align: 512}, "buffers 0 to 0 sum to 2^62 or more"},
	} {
		_, err := Solve(t.Context(), c.bs, c.o)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v %+v: %v, want %q", c.bs, c.o, err, c.want)
		}
	}
}

func TestValidate(t *testing.T) {
	bs := []Buffer{{0, 4, 10}, {3, 6, 5}, {4, 8, 10}, {0, 9, 0}}
	good := Plan{Offsets: []uint64{0, 10, 0, 3}, Peak: 15, Bound: 15}
	if err := Validate(bs, good); err != nil {
		t.Error(err)
	}
	for want, spoil := range map[string]func(*Plan){
		"has 3 offsets for 4 buffers":    func(p *Plan) { p.Offsets = p.Offsets[:3] },
		"buffers 0 and 1 overlap":        func(p *Plan) { p.Offsets[1] = 9 },
		"buffers 1 and 2 overlap":        func(p *Plan) { p.Offsets[2] = 14 },
		"peak as 16, but it is 15":       func(p *Plan) { p.Peak = 16 },
		"15 is below its bound of 17":    func(p *Plan) { p.Bound = 17 },
		"buffer 2 of size 10 at offset ": func(p *Plan) { p.Offsets[2] = math.MaxUint64 - 3 },
	} {
		p := good
		p.Offsets = slices.Clone(p.Offsets)
		spoil(&p)
		if err := Validate(bs, p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestLowerBound(t *testing.T) {
	for seed := range uint64(500) {
		rnd := rand.New(rand.NewPCG(seed, 9))
		bs := random(rnd, rnd.IntN(20), 12, 30)
		want := maxLive(bs)
		if got := LowerBound(bs); got != want {
			t.Fatalf("seed %d: %d, want %d", seed, got, want)
		}
	}
}

// FuzzSolve reads three bytes per buffer.
func FuzzSolve(f *testing.F) {
	f.Add([]byte{0, 3, 9, 1, 4, 7, 2, 2, 5, 4, 1, 30}, uint8(0), uint16(20))
	f.Fuzz(func(t *testing.T, data []byte, align uint8, capacity uint16) {
		var bs []Buffer
		for ; len(data) >= 3 && len(bs) < 40; data = data[3:] {
			bs = append(bs, Buffer{int(data[0]), int(data[0]) + 1 + int(data[1]%32), uint64(data[2])})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		p, err := Solve(ctx, bs, Options{Align: 1 << (align % 8), Capacity: uint64(capacity)})
		var e *ConflictError
		if err != nil && !errors.As(err, &e) {
			t.Fatal(err)
		}
		if err := Validate(bs, p); err != nil {
			t.Fatal(err)
		}
		if err == nil && capacity > 0 && p.Peak > uint64(capacity) {
			t.Fatalf("peak %d above capacity %d", p.Peak, capacity)
		}
	})
}

func Example() {
	bs := []Buffer{{0, 3, 6}, {2, 6, 4}, {4, 9, 6}, {8, 9, 4}}
	p, err := Solve(context.Background(), bs, Options{})
	fmt.Println(p.Offsets, p.Peak, p.Bound, err)
	_, err = Solve(context.Background(), bs, Options{Capacity: 9})
	fmt.Println(err)
	// Output:
	// [4 0 4 0] 10 10 <nil>
	// placement: 2 buffers are live at time 2 and need 10, more than the capacity of 9
}
