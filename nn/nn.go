// Package nn builds models and updates them: layers, losses, optimizers and
// state files.
package nn

import (
	"hash/fnv"
	"math"
	"math/rand/v2"

	"github.com/headroom-go/headroom/tensor"
)

// Parameter is a leaf tensor with the name that it has in state files.
type Parameter struct {
	Name string
	*tensor.Tensor
}

// Module is a part of a model. Parameters gives each of its parameters once,
// in a fixed order; a tied parameter belongs to its first user.
type Module interface {
	Parameters() []*Parameter
}

// Count is the number of elements of all parameters.
func Count(m Module) int {
	n := 0
	for _, p := range m.Parameters() {
		n += p.Len()
	}
	return n
}

// Release frees the parameters.
func Release(m Module) {
	for _, p := range m.Parameters() {
		p.Release()
	}
}

// ZeroGrad frees the gradients.
func ZeroGrad(m Module) {
	for _, p := range m.Parameters() {
		p.ZeroGrad()
	}
}

// maker makes parameters with initial values that depend on the seed and
// their names alone.
type maker struct {
	rt   *tensor.Runtime
	seed uint64
}

// normal gives a parameter drawn from N(0, std²).
func (m maker) normal(name string, std float64, shape ...int) *Parameter {
	h := fnv.New64a()
	h.Write([]byte(name))
	r := rand.New(rand.NewPCG(m.seed, h.Sum64()))
	return m.fill(name, func() float32 { return float32(r.NormFloat64() * std) }, shape...)
}

// constant gives a parameter with all elements equal to v.
func (m maker) constant(name string, v float32, shape ...int) *Parameter {
	return m.fill(name, func() float32 { return v }, shape...)
}

func (m maker) fill(name string, next func() float32, shape ...int) *Parameter {
	p := &Parameter{name, m.rt.Parameter(shape...)}
	if m.rt.Holds() {
		data := make([]float32, p.Len())
		for i := range data {
			data[i] = next()
		}
		p.Set(data)
	}
	return p
}

// Linear is y = x·W + b with W [in, out], the layout of GPT-2's Conv1D.
type Linear struct{ Weight, Bias *Parameter }

func (m maker) linear(name string, in, out int, std float64) *Linear {
	return &Linear{m.normal(name+".weight", std, in, out), m.constant(name+".bias", 0, out)}
}

// Parameters gives weight and bias.
func (l *Linear) Parameters() []*Parameter { return []*Parameter{l.Weight, l.Bias} }

// Forward is over the last dimension of x.
func (l *Linear) Forward(x *tensor.Tensor) *tensor.Tensor {
	return tensor.Linear(x, l.Weight.Tensor, l.Bias.Tensor, false)
}

// LayerNorm normalises the last dimension.
type LayerNorm struct {
	Weight, Bias *Parameter
	Eps          float32
}

func (m maker) layerNorm(name string, width int) *LayerNorm {
	return &LayerNorm{m.constant(name+".weight", 1, width), m.constant(name+".bias", 0, width), 1e-5}
}

// Parameters gives weight and bias.
func (l *LayerNorm) Parameters() []*Parameter { return []*Parameter{l.Weight, l.Bias} }

// Forward is over the last dimension of x.
func (l *LayerNorm) Forward(x *tensor.Tensor) *tensor.Tensor {
	return tensor.LayerNorm(x, l.Weight.Tensor, l.Bias.Tensor, l.Eps)
}

// projectionStd is the deviation of the initial weights of projections into
// the residual stream, which 2·layers of them are added to (Radford et al., 2019).
func projectionStd(layers int) float64 { return 0.02 / math.Sqrt(2*float64(layers)) }
