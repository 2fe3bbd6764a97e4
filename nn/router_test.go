package nn

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestRoute checks random routings against what their words mean.
func TestRoute(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 500 {
		tokens, experts := 1+r.IntN(20), 1+r.IntN(6)
		k, capacity := 1+r.IntN(experts), r.IntN(8)
		probs := make([]float32, tokens*experts)
		for i := range probs {
			probs[i] = float32(r.IntN(8)) / 8 // with ties
		}
		checkRouting(t, route(probs, experts, k, capacity), probs, experts, k, capacity)
	}
}

func checkRouting(t *testing.T, r routing, probs []float32, experts, k, capacity int) {
	t.Helper()
	tokens := len(probs) / experts
	var results []int32 // the token of each row of the results
	for _, rows := range r.rows {
		if capacity > 0 && len(rows) != capacity {
			t.Fatalf("%d rows with a capacity of %d", len(rows), capacity)
		}
		results = append(results, rows...)
	}
	chosen := make([]int, experts)
	for i := range k { // first choices first
		for token := range tokens {
			place := token*k + i
			e := int(r.choice[place]) - token*experts
			if e != better(probs[token*experts:(token+1)*experts], i) {
				t.Fatalf("token %d chose expert %d as number %d of %v", token, e, i, probs[token*experts:(token+1)*experts])
			}
			kept := capacity == 0 || chosen[e] < capacity
			chosen[e]++
			if kept != (r.kept[place] == 1) {
				t.Fatalf("place %d is kept: %v, want %v", place, r.kept[place], kept)
			}
			if kept && (results[r.found[place]] != int32(token) || owner(r.rows, r.found[place]) != e) {
				t.Fatalf("place %d of token %d finds the wrong result", place, token)
			}
		}
	}
	for e, n := range chosen {
		if r.load[e] != float32(n)/float32(tokens) {
			t.Fatalf("load of expert %d is %v, want %d/%d", e, r.load[e], n, tokens)
		}
	}
}

// TestRouteGroups: tokens of a group choose and find what they would if the
// group were alone.
func TestRouteGroups(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 0))
	for range 200 {
		groups, tokens, experts := 2+r.IntN(3), 1+r.IntN(9), 1+r.IntN(5)
		k, capacity := 1+r.IntN(experts), 1+r.IntN(5)
		probs := make([]float32, groups*tokens*experts)
		for i := range probs {
			probs[i] = r.Float32()
		}
		all := routeGroups(probs, groups, experts, k, capacity)
		var results []int32
		for _, rows := range all.rows {
			results = append(results, rows...)
		}
		for g := range groups {
			one := route(probs[g*tokens*experts:(g+1)*tokens*experts], experts, k, capacity)
			for p := range one.choice {
				at := g*tokens*k + p
				token, e := all.choice[at]/int32(experts), int(all.choice[at])%experts
				kept := all.kept[at]
				if int(token) != g*tokens+p/k || e != int(one.choice[p])%experts || kept != one.kept[p] {
					t.Fatalf("place %d of group %d: token %d, expert %d, kept %v", p, g, token, e, kept)
				}
				if kept == 1 && (results[all.found[at]] != token || owner(all.rows, all.found[at]) != e) {
					t.Fatalf("place %d of group %d finds the result of another", p, g)
				}
			}
			if !slices.Equal(all.load[g*experts:(g+1)*experts], one.load) {
				t.Fatalf("group %d has load %v, want %v", g, all.load[g*experts:(g+1)*experts], one.load)
			}
		}
	}
}

// better is the index that has exactly n others before it.
func better(values []float32, n int) int {
	for i := range values {
		before := 0
		for j, v := range values {
			if v > values[i] || v == values[i] && j < i {
				before++
			}
		}
		if before == n {
			return i
		}
	}
	return -1
}

// owner is the expert whose rows hold row i of the results.
func owner(rows [][]int32, i int32) int {
	for e := range rows {
		if i -= int32(len(rows[e])); i < 0 {
			return e
		}
	}
	return -1
}

func TestBalanced(t *testing.T) {
	for _, c := range [][3]int{{12, 4, 2}, {8, 8, 1}, {10, 5, 3}} {
		for e, load := range route(balanced(c[0], c[1], c[2]), c[1], c[2], 0).load {
			if want := float32(c[2]) / float32(c[1]); load != want {
				t.Errorf("%v: load of expert %d is %v, want %v", c, e, load, want)
			}
		}
	}
}
