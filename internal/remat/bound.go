package remat

import (
	"cmp"
	"math"
	"slices"
)

// lower is a proved bound on the time that any plan within the budget computes
// again, in ns, and whether a plan can exist at all. At each operation of the
// program every value made earlier and read later is in memory or made again
// at least once: what does not fit costs at least a fractional knapsack.
func (g *graph) lower(budget int64) (int64, bool) {
	order := make([]int32, 0, g.n)
	for op := range int32(g.n) {
		if g.add[op] > 0 && !g.once[op] {
			order = append(order, op)
		}
	}
	slices.SortFunc(order, func(a, b int32) int {
		return cmp.Compare(float64(g.cost[a])/float64(g.add[a]), float64(g.cost[b])/float64(g.add[b]))
	})
	end := make([]int32, len(g.size)) // last read by the program
	for v := range end {
		end[v] = g.prod[v]
		if c := g.cons[v]; len(c) > 0 {
			end[v] = c[len(c)-1]
		}
	}
	var best float64
	feasible := true
	live := g.liveAt(end)
	for t := range int32(g.n + 1) {
		if live[t] <= budget {
			continue
		}
		cost, ok := g.knapsack(t, live[t]-budget, order, end)
		best, feasible = max(best, cost), feasible && ok
	}
	return int64(math.Ceil(best)), feasible
}

// liveAt is the memory at each stage when everything is kept until its last read.
func (g *graph) liveAt(end []int32) []int64 {
	live := make([]int64, g.n+2)
	for v, b := range g.size {
		live[g.prod[v]] += b
		live[end[v]+1] -= b
	}
	var sum int64
	for t := range live[:g.n+1] {
		sum += live[t]
		live[t] = sum + g.base[t] + g.work[t]
	}
	return live
}

// knapsack is the least cost to make again enough of what lies unread at stage t.
func (g *graph) knapsack(t int32, excess int64, order, end []int32) (cost float64, ok bool) {
	for _, op := range order {
		if op >= t {
			continue
		}
		var bytes int64
		for _, v := range g.outs[op] {
			if end[v] > t && !slices.Contains(g.args[t], v) {
				bytes += g.size[v]
			}
		}
		if bytes == 0 {
			continue
		}
		ratio := float64(g.cost[op]) / float64(g.add[op])
		if bytes >= excess {
			return cost + ratio*float64(excess), true
		}
		cost += ratio * float64(bytes)
		excess -= bytes
	}
	return cost, false
}
