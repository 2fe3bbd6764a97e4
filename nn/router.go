package nn

import "slices"

// routing says which expert computes which token, in one layer.
//
// A token has one place for each of its choices. Experts compute rows, which
// are tokens; their results lie one expert after the other, and each place
// finds its result there. For two tokens that both choose experts 2 and 0 of 3,
// in this order:
//
//	rows    [[0 1] [] [0 1]]    of each expert
//	choice  [2 0, 5 3]          token·experts + expert, of each place
//	found   [2 0, 3 1]          of each place, the row of the results
type routing struct {
	rows   [][]int32
	choice []int32
	found  []int32
	kept   []float32 // 1 for each place, 0 where its expert had no room left
	load   []float32 // of each expert, its places (with or without room) per token; group after group
}

// routeGroups routes equal parts of the tokens, each by itself. The rows of an
// expert are those of all groups, one after the other; more than one group
// needs a capacity.
func routeGroups(probs []float32, groups, experts, k, capacity int) routing {
	if groups == 1 {
		return route(probs, experts, k, capacity)
	}
	all := routing{rows: make([][]int32, experts)}
	tokens := len(probs) / experts / groups
	for g := range groups {
		r := route(probs[g*tokens*experts:(g+1)*tokens*experts], experts, k, capacity)
		for e, rows := range r.rows {
			for _, t := range rows {
				all.rows[e] = append(all.rows[e], t+int32(g*tokens))
			}
		}
		for p, row := range r.found {
			e, within := int(row)/capacity, int(row)%capacity
			all.choice = append(all.choice, r.choice[p]+int32(g*tokens*experts))
			all.found = append(all.found, int32((e*groups+g)*capacity+within))
		}
		all.kept, all.load = append(all.kept, r.kept...), append(all.load, r.load...)
	}
	return all
}

// route gives each token, a row of probabilities of the experts, its k most
// probable experts; of equal ones the first. With a capacity over 0 every
// expert computes exactly so many rows, so that memory does not depend on the
// data: places beyond it are dropped, first choices before second ones and
// early tokens before late ones (Lepikhin et al., "GShard", 2020), and rows
// that are left compute token 0 for nobody. With a capacity of 0 nothing is
// dropped.
func route(probs []float32, experts, k, capacity int) routing {
	tokens := len(probs) / experts
	r := routing{rows: make([][]int32, experts), choice: make([]int32, tokens*k), found: make([]int32, tokens*k),
		kept: make([]float32, tokens*k), load: make([]float32, experts)}
	for t := range tokens {
		for i, e := range largest(probs[t*experts:(t+1)*experts], k) {
			r.choice[t*k+i] = int32(t*experts + e)
		}
	}
	for i := range k {
		for t := range tokens {
			r.admit(t, t*k+i, int(r.choice[t*k+i])%experts, capacity)
		}
	}
	r.settle(tokens, experts, capacity)
	return r
}

// admit gives a place of a token its row of expert e, if there is room; found
// counts from the expert's first row until settle.
func (r *routing) admit(token, place, e, capacity int) {
	r.load[e]++
	if capacity > 0 && len(r.rows[e]) == capacity {
		return
	}
	r.kept[place] = 1
	r.found[place] = int32(len(r.rows[e]))
	r.rows[e] = append(r.rows[e], int32(token))
}

// settle fills the rows up and turns counts into positions and fractions.
func (r *routing) settle(tokens, experts, capacity int) {
	first := make([]int32, experts+1)
	for e := range r.rows {
		for len(r.rows[e]) < capacity {
			r.rows[e] = append(r.rows[e], 0)
		}
		first[e+1] = first[e] + int32(len(r.rows[e]))
		r.load[e] /= float32(tokens)
	}
	for p := range r.found {
		if r.kept[p] != 0 {
			r.found[p] += first[int(r.choice[p])%experts]
		}
	}
}

// largest gives the indices of the k greatest values, the greatest first; of
// equal ones the first.
func largest(values []float32, k int) []int {
	order := make([]int, len(values))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case values[a] > values[b]:
			return -1
		case values[a] < values[b]:
			return 1
		}
		return 0
	})
	return order[:k]
}

// balanced gives probabilities under which token t chooses experts t·k, t·k+1,
// ... in turn: what a device that holds no data is taken to have computed.
func balanced(tokens, experts, k int) []float32 {
	probs := make([]float32, tokens*experts)
	for t := range tokens {
		for i := range k {
			probs[t*experts+(t*k+i)%experts] = 1
		}
	}
	return probs
}
