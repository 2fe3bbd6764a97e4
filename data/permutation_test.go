package data

import (
	"math"
	"slices"
	"testing"
)

func list(p permutation) []int {
	order := make([]int, p.n)
	for i := range order {
		order[i] = p.at(i)
	}
	return order
}

func TestPermutationIsOne(t *testing.T) {
	for n := 1; n < 300; n++ {
		for seed := range uint64(5) {
			order := list(newPermutation(n, seed))
			slices.Sort(order)
			for i, x := range order {
				if x != i {
					t.Fatalf("n=%d seed=%d: not a permutation", n, seed)
				}
			}
		}
	}
	p := newPermutation(math.MaxInt, 1) // a table of this is out of the question
	if x := p.at(math.MaxInt - 1); x < 0 {
		t.Errorf("n=MaxInt gives %d", x)
	}
}

// TestPermutationIsUniform counts all orders of four over many seeds: each of
// the 24 comes up within five standard deviations of its share.
func TestPermutationIsUniform(t *testing.T) {
	const seeds = 24000
	counts := map[[4]int]int{}
	for seed := range uint64(seeds) {
		counts[[4]int(list(newPermutation(4, mix(seed))))]++
	}
	const share = seeds / 24.0
	for order, n := range counts {
		if math.Abs(float64(n)-share) > 5*math.Sqrt(share) {
			t.Errorf("%v came up %d times, expected about %v", order, n, share)
		}
	}
	if len(counts) != 24 {
		t.Errorf("%d orders came up, not 24", len(counts))
	}
}

// TestPermutationMixes looks at a long order: neighbours are as far apart as
// random numbers are (n/3 on average), and few places stay fixed (1 on average).
func TestPermutationMixes(t *testing.T) {
	const n = 100_000
	for seed := range uint64(5) {
		order := list(newPermutation(n, seed))
		var distance float64
		fixed := 0
		for i, x := range order {
			if i > 0 {
				distance += math.Abs(float64(x - order[i-1]))
			}
			if x == i {
				fixed++
			}
		}
		if mean := distance / (n - 1) / n; math.Abs(mean-1.0/3) > 0.005 {
			t.Errorf("seed %d: neighbours are %.4f·n apart, expected n/3", seed, mean)
		}
		if fixed > 8 {
			t.Errorf("seed %d: %d fixed places", seed, fixed)
		}
	}
}
