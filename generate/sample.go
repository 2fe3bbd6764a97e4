package generate

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Sampling says how the next token is chosen. The zero value takes the most
// probable one. The choice depends on the logits, the seed and the place in the
// text alone, so that a text is the same whatever runs beside it.
type Sampling struct {
	Temperature float64 // logits are divided by it; 0 takes the most probable token
	TopK        int     // choose among so many of the most probable; 0 for all
	TopP        float64 // choose among the fewest whose probabilities come to this; 0 for all (Holtzman et al., 2020)
	Seed        uint64
}

// Validate says what is wrong with s, if anything.
func (s Sampling) Validate() error {
	if !(s.Temperature >= 0) || math.IsInf(s.Temperature, 0) || s.TopK < 0 || !(s.TopP >= 0 && s.TopP <= 1) {
		return fmt.Errorf("generate: temperature %g, top-k %d, top-p %g: the temperature and top-k must be at least 0, top-p from 0 to 1", s.Temperature, s.TopK, s.TopP)
	}
	return nil
}

// candidate is a token that may come next.
type candidate struct {
	token  int32
	weight float64 // its probability, times a number that all have in common
}

// choose gives the token at a place of a text. Of equally probable tokens the
// first comes first.
func (s Sampling) choose(logits []float32, place int) (int32, error) {
	best := 0
	for i, x := range logits {
		if x != x {
			return 0, fmt.Errorf("generate: the model's logit of token %d at place %d of a text is no number", i, place)
		}
		if x > logits[best] {
			best = i
		}
	}
	if s.Temperature == 0 || s.TopK == 1 {
		return int32(best), nil
	}
	all := s.weigh(logits, logits[best])
	all = s.cutK(all)
	all = s.cutP(all)
	u := rand.New(rand.NewPCG(s.Seed, uint64(place))).Float64() * total(all)
	for _, c := range all {
		if u -= c.weight; u < 0 {
			return c.token, nil
		}
	}
	return all[len(all)-1].token, nil
}

// weigh gives the candidates that are not impossible, in order of their tokens.
func (s Sampling) weigh(logits []float32, best float32) []candidate {
	all := make([]candidate, 0, len(logits))
	for i, x := range logits {
		if w := math.Exp(float64(x-best) / s.Temperature); w > 0 {
			all = append(all, candidate{int32(i), w})
		}
	}
	return all
}

// cutK leaves the TopK most probable.
func (s Sampling) cutK(all []candidate) []candidate {
	if s.TopK == 0 || s.TopK >= len(all) {
		return all
	}
	sortByWeight(all)
	return all[:s.TopK]
}

// cutP leaves the fewest that come to TopP. Those under (1−TopP)/n of the total
// come to less than 1−TopP together and need not be sorted.
func (s Sampling) cutP(all []candidate) []candidate {
	if s.TopP == 0 || s.TopP == 1 {
		return all
	}
	want, sum := s.TopP*total(all), total(all)
	least := (1 - s.TopP) * sum / float64(len(all))
	all = slices.DeleteFunc(all, func(c candidate) bool { return c.weight < least })
	sortByWeight(all)
	for i, c := range all {
		if want -= c.weight; want <= 0 {
			return all[:i+1]
		}
	}
	return all
}

func sortByWeight(all []candidate) {
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(a.token, b.token))
	})
}

func total(all []candidate) (sum float64) {
	for _, c := range all {
		sum += c.weight
	}
	return sum
}
