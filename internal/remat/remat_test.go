package remat

import (
	"context"
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

// optimum is the least time of any order of runs within the budget, or false: a
// shortest path over how far the program is and which values are in memory.
func optimum(p *Program, budget int64) (int64, bool) {
	type node struct{ next, mem int }
	made := p.makers()
	size := func(mem int) (sum int64) {
		for v := range p.Values {
			if mem>>v&1 == 1 {
				sum += p.Values[v].Bytes
			}
		}
		return sum
	}
	mask := func(vs []int) (m int) {
		for _, v := range vs {
			m |= 1 << v
		}
		return m
	}
	var pinned int
	for v := range p.Values {
		if made[v] < 0 {
			pinned |= 1 << v
		}
	}
	queue := [][]node{{{0, pinned}}} // by cost
	seen := map[node]bool{}
	for c := 0; c < len(queue); c++ {
		for i := 0; i < len(queue[c]); i++ {
			n := queue[c][i]
			if seen[n] {
				continue
			}
			seen[n] = true
			if n.next == len(p.Ops) && mask(p.Outputs)&^n.mem == 0 {
				return int64(c), true
			}
			add := func(m node, cost int64) {
				for len(queue) <= c+int(cost) {
					queue = append(queue, nil)
				}
				queue[c+int(cost)] = append(queue[c+int(cost)], m)
			}
			for free := n.mem &^ pinned; free != 0; free &= free - 1 {
				add(node{n.next, n.mem &^ (free & -free)}, 0)
			}
			for o := range min(n.next+1, len(p.Ops)) {
				op, outs := p.Ops[o], mask(p.Ops[o].Outs)
				if mask(op.Args)&^n.mem != 0 || outs&n.mem != 0 || size(n.mem|outs) > budget {
					continue
				}
				next := n.next
				if o == next {
					next++
				}
				add(node{next, n.mem | outs}, op.Cost)
			}
		}
	}
	return 0, false
}

// TestNearOptimum compares plans of small programs with the best of all orders of
// runs, which need not be those of the program.
func TestNearOptimum(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var exact, found, best, missed int
	var extra, least int64
	for range 400 {
		p := randomProgram(rng, 4+rng.IntN(5), true)
		budget := p.PlainPeak() * (65 + rng.Int64N(35)) / 100
		want, ok := optimum(p, budget)
		plan, err := Solve(t.Context(), p, budget, Options{Work: 20e3})
		if err == nil {
			if !ok {
				t.Fatalf("a plan within %d bytes, though none exists", budget)
			}
			if err := plan.Check(p); err != nil {
				t.Fatal(err)
			}
			if plan.Plain+plan.Extra < want {
				t.Fatalf("a plan of %d ns, below the optimum of %d", plan.Plain+plan.Extra, want)
			}
			if plan.Plain+plan.Lower > want {
				t.Fatalf("the bound is %d ns, above the optimum of %d", plan.Plain+plan.Lower, want)
			}
		}
		switch {
		case !ok:
		case err != nil:
			exact++
			missed++
		default:
			exact++
			found++
			extra, least = extra+plan.Extra, least+want-plan.Plain
			if plan.Plain+plan.Extra == want {
				best++
			}
		}
	}
	t.Logf("%d programs have a plan; %d found, %d of them optimal; extra time %d, optimum %d", exact, found, best, extra, least)
	if exact < 50 || missed*20 > exact || best*100 < found*90 || float64(extra) > 1.1*float64(least) {
		t.Error("plans of small programs are too far from the optimum")
	}
}

// TestPlansPassTheExecutor solves random programs with all features.
func TestPlansPassTheExecutor(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	plans, moves := 0, 0
	for k := range 150 {
		p := randomProgram(rng, 5+rng.IntN(60), false)
		if k%3 == 0 {
			p.OutRate, p.BackRate = 1e9, 2e9
		}
		budget := p.PlainPeak() * (40 + rng.Int64N(60)) / 100
		plan, err := Solve(t.Context(), p, budget, Options{Work: 50e3, Seed: uint64(k)})
		var none *NoPlanError
		if errors.As(err, &none) {
			if none.Reached <= budget {
				t.Fatalf("no plan within %d, though %d was reached", budget, none.Reached)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := plan.Check(p); err != nil {
			t.Fatalf("program %d: %v", k, err)
		}
		plans, moves = plans+1, moves+len(plan.Moves)
	}
	if plans < 40 || moves < 20 {
		t.Errorf("only %d plans with %d moves", plans, moves)
	}
}

// TestCheckRefuses breaks plans and expects the executor to notice.
func TestCheckRefuses(t *testing.T) {
	p := transformer(4)
	plan, err := Solve(t.Context(), p, p.PlainPeak()/2, Options{Work: 200e3})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		bad := *plan
		bad.Windows, bad.Again = slices.Clone(plan.Windows), slices.Clone(plan.Again)
		switch i, j := rng.IntN(len(bad.Windows)), rng.IntN(len(bad.Again)); rng.IntN(5) {
		case 0:
			bad.Windows = slices.Delete(bad.Windows, i, i+1)
			if w := plan.Windows[i]; w.First == w.Last {
				continue // an output that nobody reads is in memory meanwhile anyway
			}
		case 1:
			if bad.Windows[i].Last--; bad.Windows[i].Last < bad.Windows[i].First {
				continue
			}
		case 2:
			bad.Again = slices.Delete(bad.Again, j, j+1)
		case 3:
			bad.Extra++
		case 4:
			bad.Peak--
		}
		if bad.Check(p) == nil {
			t.Fatal("a broken plan passed")
		}
	}
}

// TestStateAfterEdits compares a state after random edits with one built anew.
func TestStateAfterEdits(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for range 60 {
		g := newGraph(randomProgram(rng, 30, false))
		pl := newPlanner(newState(g, 50), 1)
		for range 100 {
			op := rng.Int32N(int32(g.n))
			if t := op + 1 + rng.Int32N(int32(g.n)-op); !g.once[op] && !pl.has(op, t) {
				pl.insert(t, op)
			} else if len(pl.runs[op]) > 1 {
				pl.cut(pl.runs[op][1+rng.IntN(len(pl.runs[op])-1)], op)
			}
			if rng.IntN(10) == 0 {
				pl.undo(rng.IntN(len(pl.log) + 1))
			}
		}
		anew := newPlanner(newState(g, 50), 1)
		anew.load(pl.save())
		if pl.cost != anew.cost || !reflect.DeepEqual(pl.events, anew.events) || !reflect.DeepEqual(pl.tree, anew.tree) || !reflect.DeepEqual(pl.until, anew.until) {
			t.Fatalf("cost %d after edits, %d anew; peaks %d and %d", pl.cost, anew.cost, pl.tree.peak(), anew.tree.peak())
		}
		plan, err := pl.plan()
		if err != nil {
			t.Fatal(err)
		}
		plan.Budget = plan.Peak
		if err := plan.Check(g.p); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTree(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	const n = 37
	tr := newTree(n)
	sums, tops := make([]int64, n), make([]int64, n)
	for i := range n {
		tr.set(i, 0, 0)
	}
	for range 500 {
		i := rng.IntN(n)
		sums[i], tops[i] = rng.Int64N(21)-10, rng.Int64N(10)
		tr.set(i, sums[i], tops[i])
		a := rng.IntN(n)
		b := a + rng.IntN(n-a)
		var sum, in int64
		level := make([]int64, n)
		in = low
		for k := range n {
			level[k] = sum + tops[k]
			if a == k && tr.before(k) != sum {
				t.Fatal("before")
			}
			if a <= k && k <= b {
				in = max(in, level[k])
			}
			sum += sums[k]
		}
		peak := slices.Max(level)
		first, last := tr.over(peak - 3)
		over := func(l int64) bool { return l > peak-3 }
		slices.Reverse(level)
		wantLast := n - 1 - slices.IndexFunc(level, over)
		slices.Reverse(level)
		if tr.peak() != peak || tr.argmax() != slices.Index(level, peak) || tr.maxOf(a, b) != in ||
			first != slices.IndexFunc(level, over) || last != wantLast {
			t.Fatal("tree differs from a scan")
		}
	}
}

// TestNeverWorseThanDTR plans synthetic steps at several budgets.
func TestNeverWorseThanDTR(t *testing.T) {
	for _, p := range []*Program{transformer(4), resnet(6)} {
		for _, percent := range []int64{85, 60, 40, 25} {
			budget := p.PlainPeak() * percent / 100
			extra, ok := DTR(p, budget)
			plan, err := Solve(t.Context(), p, budget, Options{Work: 300e3})
			if ok && (err != nil || plan.Extra > extra) {
				t.Errorf("%d %%: %v, %+v ns; DTR takes %d", percent, err, plan, extra)
			}
		}
	}
}

func TestCurve(t *testing.T) {
	p := transformer(3)
	peak := p.PlainPeak()
	budgets := []int64{peak / 2, peak, peak * 2 / 5, peak * 3 / 4, 1, peak / 3}
	plans, err := Curve(t.Context(), p, budgets, Options{Work: 100e3})
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range plans {
		if (a == nil) != (budgets[i] == 1) {
			t.Fatalf("budget %d: plan %v", budgets[i], a)
		}
		if a == nil {
			continue
		}
		if err := a.Check(p); err != nil || a.Budget != budgets[i] || a.Lower > a.Extra {
			t.Errorf("budget %d: %v", budgets[i], err)
		}
		for j, b := range plans {
			if b != nil && budgets[i] < budgets[j] && a.Extra < b.Extra {
				t.Errorf("%d bytes cost %d ns, %d bytes %d", budgets[i], a.Extra, budgets[j], b.Extra)
			}
		}
	}
	if plans[1].Extra != 0 || len(plans[1].Again) != 0 {
		t.Error("a budget of the peak needs no plan")
	}
}

// TestMovesHide: with fast lanes moves take no time where recompute does, and slow
// ones are not used.
func TestMovesHide(t *testing.T) {
	p := transformer(6)
	budget := p.PlainPeak() * 6 / 10
	plain, err := Solve(t.Context(), p, budget, Options{Work: 200e3})
	if err != nil {
		t.Fatal(err)
	}
	p.OutRate, p.BackRate = 100e9, 100e9
	moved, err := Solve(t.Context(), p, budget, Options{Work: 200e3})
	if err != nil {
		t.Fatal(err)
	}
	if err := moved.Check(p); err != nil {
		t.Fatal(err)
	}
	if plain.Extra == 0 || moved.Extra != 0 || len(moved.Moves) == 0 {
		t.Errorf("%d ns without moves, %d with %d", plain.Extra, moved.Extra, len(moved.Moves))
	}
	p.OutRate, p.BackRate = 10e9, 10e9
	some, err := Solve(t.Context(), p, p.PlainPeak()*3/10, Options{Work: 200e3})
	if err != nil {
		t.Fatal(err)
	}
	if err := some.Check(p); err != nil {
		t.Fatal(err)
	}
	if len(some.Moves) == 0 || len(some.Again) == 0 {
		t.Errorf("%d moves and %d runs: expected both", len(some.Moves), len(some.Again))
	}
	for v := range p.Values {
		p.Values[v].Stays = true
	}
	if stay, err := Solve(t.Context(), p, p.PlainPeak()*3/10, Options{Work: 200e3}); err != nil || len(stay.Moves) != 0 || some.Check(p) == nil {
		t.Errorf("%v, %v: values moved that must stay", stay, err)
	}
	p.OutRate, p.BackRate = 1, 1
	if slow, err := Solve(t.Context(), p, budget, Options{Work: 200e3}); err != nil || len(slow.Moves) != 0 {
		t.Errorf("%v, %v: slow lanes are of no use", slow, err)
	}
}

// TestMovesStall: where copies that hide don't suffice, others make the program
// faster.
func TestMovesStall(t *testing.T) {
	for _, test := range []struct {
		p             *Program
		rate, percent int64
	}{{transformer(6), 12e9, 20}, {transformer(6), 50e9, 15}} {
		p, budget := test.p, test.p.PlainPeak()*test.percent/100
		p.OutRate, p.BackRate = test.rate, test.rate
		sv := &solver{planner: newPlanner(newState(newGraph(p), budget), 0), shape: newDTRShape(p)}
		sv.ctx = t.Context()
		hidden, err := sv.solve(1, 300e3, nil)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := Solve(t.Context(), p, budget, Options{Work: 300e3})
		if err == nil {
			err = plan.Check(p)
		}
		if err != nil || plan.Extra*5 > hidden.Extra*4 {
			t.Errorf("%d %% at %d B/s: %v, %+v; %d ns with copies that hide", test.percent, test.rate, err, plan, hidden.Extra)
		}
	}
}

// TestRoom: no more moves than there is room for.
func TestRoom(t *testing.T) {
	p := transformer(4)
	p.OutRate, p.BackRate, p.Room = 100e9, 100e9, p.PlainPeak()/10
	plan, err := Solve(t.Context(), p, p.PlainPeak()/2, Options{Work: 100e3})
	if err != nil {
		t.Fatal(err)
	}
	var bytes int64
	for _, m := range plan.Moves {
		bytes += p.Values[m.Value].Bytes
	}
	if len(plan.Moves) == 0 || bytes > p.Room || plan.Check(p) != nil {
		t.Errorf("%d moves of %d bytes, room for %d; %v", len(plan.Moves), bytes, p.Room, plan.Check(p))
	}
}

func TestExecutorStalls(t *testing.T) {
	p := &Program{
		Values: []Value{{Bytes: 10}, {Bytes: 1}, {Bytes: 1}, {Bytes: 1}},
		Ops: []Op{{Cost: 5, Outs: []int{0}}, {Cost: 5, Outs: []int{1}}, {Cost: 5, Outs: []int{2}, Args: []int{1}},
			{Cost: 5, Outs: []int{3}, Args: []int{0, 2}}},
		Outputs: []int{3}, OutRate: 1e9, BackRate: 1e9,
	}
	// 10 bytes take 11 ns each way: out during 5…16, back during 16…27.
	plan := &Plan{Budget: 12, Peak: 12, Plain: 20, Extra: 12,
		Windows: []Window{{0, 0, 1}, {1, 1, 2}, {0, 3, 3}, {2, 2, 3}, {3, 3, 4}},
		Moves:   []Move{{Value: 0, Out: 0, Gone: 2, Back: 3, Need: 3}}}
	// step 2 waits until 16 and ends at 21; the copy back ends at 32; step 3 at 37.
	plan.Extra = 17
	if err := plan.Check(p); err != nil {
		t.Error(err)
	}
}

// TestLifetimes adds the lifetimes of plans up: they must reach the peak.
func TestLifetimes(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	for range 40 {
		p := randomProgram(rng, 30, false)
		plan, err := Solve(t.Context(), p, p.PlainPeak(), Options{Work: 10e3})
		if err != nil {
			continue
		}
		live := make([]int64, len(plan.Schedule(p))+1)
		for _, l := range plan.Lifetimes(p) {
			for k := l.First; k <= l.Last; k++ {
				live[k] += l.Bytes
			}
		}
		if slices.Max(live) != plan.Peak {
			t.Fatalf("lifetimes reach %d, the peak is %d", slices.Max(live), plan.Peak)
		}
	}
}

// TestPlaced leaves room for a placement that wastes a tenth.
func TestPlaced(t *testing.T) {
	p := resnet(4)
	budget := p.PlainPeak() / 2
	waste := func(pl *Plan) (int64, error) { return pl.Peak * 11 / 10, nil }
	plan, err := Solve(t.Context(), p, budget, Options{Work: 100e3, Placed: waste})
	if err != nil {
		t.Fatal(err)
	}
	if size, _ := waste(plan); size > budget || plan.Budget != budget {
		t.Errorf("%d bytes placed, %d allowed", size, budget)
	}
	if err := plan.Check(p); err != nil {
		t.Error(err)
	}
	broken := errors.New("broken")
	if _, err := Solve(t.Context(), p, budget, Options{Work: 100e3, Placed: func(*Plan) (int64, error) { return 0, broken }}); err != broken {
		t.Errorf("got %v", err)
	}
}

func TestDeterminism(t *testing.T) {
	p := transformer(3)
	solve := func(seed uint64, budget int64) *Plan {
		plan, err := Solve(t.Context(), p, budget, Options{Work: 200e3, Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		return plan
	}
	half := p.PlainPeak() / 2
	a, b := solve(1, half), solve(1, half)
	if !reflect.DeepEqual(a, b) {
		t.Error("two plans of the same arguments differ")
	}
	if reflect.DeepEqual(a.Again, solve(1, half*3/2).Again) {
		t.Error("plans for two budgets run the same operations again")
	}
}

func TestCancel(t *testing.T) {
	p := transformer(3)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	plan, err := Solve(ctx, p, p.PlainPeak()/2, Options{})
	if err == nil {
		err = plan.Check(p)
	} else if errors.Is(err, context.Canceled) {
		err = nil
	}
	if err != nil {
		t.Error(err)
	}
}

func TestNoPlan(t *testing.T) {
	p := transformer(2)
	var none *NoPlanError
	if _, err := Solve(t.Context(), p, 1000, Options{}); !errors.As(err, &none) || !none.Impossible {
		t.Errorf("got %v", err)
	}
}

func TestBadPrograms(t *testing.T) {
	one := []Value{{Bytes: 1}, {Bytes: 1}}
	for i, p := range []*Program{
		{Values: []Value{{Bytes: -1}}},
		{Values: one, Ops: []Op{{Outs: []int{2}}}},
		{Values: one, Ops: []Op{{Cost: -1}}},
		{Values: one, Ops: []Op{{Workspace: -1}}},
		{Values: one, Ops: []Op{{View: true, Args: []int{0, 1}}}},
		{Values: one, Ops: []Op{{Args: []int{1}}, {Outs: []int{1}}}},
		{Values: one, Ops: []Op{{Outs: []int{1}}, {Outs: []int{1}}}},
		{Values: one, Outputs: []int{5}},
		{Values: one, Ops: []Op{{Args: []int{-1}}}},
	} {
		if p.Check() == nil {
			t.Errorf("program %d passed", i)
		}
		if _, err := Solve(t.Context(), p, 10, Options{}); err == nil {
			t.Errorf("program %d has a plan", i)
		}
	}
}

func BenchmarkSolve(b *testing.B) {
	for name, p := range map[string]*Program{"transformer48": transformer(48), "resnet50": resnet(50)} {
		for _, percent := range []int64{50, 30} {
			b.Run(name, func(b *testing.B) {
				var plan *Plan
				for b.Loop() {
					var err error
					if plan, err = Solve(b.Context(), p, p.PlainPeak()*percent/100, Options{}); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(plan.Overhead(), "overhead")
				b.ReportMetric(float64(len(p.Values)), "values")
			})
		}
	}
}
