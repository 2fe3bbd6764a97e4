package alloc

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/trace"
)

// randomLifetimes gives a program of n requests.
func randomLifetimes(r *rand.Rand, n int) []Lifetime {
	list := make([]Lifetime, n)
	clock := 0
	for i := range list {
		clock += r.IntN(3)
		list[i] = Lifetime{Size: 1 + r.Uint64N(1<<(8+r.IntN(12))), Start: clock, End: clock + 1 + r.IntN(1+n/2)}
	}
	return list
}

// play runs a program on a and gives the blocks that live longest, freed.
func playProgram(t testing.TB, a *Allocator, s device.Stream, program []Lifetime) {
	t.Helper()
	live := make([]*Block, len(program))
	for _, m := range moments(program, false) {
		if !m.start {
			live[m.block].Free()
			continue
		}
		live[m.block] = mustAlloc(t, a, program[m.block].Size, s)
	}
}

// TestPlansAreValid lets a slow oracle watch that no two blocks that live at
// one time share a byte of a page, for all ways to a plan.
func TestPlansAreValid(t *testing.T) {
	for seed := range uint64(20) {
		program := randomLifetimes(rand.New(rand.NewPCG(seed, 1)), 120)
		const page = 64 << 10
		static, least, err := staticPlan(context.Background(), program, page, 0)
		if err != nil {
			t.Fatal(err)
		}
		plans := map[string]*Plan{"static": static}
		for _, backwards := range []bool{false, true} {
			if plans[fmt.Sprint("backwards=", backwards)], err = rehearse(context.Background(), program, page, backwards); err != nil {
				t.Fatal(err)
			}
		}
		if plans["made"], err = MakePlan(context.Background(), program, page); err != nil {
			t.Fatal(err)
		}
		for name, p := range plans {
			if p.pages < least || plans["made"].pages > p.pages {
				t.Errorf("seed %d: %s has %d pages, the best %d, %d is least", seed, name, p.pages, plans["made"].pages, least)
			}
			checkPlan(t, p, program)
		}
	}
}

// checkPlan compares all pairs.
func checkPlan(t *testing.T, p *Plan, program []Lifetime) {
	t.Helper()
	var bytesOf [][][2]uint64
	for i, b := range p.blocks {
		var spans [][2]uint64
		left, offset := b.size, b.offset
		if b.size != roundUp(program[i].Size, unit) {
			t.Fatalf("block %d of %d bytes is planned with %d", i, program[i].Size, b.size)
		}
		for _, r := range b.runs {
			n := min(left, uint64(r.n)*p.page-offset)
			at := uint64(r.first)*p.page + offset
			if r.first+r.n > p.pages {
				t.Fatalf("block %d is on page %d of %d", i, r.first+r.n-1, p.pages)
			}
			spans, left, offset = append(spans, [2]uint64{at, at + n}), left-n, 0
		}
		if left > 0 {
			t.Fatalf("block %d has no place for %d bytes", i, left)
		}
		bytesOf = append(bytesOf, spans)
	}
	for i, x := range program {
		for j, y := range program[:i] {
			if x.Start >= y.End || y.Start >= x.End {
				continue
			}
			for _, u := range bytesOf[i] {
				for _, v := range bytesOf[j] {
					if u[0] < v[1] && v[0] < u[1] {
						t.Fatalf("blocks %d and %d share %d-%d", i, j, max(u[0], v[0]), min(u[1], v[1]))
					}
				}
			}
		}
	}
}

// TestFollow plays a program as planned: its pages suffice, and from the second
// time on nothing is asked of the driver.
func TestFollow(t *testing.T) {
	views := uint64(0)
	for seed := range uint64(10) {
		program := randomLifetimes(rand.New(rand.NewPCG(seed, 2)), 150)
		a, s := planAllocator(t, Options{})
		plan, err := MakePlan(context.Background(), program, a.page)
		if seed%2 == 0 {
			plan, err = rehearse(context.Background(), program, a.page, true)
		}
		if err != nil {
			t.Fatal(err)
		}
		plan = writeAndRead(t, plan)
		if err := a.Follow(plan); err != nil {
			t.Fatal(err)
		}
		var first Stats
		for i := range 3 {
			playProgram(t, a, s, program)
			if i == 0 {
				first = a.Stats()
			}
			if err := a.Step(); err != nil {
				t.Fatal(err)
			}
		}
		st := a.Stats()
		if pages, size := plan.Pages(); st.Reserved != uint64(pages)*size || st.Planned != st.Allocs {
			t.Errorf("seed %d: %d bytes reserved for %d pages, %d of %d requests by the plan", seed, st.Reserved, pages, st.Planned, st.Allocs)
		}
		if st.Creates != first.Creates || st.Maps != first.Maps || st.ViewMaps != first.ViewMaps || st.Unmaps != first.Unmaps {
			t.Errorf("seed %d: driver calls after the first time: %+v, then %+v", seed, first, st)
		}
		views += st.ViewMaps
		closeAll(t, a, s)
	}
	if views == 0 {
		t.Error("no plan has a block on pages that are no neighbours")
	}
}

// planAllocator opens an allocator of a null device with small pages that may
// be mapped twice.
func planAllocator(t testing.TB, o Options) (*Allocator, device.Stream) {
	t.Helper()
	return openNull(t, device.NullOptions{Capacity: 1 << 30, Virtual: true, Alias: true, Granularity: 64 << 10}, o)
}

func closeAll(t testing.TB, a *Allocator, s device.Stream) {
	t.Helper()
	if err := a.Check(); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if err := a.Device().Close(); err != nil {
		t.Fatal(err)
	}
}

func writeAndRead(t *testing.T, p *Plan) *Plan {
	var file bytes.Buffer
	if err := p.Write(&file); err != nil {
		t.Fatal(err)
	}
	q, err := ReadPlan(&file)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// TestDepartures plays programs that are not the planned one: all is served,
// and the equations hold.
func TestDepartures(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 3))
		program := randomLifetimes(r, 100)
		a, s := planAllocator(t, Options{})
		plan, err := MakePlan(context.Background(), program, a.page)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Follow(plan); err != nil {
			t.Fatal(err)
		}
		for range 4 {
			other := append([]Lifetime(nil), program...)
			for range r.IntN(20) {
				i := r.IntN(len(other))
				other[i].Size = 1 + r.Uint64N(200<<10)
				other[i].End += r.IntN(50)
			}
			playProgram(t, a, s, other)
			if err := a.Check(); err != nil {
				t.Fatal(err)
			}
			if err := a.Step(); err != nil {
				t.Fatal(err)
			}
		}
		if r.IntN(2) == 0 {
			if err := a.Follow(nil); err != nil {
				t.Fatal(err)
			}
		}
		closeAll(t, a, s)
	}
}

// TestPlanSteps lets an allocator plan by itself: a first step differs from all
// others, of which the fourth and later ones ask nothing of the driver.
func TestPlanSteps(t *testing.T) {
	program := randomLifetimes(rand.New(rand.NewPCG(1, 4)), 200)
	a, s := planAllocator(t, Options{PlanSteps: true})
	state := mustAlloc(t, a, 1<<20, s)
	var before Stats
	for i := range 8 {
		if i == 4 {
			before = a.Stats()
		}
		playProgram(t, a, s, program)
		if err := a.Step(); err != nil {
			t.Fatal(err)
		}
	}
	st := a.Stats()
	if st.Planned-before.Planned != st.Allocs-before.Allocs {
		t.Errorf("of the last %d requests %d were planned", st.Allocs-before.Allocs, st.Planned-before.Planned)
	}
	if st.Creates != before.Creates || st.Maps != before.Maps || st.ViewMaps != before.ViewMaps || st.Waits != before.Waits {
		t.Errorf("driver calls in later steps: %+v, then %+v", before, st)
	}
	state.Free()
	closeAll(t, a, s)
}

// TestPlanIsGivenUpUnderPressure needs the plan's memory for something else.
func TestPlanIsGivenUpUnderPressure(t *testing.T) {
	program := []Lifetime{{Size: 8 * mib, Start: 0, End: 10}, {Size: 8 * mib, Start: 1, End: 10}}
	a, s := planAllocator(t, Options{Limit: 20 * mib})
	plan, err := MakePlan(context.Background(), program, a.page)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Follow(plan); err != nil {
		t.Fatal(err)
	}
	playProgram(t, a, s, program)
	b := mustAlloc(t, a, 19*mib, s)
	b.Free()
	closeAll(t, a, s)
}

// TestReadPlanRefuses gives broken files.
func TestReadPlanRefuses(t *testing.T) {
	for _, text := range []string{
		"", "[]", `{"format":"other"}`, `{"format":"headroom-plan","version":1,"page_bytes":1000,"pages":1}`,
		`{"format":"headroom-plan","version":1,"page_bytes":1024,"pages":-1}`,
		`{"format":"headroom-plan","version":1,"page_bytes":1024,"pages":99999999999}`,
		`{"format":"headroom-plan","version":1,"page_bytes":1024,"pages":2,"blocks":[[512,0]]}`,
		`{"format":"headroom-plan","version":1,"page_bytes":1024,"pages":2,"blocks":[[512,0,2,1]]}`,
		`{"format":"headroom-plan","version":1,"page_bytes":1024,"pages":2,"blocks":[[512,0,1,18446744073709551615]]}`,
		`{"format":"headroom-plan","version":1,"page_bytes":1024,"pages":2,"blocks":[[2048,512,0,2]]}`,
		`{"format":"headroom-plan","version":1,"page_bytes":1024,"pages":2,"blocks":[[500,0,0,1]]}`,
		`{"format":"headroom-plan","version":1,"page_bytes":1024,"pages":2,"blocks":[[512,1024,0,1]]}`,
		`{"format":"headroom-plan","version":1,"page_bytes":1024,"pages":2,"blocks":[[2048,0,0,1,0,1]]}`,
	} {
		if p, err := ReadPlan(strings.NewReader(text)); err == nil {
			t.Errorf("%s: no error, %+v", text, p)
		}
	}
}

// TestPlanTooLarge plans blocks whose pages alone would take memory here.
func TestPlanTooLarge(t *testing.T) {
	for most, size := range map[bool]uint64{true: maxPlanPages * mib, false: maxPlanPages*mib + 1} {
		_, err := MakePlan(t.Context(), []Lifetime{{Size: size, Start: 0, End: 1}}, mib)
		if (err == nil) != most {
			t.Errorf("a block of %d bytes: %v", size, err)
		}
	}
}

// FuzzReadPlan follows whatever is read.
func FuzzReadPlan(f *testing.F) {
	f.Add([]byte(`{"format":"headroom-plan","version":1,"page_bytes":65536,"pages":3,"blocks":[[512,0,1,1],[131072,512,0,1,2,1,1,1]]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := ReadPlan(bytes.NewReader(text))
		if err != nil || p.page != 64<<10 || p.pages > 1000 {
			return
		}
		a, s := planAllocator(t, Options{})
		if err := a.Follow(p); err != nil {
			t.Fatal(err)
		}
		var live []*Block
		for _, b := range p.blocks {
			if len(live) < 1000 {
				if x, err := a.Alloc(min(b.size, 1<<20), trace.Other, s); err == nil {
					live = append(live, x)
				}
			}
		}
		for _, b := range live {
			b.Free()
		}
		closeAll(t, a, s)
	})
}
