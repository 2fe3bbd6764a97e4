package nn

import (
	"hash/fnv"
	"math/rand/v2"

	"github.com/headroom-go/headroom/internal/safetensors"
	"github.com/headroom-go/headroom/tensor"
)

// Builder makes the layers of one model. Initial values depend on the seed and
// the parameters' names alone; on a device that holds no data none are made.
type Builder struct {
	Hooks *Hooks // of every layer made
	Mode  *Mode  // the same; training to begin with
	Split Split  // which part of the model this rank has

	// Made, if not nil, is told of each parameter when it has its initial values.
	Made func(p *Parameter)

	rt       *tensor.Runtime
	seed     uint64
	expert   bool // what is made belongs to an expert that other ranks have others of
	ofTokens bool // what is made reads the tokens of its rank along tensor
}

// NewBuilder gives a builder of parameters on rt.
func NewBuilder(rt *tensor.Runtime, seed uint64) *Builder {
	return &Builder{Hooks: &Hooks{}, Mode: &Mode{Training: true}, rt: rt, seed: seed}
}

func (b *Builder) place(name string) place { return place{name, b.Hooks} }

// random is the source of a parameter's initial values.
func (b *Builder) random(name string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(name))
	return rand.New(rand.NewPCG(b.seed, h.Sum64()))
}

// Normal gives a parameter drawn from N(0, std²).
func (b *Builder) Normal(name string, std float64, shape ...int) *Parameter {
	return b.normal(name, std, share{}, shape...)
}

func (b *Builder) normal(name string, std float64, s share, shape ...int) *Parameter {
	r := b.random(name)
	return b.fill(name, func() float32 { return float32(r.NormFloat64() * std) }, s, shape...)
}

// Uniform gives a parameter drawn evenly from −bound to bound.
func (b *Builder) Uniform(name string, bound float64, shape ...int) *Parameter {
	r := b.random(name)
	return b.fill(name, func() float32 { return float32((2*r.Float64() - 1) * bound) }, share{}, shape...)
}

// Constant gives a parameter with all elements equal to v.
func (b *Builder) Constant(name string, v float32, shape ...int) *Parameter {
	return b.constant(name, v, share{}, shape...)
}

func (b *Builder) constant(name string, v float32, s share, shape ...int) *Parameter {
	return b.fill(name, func() float32 { return v }, s, shape...)
}

// Buffer gives an array with all elements equal to v that collects no
// gradient but is a part of the model's state.
func (b *Builder) Buffer(name string, v float32, shape ...int) *Parameter {
	defer func(made func(*Parameter)) { b.Made = made }(b.Made)
	b.Made = nil
	p := b.Constant(name, v, shape...)
	defer p.Release()
	return &Parameter{Name: name, Tensor: p.Detach()}
}

// fill makes a parameter whose array has the values that next gives, of which
// this rank has its share.
func (b *Builder) fill(name string, next func() float32, s share, shape ...int) *Parameter {
	p := b.empty(name, s, shape)
	if b.rt.Holds() {
		p.Set(drawn(p.Piece(), next))
	}
	if b.Made != nil {
		b.Made(p)
	}
	return p
}

// drawn are a piece's elements where next gives those of the whole array in turn.
func drawn(piece safetensors.Piece, next func() float32) []float32 {
	data, at := make([]float32, piece.Len()), 0
	_ = safetensors.Overlap(safetensors.Box(piece.Whole, nil, piece.Whole), piece, func(from, to, n int) error { // from grows
		for ; at < from; at++ {
			next()
		}
		for i := range n {
			data[to+i] = next()
		}
		at += n
		return nil
	})
	return data
}

// Linear is y = x·Wᵀ + b with W [out, in], the layout of PyTorch's Linear, or
// y = x·W + b with W [in, out], that of GPT-2's Conv1D. Bias may be nil.
type Linear struct {
	Weight, Bias *Parameter

	transposed bool // W is [out, in]
	line       line // of ranks that have each a part of the input's width, and get their tokens' results
	place
}

// Linear gives a layer with weights [out, in] from N(0, std²) and a bias of 0.
func (b *Builder) Linear(name string, in, out int, std float64) *Linear {
	return b.linear(name, in, out, std, whole)
}

// LinearNoBias gives a layer with weights [out, in] from N(0, std²) alone.
func (b *Builder) LinearNoBias(name string, in, out int, std float64) *Linear {
	return &Linear{Weight: b.Normal(name+".weight", std, out, in), transposed: true, place: b.place(name)}
}

// Conv1D gives a layer with weights [in, out] from N(0, std²) and a bias of 0.
func (b *Builder) Conv1D(name string, in, out int, std float64) *Linear {
	return b.conv1D(name, in, out, std, whole)
}

// Parameters gives weight and bias.
func (l *Linear) Parameters() []*Parameter {
	if l.Bias == nil {
		return []*Parameter{l.Weight}
	}
	return []*Parameter{l.Weight, l.Bias}
}

// Forward is over the last dimension of x.
func (l *Linear) Forward(x *tensor.Tensor) *tensor.Tensor { return l.call(l, x, l.forward) }

func (l *Linear) forward(x *tensor.Tensor) *tensor.Tensor {
	if l.line.Group == nil {
		return tensor.Linear(x, l.Weight.Tensor, l.Bias.tensor(), l.transposed)
	}
	part := tensor.Linear(x, l.Weight.Tensor, nil, l.transposed)
	return add(then(part, l.line.scatter), l.Bias.Retain())
}

// sideBySide gives the results of layers of one input, each of which has weights
// [out, in] and a bias, in one array. It calls no hooks of theirs.
func sideBySide(x *tensor.Tensor, layers ...*Linear) *tensor.Tensor {
	var weights, biases []*tensor.Tensor
	for _, l := range layers {
		weights, biases = append(weights, l.Weight.Tensor), append(biases, l.Bias.Tensor)
	}
	return tensor.LinearJoined(x, weights, biases)
}

// LayerNorm normalises the last dimension.
type LayerNorm struct {
	Weight, Bias *Parameter
	Eps          float32

	place
}

// LayerNorm gives a layer with weights of 1 and a bias of 0.
func (b *Builder) LayerNorm(name string, width int, eps float32) *LayerNorm {
	return &LayerNorm{b.Constant(name+".weight", 1, width), b.Constant(name+".bias", 0, width), eps, b.place(name)}
}

// Parameters gives weight and bias.
func (l *LayerNorm) Parameters() []*Parameter { return []*Parameter{l.Weight, l.Bias} }

// Forward is over the last dimension of x.
func (l *LayerNorm) Forward(x *tensor.Tensor) *tensor.Tensor {
	return l.call(l, x, func(x *tensor.Tensor) *tensor.Tensor {
		return tensor.LayerNorm(x, l.Weight.Tensor, l.Bias.Tensor, l.Eps)
	})
}

// Low is Forward with a result in 16 bits under autocast, where Forward gives float32:
// for products and for a residual stream.
func (l *LayerNorm) Low(x *tensor.Tensor) *tensor.Tensor {
	return l.call(l, x, func(x *tensor.Tensor) *tensor.Tensor {
		return tensor.LayerNormLow(x, l.Weight.Tensor, l.Bias.Tensor, l.Eps)
	})
}

// added is Low of x + drop(a), computed at once; a it releases. It calls no hooks of drop's.
func (l *LayerNorm) added(x, a *tensor.Tensor, drop *Dropout) *tensor.Tensor {
	defer a.Release()
	return l.call(l, x, func(x *tensor.Tensor) *tensor.Tensor {
		return tensor.AddLayerNorm(x, a, l.Weight.Tensor, l.Bias.Tensor, l.Eps, drop.now(), drop.line.part(x))
	})
}

// IgnoreTarget is the target that losses leave out.
const IgnoreTarget = -100

// then applies f to x, which it releases: it follows one layer by the next.
func then(x *tensor.Tensor, f func(*tensor.Tensor) *tensor.Tensor) *tensor.Tensor {
	defer x.Release()
	return f(x)
}

// add is a + b, of which it releases both; a may be nil.
func add(a, b *tensor.Tensor) *tensor.Tensor {
	if a == nil {
		return b
	}
	defer a.Release()
	defer b.Release()
	return tensor.Add(a, b)
}
