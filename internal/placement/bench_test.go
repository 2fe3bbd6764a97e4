package placement

import (
	"math/rand/v2"
	"testing"
)

// trace imitates an allocator's log of n buffers: bursts of nested temporaries
// among activations that are freed in reverse order, step after step, and some
// buffers that stay.
func trace(rnd *rand.Rand, n int) []Buffer {
	var bs []Buffer
	var kept []int
	now := 0
	begin := func() int {
		now++
		bs = append(bs, Buffer{now, 0, 512 << rnd.IntN(12)})
		return len(bs) - 1
	}
	end := func(i int) { now++; bs[i].Upper = now }
	for len(bs) < n {
		for range 200 {
			kept = append(kept, begin())
			a, b := begin(), begin()
			end(a)
			end(b)
		}
		for len(kept) > 20 {
			i := kept[len(kept)-1-rnd.IntN(3)]
			kept = kept[:len(kept)-1]
			if bs[i].Upper == 0 {
				a := begin()
				end(i)
				end(a)
			}
		}
	}
	for i := range bs {
		if bs[i].Upper == 0 {
			bs[i].Upper = now + 1
		}
	}
	return bs
}

func BenchmarkDive(b *testing.B) {
	bs := trace(rand.New(rand.NewPCG(1, 1)), 130_000)
	for b.Loop() {
		pr := newProblem(bs, 1)
		var peak int64
		for _, p := range pr.parts {
			peak = max(peak, newWheel(p, rand.New(rand.NewPCG(1, 1))).step(p.bound))
		}
		b.ReportMetric(float64(peak)/float64(pr.bound), "peak/bound")
	}
}
