package generate

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// chances is the probability of each token by the definitions, in float64: a
// softmax, the k greatest, the fewest that come to p.
func chances(logits []float32, s Sampling) []float64 {
	p := make([]float64, len(logits))
	order := make([]int, len(logits))
	for i, x := range logits {
		p[i], order[i] = math.Exp(float64(x)/s.Temperature), i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Or(cmp.Compare(p[b], p[a]), cmp.Compare(a, b)) })
	keep := func(n int) {
		for _, i := range order[n:] {
			p[i] = 0
		}
		sum := 0.0
		for _, x := range p {
			sum += x
		}
		for i := range p {
			p[i] /= sum
		}
	}
	if s.TopK > 0 {
		keep(min(s.TopK, len(order)))
	}
	keep(len(order))
	if s.TopP > 0 {
		sum, n := 0.0, 0
		for sum < s.TopP-1e-12 && n < len(order) {
			sum += p[order[n]]
			n++
		}
		keep(n)
	}
	return p
}

// TestChoose compares how often tokens are chosen with their probabilities, and
// that none is chosen that was cut.
func TestChoose(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 25 {
		logits := make([]float32, 1+r.IntN(30))
		for i := range logits {
			logits[i] = float32(r.IntN(9)) / 2 // some are equal
		}
		s := Sampling{Temperature: 0.3 + r.Float64(), TopK: r.IntN(12), TopP: []float64{0, 0.5, 0.9, 1}[r.IntN(4)], Seed: r.Uint64()}
		want := chances(logits, s)
		const n = 3000
		got := make([]float64, len(logits))
		for place := range n {
			token, err := s.choose(logits, place)
			if err != nil {
				t.Fatal(err)
			}
			got[token] += 1. / n
		}
		for i := range want {
			if want[i] == 0 && got[i] > 0 || math.Abs(got[i]-want[i]) > 5*math.Sqrt(0.25/n) {
				t.Errorf("%+v of %v: token %d comes with %.3f, want %.3f", s, logits, i, got[i], want[i])
			}
		}
	}
}

// TestChooseGreatest takes the first of the greatest; a logit that is no number
// is an error.
func TestChooseGreatest(t *testing.T) {
	inf, nan := float32(math.Inf(-1)), float32(math.NaN())
	for _, s := range []Sampling{{}, {Temperature: 1, TopK: 1}, {Temperature: 1e-9, TopK: 2}} {
		if got, err := s.choose([]float32{inf, 1, 3, 2, inf}, 7); got != 2 || err != nil {
			t.Errorf("%+v: %d, %v", s, got, err)
		}
		if _, err := s.choose([]float32{1, nan}, 7); err == nil {
			t.Errorf("%+v: no error of a logit that is no number", s)
		}
	}
	if got, _ := (Sampling{}).choose([]float32{1, 3, 3}, 0); got != 1 {
		t.Errorf("token %d of two equal ones", got)
	}
}
