package nn

import (
	"math/rand/v2"
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
