package train

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/nn"
)

// Mesh is how the ranks of a run are laid out: how many each axis has, beside the
// axis data, which has what is left. 0 stands for 1. The order of the axes is
// pipeline, data, expert, tensor, the last one fastest, so that neighbours are
// those who talk most.
//
//	pipeline  ranks that have other layers of the model
//	data      ranks that have the same, and other samples
//	expert    ranks that have other experts, and other samples
//	tensor    ranks that have other boxes of the same layers, and the same samples,
//	          of which each has its own tokens between the layers that are cut
//
// A place is all ranks that have the same samples of a batch: there are data ×
// expert of them.
type Mesh struct {
	Pipeline int `json:"pipeline"`
	Expert   int `json:"expert"`
	Tensor   int `json:"tensor"`
}

// The names of the axes.
const (
	axisPipeline = "pipeline"
	axisData     = "data"
	axisExpert   = "expert"
	axisTensor   = "tensor"
)

// axes are those of a mesh of so many ranks.
func (m Mesh) axes(ranks int) ([]dist.Axis, error) {
	p, e, t := cmp.Or(m.Pipeline, 1), cmp.Or(m.Expert, 1), cmp.Or(m.Tensor, 1)
	const most = 1 << 16
	if min(p, e, t) < 1 || max(p, e, t) > most || ranks%(p*e*t) != 0 {
		return nil, fmt.Errorf("%d ranks can't be laid out as pipeline %d × expert %d × tensor %d: each must be 1 or more, and their number a multiple of the product", ranks, p, e, t)
	}
	return []dist.Axis{{Name: axisPipeline, Size: p}, {Name: axisData, Size: ranks / (p * e * t)}, {Name: axisExpert, Size: e}, {Name: axisTensor, Size: t}}, nil
}

// Places is the number of shares of a batch on so many ranks.
func (m Mesh) Places(ranks int) (int, error) {
	axes, err := m.axes(ranks)
	if err != nil {
		return 0, err
	}
	return axes[1].Size * axes[2].Size, nil
}

// Splits says if the model of c can't be split as m says.
func (c Config) Splits(m Mesh) error {
	j, err := c.job()
	if err != nil {
		return err
	}
	for _, a := range []dist.Axis{{Name: axisPipeline, Size: m.Pipeline}, {Name: axisExpert, Size: m.Expert}, {Name: axisTensor, Size: m.Tensor}} {
		if a.Size > 1 && !slices.Contains(j.splits(), a.Name) {
			return fmt.Errorf("model %s can't be split along the axis %s yet", c.Model, a.Name)
		}
	}
	if m.Pipeline > j.blocks() {
		return fmt.Errorf("model %s has %d blocks, which %d ranks along %s can't each have some of", c.Model, j.blocks(), m.Pipeline, axisPipeline)
	}
	if m.Expert > 1 {
		if err := c.MoE.SplitExperts(m.Expert); err != nil {
			return err
		}
	}
	return c.sharesOut(cmp.Or(m.Tensor, 1))
}

// sharesOut says if layers or sequences can't be cut for so many ranks along tensor.
func (c Config) sharesOut(ranks int) error {
	for _, of := range []struct {
		what string
		n    int
	}{{"heads", c.GPT2.Heads}, {"heads", c.BERT.Heads}, {"hidden units of a layer", c.BERT.Hidden}, {"heads", c.MoE.Heads}} {
		if ranks < 1 || of.n%ranks != 0 {
			return fmt.Errorf("the %d %s of model %s can't be shared out among %d ranks along the axis %s: take a number that divides them", of.n, of.what, c.Model, ranks, axisTensor)
		}
	}
	if c.Seq%ranks != 0 {
		return fmt.Errorf("sequences of %d tokens can't be shared out among %d ranks along the axis %s: take a length that is a multiple of their number", c.Seq, ranks, axisTensor)
	}
	if ranks > 1 && c.BERT.Width%2 != 0 {
		return fmt.Errorf("model %s has an odd width, %d: dropout of a part of the tokens needs an even one", c.Model, c.BERT.Width)
	}
	for _, words := range []int{c.GPT2.Vocab, c.BERT.Vocab} {
		if words > 0 && words < ranks {
			return fmt.Errorf("the vocabulary of model %s has %d words, too few for %d ranks along the axis %s", c.Model, words, ranks, axisTensor)
		}
	}
	return nil
}

// splits are the axes along which a family of models can be split, beside data.
func (c Config) splits() []string { return nil }

// place is where a rank stands in a mesh: the group of the ranks along each axis,
// of which its Rank is the place on the axis. nil: the axis has one rank.
type place struct {
	pipeline, expert, tensor dist.Group

	// The ranks along data and expert, which have other samples, and those along
	// data alone. nil only for a trainer that is alone.
	replicas, data dist.Group
}

// split is what of a model a rank in that place has.
func (s place) split() nn.Split { return nn.Split{Tensor: s.tensor, Expert: s.expert} }

// newPlace makes a rank's groups. All ranks of g call it.
func newPlace(g dist.Group, m Mesh) (s place, err error) {
	axes, err := m.axes(g.Size())
	if err != nil {
		return s, err
	}
	mesh, err := dist.NewMesh(g, axes...)
	if err != nil {
		return s, err
	}
	along := func(names ...string) (group dist.Group) {
		if err == nil {
			group, err = mesh.Along(names...)
		}
		return group
	}
	s.replicas = along(axisData, axisExpert)
	s.data = s.replicas
	for i, to := range []*dist.Group{&s.pipeline, nil, &s.expert, &s.tensor} {
		if to != nil && axes[i].Size > 1 {
			*to = along(axes[i].Name)
		}
	}
	if s.expert != nil {
		s.data = along(axisData)
	}
	if err == nil && s.expert == s.replicas && s.expert != nil { // tokens go on one stream while gradients are reduced on another
		s.expert, err = s.replicas.Sub("experts", everyRank(s.replicas)...)
	}
	return s, err
}

func everyRank(g dist.Group) []int {
	ranks := make([]int, g.Size())
	for i := range ranks {
		ranks[i] = i
	}
	return ranks
}
