package train

import (
	"fmt"
	"io"
	"slices"

	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/internal/safetensors"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// A checkpoint does not know on how many ranks it was made: the first rank
// writes it, and gets from the others their parts of the optimizer's state, one
// at a time. Every rank reads from it what it has, so that all of them must see
// the folder.

// writes says whether this rank writes the run's files.
func (l *parallel) writes() bool { return l == nil || l.Group.Rank() == 0 }

// ranks is their number.
func (l *parallel) ranks() int {
	if l == nil {
		return 1
	}
	return l.Group.Size()
}

// Job is the configuration of the whole run, of which the trainer's is a share.
func (t *Trainer) Job() Config {
	c := t.Config
	c.Batch *= t.par.ranks()
	return c
}

// sharded says whether the optimizer's state is.
func (l *parallel) sharded() bool { return l != nil && l.Shard > ShardNothing }

// saveParts is nn.SaveState of a training whose optimizer's state is sharded.
// All ranks call it.
func (t *Trainer) saveParts(path string, metadata map[string]string) error {
	states := t.par.states(t.opt)
	if !t.par.writes() {
		for _, s := range states {
			if _, err := t.par.collect(s); err != nil {
				return err
			}
		}
		return nil
	}
	entries := nn.Entries(nn.State(t.model.Module))
	for _, s := range states {
		entries = append(entries, safetensors.Entry{Name: s.name, DType: safetensors.F32, Shape: s.of.param.Shape(), Data: func(w io.Writer) error {
			all, err := t.par.collect(s)
			if err != nil {
				return err
			}
			return safetensors.Float32s(all)(w)
		}})
	}
	return safetensors.WriteFile(path, metadata, entries)
}

// statePart is this rank's part of one array of the optimizer's state.
type statePart struct {
	name string
	of   *cut
	part *tensor.Tensor // nil where this rank has none
}

// states lists the arrays in the order of the optimizer's State on one device.
func (l *parallel) states(o *nn.Optimizer) []statePart {
	here := map[string]*tensor.Tensor{}
	for _, p := range o.State() {
		here[p.Name] = p.Tensor
	}
	var list []statePart
	for _, c := range slices.Backward(l.pieces) {
		for _, name := range o.StateNames(c.param) {
			list = append(list, statePart{name, c, here[name]})
		}
	}
	return list
}

// collect gives the first rank the whole of an array.
func (l *parallel) collect(s statePart) (all []float32, err error) {
	n, stream := s.of.param.Len(), l.rt.Stream()
	err = l.rt.Try(func() {
		for r := range l.Group.Size() {
			lo, hi := dist.Part(n, l.Group.Size(), r)
			switch {
			case lo == hi:
			case r == l.Group.Rank() && r == 0:
				all = append(all, s.part.Float32s()...)
			case r == l.Group.Rank():
				dist.Send(l.Group, stream, 0, buf(s.part))
			case l.Group.Rank() == 0:
				t := l.rt.Empty(tensor.Float32, trace.Workspace, hi-lo)
				dist.Receive(l.Group, stream, r, buf(t))
				all = append(all, t.Float32s()...)
				t.Release()
			}
		}
	})
	if err == nil {
		err = l.rt.Sync()
	}
	return all, l.failure(err)
}

// loadParts reads the parts of the optimizer's state that this rank has.
func (t *Trainer) loadParts(f *safetensors.File) error {
	for _, s := range t.par.states(t.opt) {
		n := s.of.param.Len()
		a, ok := f.Lookup(s.name)
		if !ok || a.Elements() != n {
			return fmt.Errorf("the file has no array %s of %d elements: it is of another run", s.name, n)
		}
		if s.part == nil {
			continue
		}
		all := make([]float32, n)
		if err := f.ReadFloat32(s.name, all); err != nil {
			return err
		}
		s.part.Set(all[s.of.lo:s.of.hi])
	}
	return nil
}

// share is the samples of a set that this rank evaluates.
func (l *parallel) share(s Set) Set {
	if l == nil {
		return s
	}
	n, r, ranks := s.Len(), l.Group.Rank(), l.Group.Size()
	return subset{s, n * r / ranks, n * (r + 1) / ranks}
}

// subset is a part of a set.
type subset struct {
	Set
	from, to int
}

func (s subset) Len() int { return s.to - s.from }

func (s subset) Sample(i int, fields ...any) error { return s.Set.Sample(s.from+i, fields...) }

// whole is the score on a set of n samples of which mine is that on this rank's
// share.
func (l *parallel) whole(mine Score, n int) (Score, error) {
	if l == nil {
		return mine, nil
	}
	sums := []float32{float32(mine.Loss * float64(mine.Samples)), float32(mine.Accuracy * float64(mine.Samples))}
	err := l.agree(dist.Sum, sums...)
	return Score{n, float64(sums[0]) / float64(n), float64(sums[1]) / float64(n)}, err
}

// part cuts this rank's samples out of the arrays of a whole batch.
func (l *parallel) batch(arrays []any) []any {
	if l == nil {
		return arrays
	}
	mine := make([]any, len(arrays))
	for i, a := range arrays {
		n := arrayLen(a) / l.Group.Size()
		mine[i] = part(a, n*l.Group.Rank(), n*(l.Group.Rank()+1))
	}
	return mine
}

// sameSteps says if ranks differ in how many micro-batches a step has, where
// each one's gradients are reduced.
func (l *parallel) sameSteps(micro int) error {
	if l == nil || l.Shard < ShardGradients {
		return nil
	}
	most := []float32{float32(micro), -float32(micro)}
	if err := l.agree(dist.Max, most...); err != nil {
		return err
	}
	if most[0] != -most[1] {
		return l.failure(fmt.Errorf("ranks have micro-batches of %v to %v samples: where gradients are sharded they must have the same, so give them devices of one size", -most[1], most[0]))
	}
	return nil
}

// any says whether something holds on any rank.
func (l *parallel) any(here bool) (bool, error) {
	if l == nil {
		return here, nil
	}
	x := []float32{0}
	if here {
		x[0] = 1
	}
	err := l.agree(dist.Max, x...)
	return x[0] > 0, err
}
