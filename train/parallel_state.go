package train

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/headroom-go/headroom/dist"
)

// writes says whether this rank writes the run's files.
func (l *parallel) writes() bool { return l == nil || l.Group.Rank() == 0 }

// places is the number of shares of a batch, and at which of them this rank is.
func (l *parallel) places() (n, at int) {
	if l == nil {
		return 1, 0
	}
	return l.at.replicas.Size(), l.at.replicas.Rank()
}

// Job is the configuration of the whole run, of which the trainer's is a share.
func (t *Trainer) Job() Config {
	c := t.Config
	n, _ := t.par.places()
	c.Batch *= n
	return c
}

// share is the samples of a set that this rank evaluates.
func (l *parallel) share(s Set) Set {
	if l == nil {
		return s
	}
	n := s.Len()
	places, at := l.places()
	return subset{s, n * at / places, n * (at + 1) / places}
}

// most is the number of samples that a rank evaluates at most, of n.
func (l *parallel) most(n int) int {
	places, _ := l.places()
	return (n + places - 1) / places
}

// subset is a part of a set.
type subset struct {
	Set
	from, to int
}

func (s subset) Len() int { return s.to - s.from }

func (s subset) Sample(i int, fields ...any) error { return s.Set.Sample(s.from+i, fields...) }

// whole is the score on a set of n samples of which mine is that on this place's
// share.
func (l *parallel) whole(mine Score, n int) (Score, error) {
	if l == nil {
		return mine, nil
	}
	sums := []float32{float32(mine.Loss * float64(mine.Samples)), float32(mine.Accuracy * float64(mine.Samples))}
	err := l.agreeIn(l.at.replicas, dist.Sum, sums...)
	if l.pipe != nil && err == nil { // the last stage has it
		err = l.agreeIn(l.pipe.group, dist.Sum, sums...)
	}
	return Score{n, float64(sums[0]) / float64(n), float64(sums[1]) / float64(n)}, err
}

// batch cuts this place's samples out of the arrays of a whole batch.
func (l *parallel) batch(arrays []any) []any {
	if l == nil {
		return arrays
	}
	mine := make([]any, len(arrays))
	for i, a := range arrays {
		places, at := l.places()
		n := arrayLen(a) / places
		mine[i] = part(a, n*at, n*(at+1))
	}
	return mine
}

// entwined says whether ranks wait for each other within a step, and not for
// gradients or a pipeline's messages alone: all must come to the same parts of the
// program in the same order.
func (l *parallel) entwined() bool {
	return l.at.expert != nil || l.at.tensor != nil || l.Shard == ShardParameters
}

// inOrder says whether ranks must read their weights in the same order.
func (l *parallel) inOrder() bool { return l != nil && l.Shard == ShardParameters }

// sameSteps says if ranks differ in the micro-batches of a step, where each one's
// gradients are reduced, or where it goes from rank to rank; in what they recompute,
// where they do so together; in the parts of logits, where each has some of the
// classes; or in anything, where they gather weights for all that is read.
func (l *parallel) sameSteps(s Strategy) error {
	if l == nil || l.Shard < ShardGradients && l.pipe == nil && !l.entwined() {
		return nil
	}
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	const mantissa = 24 // bits that float32 keeps
	all, err := l.extents(l.Group, float32(s.MicroBatch), float32(s.Recompute), float32(crc32.ChecksumIEEE(text)>>(32-mantissa)))
	if err != nil {
		return err
	}
	micro, recompute, plan := all[0], all[1], all[2]
	var logits extent
	if l.at.tensor != nil { // of a pipeline only the last stage has any
		along, err := l.extents(l.at.tensor, float32(s.LogitRows))
		if err != nil {
			return err
		}
		logits = along[0]
	}
	switch {
	case micro.differ():
		err = fmt.Errorf("ranks have micro-batches of %v to %v samples: where gradients or weights are sharded, in a pipeline, or where ranks compute a model together, they must have the same, so give them devices of one size", micro.least, micro.most)
	case l.entwined() && recompute.differ():
		err = fmt.Errorf("ranks recompute %v to %v blocks: where they compute a model together, or weights are sharded, they must recompute the same, so give them devices of one size", recompute.least, recompute.most)
	case logits.differ():
		err = fmt.Errorf("ranks along %s make logits of %v to %v tokens at a time (0: as many as take 512 MiB): they must make as many, so give them devices of one size", axisTensor, logits.least, logits.most)
	case l.inOrder() && plan.differ():
		err = errors.New("ranks have different plans of what is kept and what is made again: where weights are sharded they must have the same, so give them devices of one size")
	}
	if err != nil {
		return l.failure(err)
	}
	return nil
}

// extent is the least and the most that ranks have of something.
type extent struct{ least, most float32 }

func (e extent) differ() bool { return e.least != e.most }

// extents are those of values over the ranks of a group.
func (l *parallel) extents(g dist.Group, values ...float32) ([]extent, error) {
	var signed []float32 // the greatest of −x is the least of x
	for _, x := range values {
		signed = append(signed, x, -x)
	}
	err := l.agreeIn(g, dist.Max, signed...)
	var all []extent
	for i := range values {
		all = append(all, extent{least: -signed[2*i+1], most: signed[2*i]})
	}
	return all, err
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
