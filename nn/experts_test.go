package nn_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// TestSpreadExperts compares a layer whose experts lie on 2 and 4 ranks with the
// layer on one device, for the tokens of all of them: results, the gradients of the
// tokens, and those of parameters, of the router the sum over the ranks. With a
// capacity and without, with recompute, and where no token chooses the experts of
// one rank, whose parameters then have no gradient.
func TestSpreadExperts(t *testing.T) {
	onHost(t)
	for _, c := range []struct {
		ranks    int
		capacity float64
		again    bool
		biased   bool // all choose the first three experts
	}{{2, 0, false, false}, {4, 0, true, false}, {2, 1.5, true, false}, {4, 1.5, false, true}, {2, 0, true, true}, {4, 0, false, true}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			config := nn.MoEConfig{Width: 6, Layers: 1, Experts: 8, TopK: 2, Hidden: 10, Capacity: c.capacity}
			const tokens = 5 // of a rank
			var around nn.Around
			if c.again {
				around = func(_ int, x *tensor.Tensor, part func(*tensor.Tensor) *tensor.Tensor) *tensor.Tensor {
					return tensor.Checkpoint(x, part)
				}
			}
			run := func(split nn.Split, from, to int) map[string][]float32 {
				rt := runtime(t)
				b := nn.NewBuilder(rt, 3)
				b.Split = split
				layer := b.MoELayer("moe", config)
				defer nn.Release(layer)
				if c.biased {
					fill(layer.Gate.Weight, func(i int) float32 { return float32(max(0, 3-i/6)) })
				}
				x := rt.FromFloat32s(trace.Input, values(tokens*6*from, tokens*6*to), to-from, tokens, 6)
				x.RequireGrad()
				defer x.Release()
				y, balance := layer.Forward(x, 0, around)
				balance.Release()
				out := map[string][]float32{"y": y.Float32s()}
				square := tensor.Mul(y, y)
				sum := tensor.Sum(square)
				sum.Backward(1)
				for _, h := range []*tensor.Tensor{y, square, sum} {
					h.Release()
				}
				out["x"] = x.Grad().Float32s()
				for _, p := range layer.Parameters() {
					if g := p.Grad(); g != nil {
						out[p.Name] = g.Float32s()
					}
					if p.Expert != (split.Expert != nil && strings.Contains(p.Name, "experts")) {
						t.Errorf("%s: Expert is %v", p.Name, p.Expert)
					}
				}
				return out
			}
			want, got := run(nn.Split{}, 0, c.ranks), make([]map[string][]float32, c.ranks)
			var ended sync.WaitGroup
			for r, g := range dist.Local(c.ranks, dist.Options{}) {
				ended.Go(func() {
					got[r] = run(nn.Split{Expert: g}, r, r+1)
					if err := errors.Join(g.Err(), g.Close()); err != nil {
						t.Error(err)
					}
				})
			}
			ended.Wait()
			all := map[string][]float32{}
			for _, of := range got {
				for name, v := range of {
					switch {
					case name == "moe.gate.weight" && all[name] != nil:
						for i := range v {
							all[name][i] += v[i]
						}
					case all[name] != nil && name != "x" && name != "y":
						t.Errorf("two ranks have %s", name)
					default:
						all[name] = append(all[name], v...)
					}
				}
			}
			if len(all) != len(want) {
				t.Errorf("%d arrays, want %d", len(all), len(want))
			}
			for name, w := range want {
				for i := range w {
					if len(all[name]) != len(w) || math.Abs(float64(all[name][i]-w[i])) > 1e-6*(1+math.Abs(float64(w[i]))) {
						t.Errorf("%s is %v, want %v", name, all[name], w)
						break
					}
				}
			}
		})
	}
}

// values are numbers from a place to another in a fixed sequence.
func values(from, to int) (v []float32) {
	for i := from; i < to; i++ {
		v = append(v, float32(math.Sin(float64(i)*1.7))+0.3)
	}
	return v
}
