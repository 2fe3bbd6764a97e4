package nn_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

const lineBatch, lineTokens, lineWords = 2, 8, 20

// lineModel is a model with the arrays of a batch, int32 [batch, tokens].
type lineModel struct {
	nn.Module
	logits func(tokens, types *tensor.Tensor) *tensor.Tensor
	loss   func(tokens, types, targets *tensor.Tensor) *tensor.Tensor
}

func lineGPT2(b *nn.Builder) lineModel {
	m := b.GPT2(nn.GPT2Config{Vocab: lineWords, Context: 10, Width: 8, Layers: 2, Heads: 4})
	return lineModel{m, func(tokens, _ *tensor.Tensor) *tensor.Tensor { return m.Forward(tokens) },
		func(tokens, _, targets *tensor.Tensor) *tensor.Tensor { return m.Loss(tokens, targets) }}
}

func lineBERT(b *nn.Builder) lineModel {
	m := b.MaskedLM(nn.BERTConfig{Vocab: lineWords, Width: 8, Layers: 2, Heads: 4, Hidden: 12, Context: 10, Types: 3, Dropout: 0.2, Eps: 1e-6})
	in := func(tokens, types *tensor.Tensor) nn.BERTInput { return nn.BERTInput{Tokens: tokens, Types: types} }
	return lineModel{m, func(tokens, types *tensor.Tensor) *tensor.Tensor { return m.Forward(in(tokens, types)) },
		func(tokens, types, targets *tensor.Tensor) *tensor.Tensor { return m.Loss(in(tokens, types), targets) }}
}

// TestLine compares models on 2 and 4 ranks along tensor with the same on one: the
// logits of each rank's words, the loss of all tokens, and the gradients of parameters
// that all have, which are those of one device or, where Partial says so, add up to it.
func TestLine(t *testing.T) {
	onHost(t)
	for name, build := range map[string]func(*nn.Builder) lineModel{"gpt2": lineGPT2, "bert": lineBERT} {
		for _, ranks := range []int{2, 4} {
			t.Run(fmt.Sprintf("%s on %d", name, ranks), func(t *testing.T) {
				want, got := onLine(t, build, nn.Split{}), make([]map[string][]float32, ranks)
				var ended sync.WaitGroup
				for r, g := range dist.Local(ranks, dist.Options{}) {
					ended.Go(func() {
						got[r] = onLine(t, build, nn.Split{Tensor: g})
						if err := errors.Join(g.Err(), g.Close()); err != nil {
							t.Error(err)
						}
					})
				}
				ended.Wait()
				for _, key := range slices.Sorted(maps.Keys(want)) {
					compareLine(t, key, got, want[key])
				}
			})
		}
	}
}

// onLine gives the results of a rank; the keys of gradients of a part of the tokens
// begin with "part".
func onLine(t *testing.T, build func(*nn.Builder) lineModel, split nn.Split) map[string][]float32 {
	rt := runtime(t)
	b := nn.NewBuilder(rt, 3)
	b.Split = split
	m := build(b)
	defer nn.Release(m)
	array := func(step, below int) *tensor.Tensor {
		numbers := make([]int32, lineBatch*lineTokens)
		for i := range numbers {
			numbers[i] = int32(i * step % below)
		}
		return rt.FromInt32s(trace.Input, numbers, lineBatch, lineTokens)
	}
	tokens, types, targets := array(7, lineWords), array(5, 3), array(3, lineWords)
	rt.SetSeed(5)
	logits := m.logits(tokens, types)
	rt.SetSeed(6)
	loss := m.loss(tokens, types, targets)
	loss.Backward(1)
	got := map[string][]float32{"logits": logits.Float32s(), "loss": loss.Float32s()}
	for _, p := range m.Parameters() {
		switch {
		case p.Partial:
			got["part "+p.Name] = p.Grad().Float32s()
		case p.Whole == nil:
			got[p.Name] = p.Grad().Float32s()
		}
	}
	nn.ZeroGrad(m)
	for _, h := range []*tensor.Tensor{tokens, types, targets, logits, loss} {
		h.Release()
	}
	return got
}

// compareLine compares what ranks have of one result with want.
func compareLine(t *testing.T, key string, got []map[string][]float32, want []float32) {
	t.Helper()
	partial := got[0]["part "+key] != nil
	for r := range got {
		own := got[r][key]
		switch {
		case key == "logits":
			n := lineWords / len(got)
			var words []float32
			for i := 0; i < len(want); i += lineWords {
				words = append(words, want[i+r*n:][:n]...)
			}
			sameNumbers(t, key, own, words)
		case partial && r == 0:
			sum := slices.Clone(got[0]["part "+key])
			for _, other := range got[1:] {
				for i, v := range other["part "+key] {
					sum[i] += v
				}
			}
			sameNumbers(t, key, sum, want)
		case !partial && own != nil:
			sameNumbers(t, key, own, want)
		}
	}
}

func sameNumbers(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s has %d numbers, want %d", what, len(got), len(want))
		return
	}
	most := float64(max(slices.Max(want), -slices.Min(want)))
	for i, w := range want {
		if !(math.Abs(float64(got[i]-w)) <= 1e-5*most) {
			t.Errorf("%s is %v, want %v", what, got, want)
			return
		}
	}
}
