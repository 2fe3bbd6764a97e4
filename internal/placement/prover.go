package placement

import (
	"cmp"
	"math/bits"
	"math/rand/v2"
	"slices"
)

// sortByRank sorts by descending rank.
func sortByRank(items []int32, rank []float64) {
	slices.SortFunc(items, func(a, b int32) int {
		return cmp.Or(cmp.Compare(rank[b], rank[a]), cmp.Compare(a, b))
	})
}

// A prover repeats a search along several lines by turns. Most runs have just
// the nodes for a descent with few mistakes, so that a bad choice near the root
// costs little; the longest limits grow, so that in the end a run is complete
// and its outcome a proof.
type prover struct {
	*search
	rnd   *rand.Rand
	lines []line
	turn  int // runs so far
	wins  int // lines remembered so far
}

// A line is one way to order the search, with what has been learnt on it: items
// that were in failing sections move up (the weights of conflicts of Boussemart,
// Hemery, Lecoutre and Sais 2004). The first lines combine the base orders with
// both rules of choice; up to winners more come from the last placements found.
type line struct {
	base       []float64 // of each item, its rank
	tightFirst bool
	blame      []float64
}

const (
	winners  = 4
	oblivion = 0.9 // of the blame, per run
	// The most blamed item moves up by as many places as there are, at most by
	// so many for a unit of blame.
	maxInfluence = 20
)

func newProver(p *part, rnd *rand.Rand, done func() bool) *prover {
	r := &prover{search: newSearch(p, done), rnd: rnd}
	for _, base := range ranks(p) {
		for _, tightFirst := range []bool{false, true} {
			r.lines = append(r.lines, line{base, tightFirst, make([]float64, len(p.items))})
		}
	}
	return r
}

// step searches once more for a placement below the ceiling.
func (r *prover) step(ceiling int64) verdict {
	ln := &r.lines[r.turn%len(r.lines)]
	round := r.turn / len(r.lines)
	r.turn++
	r.tightFirst, r.blame = ln.tightFirst, ln.blame
	all := float64(len(r.rank))
	influence := min(maxInfluence, all/max(slices.Max(r.blame), 1))
	for i := range r.rank {
		r.rank[i] = ln.base[i] + influence*r.rnd.Float64()*r.blame[i] + r.rnd.Float64()
	}
	v := r.run(ceiling, luby(1+round)*(100+3*len(r.rank)/2))
	for i := range r.blame {
		r.blame[i] *= oblivion
	}
	if v == found {
		r.remember(line{slices.Clone(r.rank), ln.tightFirst, slices.Clone(ln.blame)})
	}
	return v
}

// luby returns the n-th term, from 1, of 1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 …: many
// short runs and ever some longer ones, within a logarithmic factor of the best
// sequence for any distribution of run lengths (Luby, Sinclair and Zuckerman 1993).
func luby(n int) int {
	for {
		h := bits.Len(uint(n))
		if n == 1<<h-1 {
			return 1 << (h - 1)
		}
		n -= 1<<(h-1) - 1
	}
}

// follow adds a line that prefers what lies low with the offsets.
func (r *prover) follow(offsets []int64) {
	order := make([]int32, len(offsets))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int { return cmp.Or(cmp.Compare(offsets[a], offsets[b]), cmp.Compare(a, b)) })
	rank := make([]float64, len(order))
	for n, i := range order {
		rank[i] = float64(len(order) - 1 - n)
	}
	r.remember(line{rank, r.turn%2 == 0, make([]float64, len(order))})
}

// remember adds a line that won, in the place of the oldest.
func (r *prover) remember(ln line) {
	if r.wins < winners {
		r.lines = append(r.lines, ln)
	} else {
		r.lines[len(r.lines)-winners+r.wins%winners] = ln
	}
	r.wins++
}

// ranks returns the base orders: by lifetime W, area A, and the largest sum of
// a section T, combined; by area; by size.
func ranks(p *part) [][]float64 {
	sums := newMaxima(p.sums())
	type measure = func(i int32) int64
	w := func(i int32) int64 { return int64(p.items[i].end - p.items[i].first) }
	a := func(i int32) int64 { return w(i) * p.items[i].size }
	z := func(i int32) int64 { return p.items[i].size }
	t := func(i int32) int64 { return sums.over(p.items[i].first, p.items[i].end) }
	var out [][]float64
	for _, by := range [][]measure{{w, a, t}, {t, a, w}, {t, w, a}, {a}, {z}} {
		order := make([]int32, len(p.items))
		for i := range order {
			order[i] = int32(i)
		}
		slices.SortStableFunc(order, func(x, y int32) int {
			for _, m := range by {
				if c := cmp.Compare(m(y), m(x)); c != 0 {
					return c
				}
			}
			return 0
		})
		rank := make([]float64, len(order))
		for r, i := range order {
			rank[i] = float64(len(order) - 1 - r)
		}
		out = append(out, rank)
	}
	return out
}
