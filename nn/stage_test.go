package nn_test

import (
	"slices"
	"testing"

	"github.com/headroom-go/headroom/nn"
)

// TestStages: the stages of a pipeline have together the parameters of the whole
// model, with the same values, each once but for what is tied, and all have some.
func TestStages(t *testing.T) {
	rt := runtime(t)
	bert := nn.BERTConfig{Vocab: 30, Width: 16, Layers: 5, Heads: 2, Hidden: 24, Context: 12, Types: 2, Eps: 1e-12}
	for name, build := range map[string]func(b *nn.Builder) nn.Module{
		"gpt2": func(b *nn.Builder) nn.Module {
			return b.GPT2(nn.GPT2Config{Vocab: 400, Context: 16, Width: 16, Layers: 6, Heads: 2})
		},
		"masked":  func(b *nn.Builder) nn.Module { return b.MaskedLM(bert) },
		"classes": func(b *nn.Builder) nn.Module { return b.Classifier(bert, 3) },
		"moe": func(b *nn.Builder) nn.Module {
			return b.MoE(nn.MoEConfig{Vocab: 30, Width: 16, Layers: 4, Experts: 4, TopK: 2, Hidden: 24, Heads: 2, Context: 8, Balance: 0.01, Capacity: 1.25})
		},
	} {
		whole := build(nn.NewBuilder(rt, 7))
		want := map[string]*nn.Parameter{}
		for _, p := range whole.Parameters() {
			want[p.Name] = p
		}
		for stages := 2; stages <= 4; stages++ {
			found, tied := map[string][]int{}, map[string]int{}
			for stage := range stages {
				b := nn.NewBuilder(rt, 7)
				b.Split.Stage, b.Split.Stages = stage, stages
				m := build(b)
				for _, p := range m.Parameters() {
					if found[p.Name] = append(found[p.Name], stage); p.Tied {
						tied[p.Name]++
					}
					if w := want[p.Name]; w == nil || !slices.Equal(p.Float32s(), w.Float32s()) {
						t.Errorf("%s, stage %d of %d: %s is not the whole model's", name, stage, stages, p.Name)
					}
				}
				if len(m.Parameters()) < 10 {
					t.Errorf("%s, stage %d of %d has %d parameters", name, stage, stages, len(m.Parameters()))
				}
				nn.Release(m)
			}
			for p := range want {
				both := p == "transformer.wte.weight" || name == "masked" && p == "bert.embeddings.word_embeddings.weight"
				if both && !(slices.Equal(found[p], []int{0, stages - 1}) && tied[p] == 2) || !both && !(len(found[p]) == 1 && tied[p] == 0) {
					t.Errorf("%s: %s is on stages %v of %d, tied on %d", name, p, found[p], stages, tied[p])
				}
			}
		}
		nn.Release(whole)
	}
}
