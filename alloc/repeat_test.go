package alloc

import (
	"math/rand/v2"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/invariant"
)

// trainingStep is a program like a training step: layers keep blocks for
// backward, some of which are freed and made again there, beside others that
// are gone after an operation. Sizes are those of a few kinds of layers, up to
// 60 MiB.
func trainingStep(r *rand.Rand) (program []Lifetime) {
	clock := 0
	alloc := func(size uint64) int {
		program = append(program, Lifetime{Size: size, Start: clock})
		clock++
		return len(program) - 1
	}
	free := func(i int) {
		program[i].End = clock
		clock++
	}
	size := func() uint64 {
		if r.IntN(4) == 0 {
			return 1 + r.Uint64N(1<<20)
		}
		return 1 + r.Uint64N(60<<20)
	}
	compute := func(size, beside uint64) int {
		workspace := alloc(beside)
		defer free(workspace)
		return alloc(size)
	}
	type value struct {
		size, beside uint64
		block        int
		again        bool
	}
	var kinds [4][]value
	for i := range kinds {
		for range 1 + r.IntN(5) {
			kinds[i] = append(kinds[i], value{size: size(), beside: size(), again: r.IntN(3) == 0})
		}
	}
	var values []value
	for range 20 + r.IntN(20) {
		values = append(values, kinds[r.IntN(len(kinds))]...)
	}
	for i, v := range values {
		if values[i].block = compute(v.size, v.beside); i > 0 && values[i-1].again {
			free(values[i-1].block)
		}
	}
	gradient := alloc(size())
	for i := len(values) - 1; i >= 0; i-- {
		v := values[i]
		if v.again && i < len(values)-1 {
			v.block = compute(v.size, v.beside)
		}
		next := compute(v.size, v.beside)
		free(gradient)
		free(v.block)
		gradient = next
	}
	free(gradient)
	return program
}

// driverCalls counts what was asked of the driver.
func driverCalls(a *Allocator) uint64 {
	s := a.Stats()
	return s.Maps + s.Unmaps + s.ViewMaps + s.ViewUnmaps + s.Creates + s.Destroys + s.Syncs
}

// playSteps plays programs turn by turn, so many times, and gives the calls of
// the driver in the last time.
func playSteps(t *testing.T, a *Allocator, s device.Stream, times int, programs ...[]Lifetime) uint64 {
	var before uint64
	for range times {
		before = driverCalls(a)
		for _, p := range programs {
			if err := a.Step(); err != nil {
				t.Fatal(err)
			}
			playProgram(t, a, s, p)
		}
	}
	return driverCalls(a) - before
}

// TestRepeatingStepsNeedNoDriver plays training steps beside blocks that stay,
// of one shape and of two that take turns, in little more memory than they need.
// Soon nothing is mapped any more.
func TestRepeatingStepsNeedNoDriver(t *testing.T) {
	seeds := uint64(10)
	if invariant.Slow {
		seeds = 2
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 3))
		a, s := openNull(t, device.NullOptions{Capacity: 1 << 46, Virtual: true, Alias: true}, Options{})
		for range 50 {
			mustAlloc(t, a, 1+r.Uint64N(20<<20), s)
		}
		programs := [][]Lifetime{trainingStep(r), trainingStep(r)}[:1+seed%2]
		calls := playSteps(t, a, s, 4, programs...)
		if st := a.Stats(); calls > 0 || float64(st.PeakReserved) > 1.01*float64(st.PeakLive) {
			t.Errorf("seed %d: the fourth time needs %d calls; figures %+v", seed, calls, st)
		}
		if err := a.Check(); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
}

// TestOtherStepsBetween lets a program of another shape run between steps, and
// one step break off.
func TestOtherStepsBetween(t *testing.T) {
	a, s := openNull(t, device.NullOptions{Capacity: 1 << 46, Virtual: true, Alias: true}, Options{})
	r := rand.New(rand.NewPCG(1, 4))
	program, other := trainingStep(r), trainingStep(r)
	playSteps(t, a, s, 4, program)
	mustAlloc(t, a, program[0].Size, s).Free()
	mustAlloc(t, a, program[1].Size, s).Free()
	playSteps(t, a, s, 1, other)
	if calls := playSteps(t, a, s, 2, program); calls > 0 {
		t.Errorf("after another program the step needs %d calls; figures %+v", calls, a.Stats())
	}
}

// TestRepeatedOperations lets the model of an allocator play random operations
// as steps, on devices of every kind, with streams that lag as they like.
func TestRepeatedOperations(t *testing.T) {
	total := tally{}
	for seed := range uint64(40) {
		data := randomOperations(seed, 60)
		m := newModel(t, data, 0)
		for range 4 {
			for i := 2; i < len(data); i += 2 {
				if what := data[i]; what%8 < 7 {
					m.step(what, int(data[i+1]))
				}
				m.check()
			}
			for m.freed = 0; len(m.live) > 0; {
				m.free(len(m.live) - 1)
			}
			if err := m.a.Step(); err != nil {
				t.Fatal(err)
			}
		}
		m.end()
		total.add(m)
	}
	t.Log(total)
	total.least(t, 1000, "repeats_total")
}

// TestRepeatWaits: a stream that may not use at once what it had before takes
// what it may and, where nothing is, waits for what it had.
func TestRepeatWaits(t *testing.T) {
	d, a := openLagging(t, Options{Limit: 4 * mib})
	work := func(s *lagStream) *Block {
		b := mustAlloc(t, a, mib, s)
		d.touch(s, b.addr, b.end())
		return b
	}
	step := func(s *lagStream) *Block {
		if err := a.Step(); err != nil {
			t.Fatal(err)
		}
		return work(s)
	}
	low := work(d.streams[1])
	work(d.streams[1])
	high := step(d.streams[1])
	place := high.Ptr()
	work(d.streams[1]) // what is left
	high.Free()
	low.Free()
	high = step(d.streams[0])
	if st := a.Stats(); high.Ptr() != place || st.Repeats != 1 || st.Waits != 1 {
		t.Errorf("the block is at %#x, was at %#x; figures %+v", high.Ptr(), place, st)
	}
	high.Free()
	if b := step(d.streams[1]); b.Ptr() == place || a.Stats().Waits != 1 {
		t.Errorf("stream 1 waits for %#x; figures %+v", place, a.Stats())
	}
	if d.err != nil {
		t.Error(d.err)
	}
}

// TestRepeatAfterTrim lets steps go on whose memory and addresses were given back.
func TestRepeatAfterTrim(t *testing.T) {
	for _, virtual := range []bool{false, true} {
		a, s := openNull(t, device.NullOptions{Capacity: 64 * mib, Virtual: virtual, Alias: virtual, Granularity: mib}, Options{})
		plan, err := MakePlan(t.Context(), []Lifetime{{Size: 3 * mib, Start: 0, End: 1}}, mib)
		if err != nil {
			t.Fatal(err)
		}
		if virtual { // what it leaves are addresses that may be given back
			if err := a.Follow(plan); err != nil {
				t.Fatal(err)
			}
			mustAlloc(t, a, 3*mib, s).Free()
			a.giveUpPlan()
		}
		for range 3 {
			playSteps(t, a, s, 2, []Lifetime{{Size: 3 * mib, Start: 0, End: 2}, {Size: 2 * mib, Start: 1, End: 3}})
			if _, err := a.Trim(0); err != nil || a.Stats().Reserved > 0 {
				t.Fatalf("%v; figures %+v", err, a.Stats())
			}
		}
		if got := a.Stats().Repeats; got < 3 {
			t.Errorf("virtual %v: only %d requests were served as before", virtual, got)
		}
		closeAll(t, a, s)
	}
}

// TestStepsAreForgotten: what is remembered is bounded, and a program that never
// repeats is served.
func TestStepsAreForgotten(t *testing.T) {
	a, s := openNull(t, device.NullOptions{Capacity: 1 << 46, Virtual: true, Alias: true}, Options{})
	most := 0
	for i := range 3 * maxOthers {
		if err := a.Step(); err != nil {
			t.Fatal(err)
		}
		mustAlloc(t, a, uint64(i+1)*unit, s).Free()
		most = max(most, a.steps.turns)
	}
	if most != maxOthers {
		t.Errorf("%d first requests of steps were remembered, want %d", most, maxOthers)
	}
	a.steps.turns = maxTurns
	mustAlloc(t, a, 1, s).Free()
	if a.steps.root != nil {
		t.Errorf("%d requests are remembered", a.steps.turns)
	}
	mustAlloc(t, a, 1, s).Free()
	if a.steps.root != nil {
		t.Error("the rest of a step is remembered as if it were its beginning")
	}
}
