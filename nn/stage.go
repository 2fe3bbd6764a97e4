package nn

import "slices"

// How a model is cut into the stages of a pipeline.
//
// A stage has some of the model's blocks, one after the other; the first has the
// embeddings too, and the last the head. What goes from stage to stage is what a
// block reads, [B, T, width]: a later stage takes it in the place of the
// tokens. An embedding that is tied to the head is on the first and on the last
// stage, where both have a part of its gradient (Parameter.Tied).
//
// Blocks are dealt so that stages have about the same number of parameters. With
// that time and memory for weights are even; memory for activations is not, since
// the first stages keep more micro-batches.

// stage is which blocks of a model there are: from up to but not including to.
type stage struct {
	from, to    int
	first, last bool
}

// stage gives the builder's part of a model with so many blocks, each of so many
// parameters, with so many before them and behind them.
func (b *Builder) stage(blocks, each, before, behind int) stage {
	n := max(b.Split.Stages, 1)
	sizes := make([]int, n) // of the stages, so far
	for i := range sizes {
		sizes[i] = each
	}
	sizes[0] += before
	sizes[n-1] += behind
	counts := slices.Repeat([]int{1}, n)
	for range blocks - n {
		least := slices.Index(sizes, slices.Min(sizes))
		sizes[least] += each
		counts[least]++
	}
	s := stage{first: b.Split.Stage == 0, last: b.Split.Stage == n-1}
	for i := range b.Split.Stage + 1 {
		s.from, s.to = s.to, s.to+counts[i]
	}
	return s
}

// tied gives the parameter that build makes to the first and to the last stage.
func (s stage) tied(build func() *Parameter) *Parameter {
	if !s.first && !s.last {
		return nil
	}
	p := build()
	p.Tied = s.first != s.last
	return p
}

// present leaves out what a stage doesn't have.
func present(ps ...*Parameter) []*Parameter {
	return slices.DeleteFunc(ps, func(p *Parameter) bool { return p == nil })
}
