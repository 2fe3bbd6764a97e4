package remat

import (
	"math/rand/v2"
	"testing"
)

// TestCut compares least cuts with the best of all divisions of small networks.
func TestCut(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	for range 300 {
		const n = 7 // the first is the source, the last the sink
		f := newNetwork(n)
		for range rng.IntN(20) {
			f.edge(rng.Int32N(n), rng.Int32N(n), rng.Int64N(9))
		}
		through := func(within func(node int32) bool) (sum int64) {
			for e := 0; e < len(f.to); e += 2 {
				if within(f.to[e^1]) && !within(f.to[e]) {
					sum += f.most[e]
				}
			}
			return sum
		}
		least := int64(endless)
		for side := 1; side < 1<<(n-1); side += 2 {
			least = min(least, through(func(node int32) bool { return side>>node&1 == 1 }))
		}
		got, _ := f.cut(0, n-1)
		if got != least || through(f.within) != least || !f.within(0) || f.within(n-1) {
			t.Fatalf("cut of %d, its side of %d; the least is %d", got, through(f.within), least)
		}
	}
}

// TestBoundIsClose: where one moment decides, plans are within an eighth
// of the bound, which TestNearOptimum compares with optima.
func TestBoundIsClose(t *testing.T) {
	for _, p := range []*Program{transformer(6), resnet(12)} {
		for _, percent := range []int64{70, 50} {
			plan, err := Solve(t.Context(), p, p.PlainPeak()*percent/100, Options{Work: 1e6})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d %%: %d ns, bound %d", percent, plan.Extra, plan.Lower)
			if plan.Lower == 0 || float64(plan.Extra) > 1.125*float64(plan.Lower) {
				t.Errorf("%d %%: %d ns, bound %d", percent, plan.Extra, plan.Lower)
			}
		}
	}
}
