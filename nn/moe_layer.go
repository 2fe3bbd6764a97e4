package nn

import (
	"fmt"
	"math"

	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/tensor"
)

// MoELayer is a router and its experts, or those that this rank has of them.
type MoELayer struct {
	Gate    *Linear
	Experts []*Expert

	first  int        // the number of the first expert
	ranks  dist.Group // that have the others; nil for none
	line   line       // that have other tokens of the input of after
	config MoEConfig
	place
}

// Expert is two linear layers with GELU between them.
type Expert struct {
	Up, Down *Linear

	place
}

// MoELayer gives a layer of c.Experts experts, which a Split.Expert spreads over its
// ranks. It panics where they don't divide (MoEConfig.SplitExperts).
func (b *Builder) MoELayer(name string, c MoEConfig) *MoELayer {
	first, end := b.Split.experts(c)
	l := &MoELayer{Gate: b.LinearNoBias(name+".gate", c.Width, c.Experts, 0.02), first: first, ranks: b.Split.Expert, line: b.line(), config: c, place: b.place(name)}
	b.expert = l.ranks != nil
	defer func() { b.expert = false }()
	for i := first; i < end; i++ {
		at := fmt.Sprintf("%s.experts.%d", name, i)
		l.Experts = append(l.Experts, &Expert{place: b.place(at),
			Up:   b.Linear(at+".0", c.Width, c.Hidden, 0.02),
			Down: b.Linear(at+".2", c.Hidden, c.Width, projectionStd(c.Layers))})
	}
	return l
}

// Parameters gives those of the router and the experts.
func (l *MoELayer) Parameters() []*Parameter {
	ps := l.Gate.Parameters()
	for _, e := range l.Experts {
		ps = append(ps, e.Parameters()...)
	}
	return ps
}

// Parameters gives those of both layers.
func (e *Expert) Parameters() []*Parameter { return parameters(e.Up, e.Down) }

// after is x + experts(norm(x)), and the layer's balancing loss. x is this rank's
// tokens along tensor; all ranks there route all tokens.
func (l *MoELayer) after(norm *LayerNorm, x *tensor.Tensor, i int, around Around) (y, balance *tensor.Tensor) {
	h := then(norm.Forward(x), l.line.whole)
	defer h.Release()
	out, balance := l.Forward(h, i, around)
	return add(then(then(out, l.line.own), tensor.Low), x.Retain()), balance
}

// Forward gives the experts' weighted results for x, [..., width], and the
// layer's balancing loss. The experts run as part i of around.
func (l *MoELayer) Forward(x *tensor.Tensor, i int, around Around) (y, balance *tensor.Tensor) {
	y = l.call(l, x, func(x *tensor.Tensor) *tensor.Tensor {
		y, balance = l.forward(x, i, around)
		return y
	})
	return y, balance
}

func (l *MoELayer) forward(x *tensor.Tensor, i int, around Around) (y, balance *tensor.Tensor) {
	c := l.config
	flat := tensor.Reshape(x, -1, c.Width)
	defer flat.Release()
	probs := then(l.Gate.Forward(flat), tensor.Softmax)
	defer probs.Release()
	r := l.route(probs, l.groups(x))
	t := l.traffic(x.Runtime(), r.rows)
	all := around.run(i, flat, func(h *tensor.Tensor) *tensor.Tensor { return l.experts(h, r.rows, t) })
	defer all.Release()
	out := l.combine(all, probs, r)
	defer out.Release()
	return tensor.Reshape(out, x.Shape()...), l.balance(probs, r.load)
}

// groups is how many parts of x, [..., T, width], are routed by themselves:
// its sequences where capacity is limited, else all is one.
func (l *MoELayer) groups(x *tensor.Tensor) int {
	if dims := len(x.Shape()); l.config.Capacity > 0 && dims > 2 {
		return x.Len() / (x.Dim(dims-2) * l.config.Width)
	}
	return 1
}

// route waits for the probabilities: how many rows each expert computes is a
// number of the program's.
func (l *MoELayer) route(probs *tensor.Tensor, groups int) routing {
	c, tokens, capacity := l.config, probs.Dim(0), 0
	if c.Capacity > 0 {
		capacity = int(math.Ceil(c.Capacity * float64(tokens/groups*c.TopK) / float64(c.Experts)))
	}
	if probs.Runtime().Holds() {
		return routeGroups(probs.Float32s(), groups, c.Experts, c.TopK, capacity)
	}
	return routeGroups(balanced(tokens, c.Experts, c.TopK), groups, c.Experts, c.TopK, capacity)
}

// experts gives the results of all experts, one after the other.
func (l *MoELayer) experts(h *tensor.Tensor, rows [][]int32, t *traffic) *tensor.Tensor {
	if t != nil {
		return l.spread(h, rows, t)
	}
	var results []*tensor.Tensor
	for e, tokens := range rows {
		if len(tokens) > 0 {
			results = append(results, then(pick(h, tokens, len(tokens)), l.Experts[e].Forward))
		}
	}
	return joined(results)
}

// joined gives results one after the other, and releases them.
func joined(results []*tensor.Tensor) *tensor.Tensor {
	all := tensor.Concat(0, results...)
	for _, r := range results {
		r.Release()
	}
	return all
}

// Forward is over the last dimension of x.
func (e *Expert) Forward(x *tensor.Tensor) *tensor.Tensor {
	return e.call(e, x, func(x *tensor.Tensor) *tensor.Tensor {
		return then(then(e.Up.Forward(x), tensor.GeluErf), e.Down.Forward)
	})
}

// combine adds up, for each token, the results of its places by their weights:
// the probabilities of its choices, which sum to 1.
func (l *MoELayer) combine(all, probs *tensor.Tensor, r routing) *tensor.Tensor {
	k := l.config.TopK
	tokens := len(r.choice) / k
	weights := l.weights(probs, r)
	defer weights.Release()
	found := pick(all, r.found, tokens, k)
	defer found.Release()
	weighted := tensor.Mul(found, weights)
	defer weighted.Release()
	return tensor.Sum(weighted, 1)
}

// weights gives the weight of each place, [tokens, k, 1].
func (l *MoELayer) weights(probs *tensor.Tensor, r routing) *tensor.Tensor {
	k := l.config.TopK
	single := tensor.Reshape(probs, -1, 1)
	defer single.Release()
	chosen := pick(single, r.choice, len(r.choice)/k, k)
	defer chosen.Release()
	sum := tensor.Sum(chosen, 1)
	defer sum.Release()
	weights := tensor.Div(chosen, sum)
	if l.config.Capacity == 0 {
		return weights
	}
	defer weights.Release()
	kept := probs.Runtime().FromFloat32s(unnamed, r.kept, weights.Shape()...)
	defer kept.Release()
	return tensor.Mul(weights, kept)
}

// balance is the layer's balancing loss, the mean over the groups; the load,
// of the experts of each group, has no gradient.
func (l *MoELayer) balance(probs *tensor.Tensor, load []float32) *tensor.Tensor {
	experts := l.config.Experts
	groups := len(load) / experts
	each := tensor.Reshape(probs, groups, -1, experts)
	defer each.Release()
	mean := tensor.Mean(each, 1)
	defer mean.Release()
	f := probs.Runtime().FromFloat32s(unnamed, load, groups, 1, experts)
	defer f.Release()
	products := tensor.Mul(mean, f)
	defer products.Release()
	sum := tensor.Sum(products)
	defer sum.Release()
	return tensor.Scale(sum, float32(experts)/float32(groups))
}

// unnamed is the purpose of a routing's tables in the record of memory: other.
const unnamed = 0

// pick gives the rows of x that index, of the given shape, names.
func pick(x *tensor.Tensor, index []int32, shape ...int) *tensor.Tensor {
	i := x.Runtime().FromInt32s(unnamed, index, shape...)
	defer i.Release()
	return tensor.Embedding(x, i)
}
