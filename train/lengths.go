package train

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/headroom-go/headroom/data"
	"github.com/headroom-go/headroom/nn"
)

// Runs whose batches differ in length.
//
// All sequences of a batch have one length, so that each length has steps of one
// shape, with a plan of its own. A step's loss is the mean over the targets of its
// batch; padding is no target. So every step weighs the same, whatever its length:
// a sequence counts about the same everywhere, a token of a short one more than
// one of a long one.
//
// A plan orders strategies by estimated times. Where several are close by the
// estimate, steps of a length take them in turn, looks times each, and what they
// took decides. Strategies with other micro-batches add in another order, so that
// a time decides about last bits. A resumed run must not: decisions are made when
// a checkpoint is written, which keeps them with what was measured. So from a
// checkpoint on steps are the same, however often they are done.

// Varied is a Feed whose batches differ in the length of their sequences.
type Varied interface {
	// Next fills arrays as NewBatch makes them for Seq tokens.
	Feed

	// Seq is the length of the next batch's sequences.
	Seq() (int, error)

	// Lengths are all that Seq gives. They ascend.
	Lengths() []int

	// Tokens is the number of the last batch's, without padding.
	Tokens() int
}

// ByLength feeds texts in batches of similar length.
type ByLength struct {
	batches *data.ByLength
	lengths []int
	labels  data.Source // of classes; nil: the targets are the next tokens
	tokens  int
}

// widthMultiple is what all lengths but the longest are multiples of: vectors and
// tensor cores compute with so many numbers at once.
const widthMultiple = 8

// NewByLength puts sequences of at most c.Seq tokens into batches of c.Batch, of at
// most c.Lengths lengths, which are chosen for the least padding. Labels are the
// sequences' classes, int32, or nil to learn what follows; then sequences of
// one token are left out.
func NewByLength(s data.Sequences, labels data.Source, c Config, pad int32) (*ByLength, error) {
	if labels == nil {
		s = followed{s}
	}
	lengths := data.Widths(s, c.Lengths, widthMultiple)
	b, err := data.NewByLength(s, data.BucketOptions{Rows: c.Batch, Widths: lengths, Pad: pad, Seed: c.Seed})
	if err != nil {
		return nil, err
	}
	return &ByLength{batches: b, lengths: lengths, labels: labels}, nil
}

// followed are sequences in which a token follows another: of others, none.
type followed struct{ data.Sequences }

func (f followed) Length(i int) int {
	if n := f.Sequences.Length(i); n > 1 {
		return n
	}
	return 0
}

// Seq is the length of the next batch's sequences.
func (f *ByLength) Seq() (int, error) { return f.batches.Width() }

// Lengths are all that there are.
func (f *ByLength) Lengths() []int { return f.lengths }

// Tokens is the number of the last batch's, without padding.
func (f *ByLength) Tokens() int { return f.tokens }

// Waste is the part of the tokens that is padding.
func (f *ByLength) Waste() float64 { return f.batches.Waste() }

// Next fills tokens and targets, or tokens, mask and labels.
func (f *ByLength) Next(fields ...any) error {
	p, err := f.batches.Next()
	if err != nil {
		return err
	}
	copy(fields[0].([]int32), p.Tokens)
	f.tokens = 0
	for row, n := range p.Lengths {
		f.tokens += int(n)
		beside := fields[1].([]int32)[row*p.Width:][:p.Width]
		if f.labels == nil {
			fillWith(beside, nn.IgnoreTarget)
			copy(beside, p.Tokens[row*p.Width+1:][:n-1])
			continue
		}
		fillWith(beside, 0)
		fillWith(beside[:n], 1)
		raw := make([]byte, 4)
		if err := f.labels.Read(p.Samples[row], raw); err != nil {
			return err
		}
		fields[2].([]int32)[row] = int32(binary.LittleEndian.Uint32(raw))
	}
	return nil
}

// State is the place behind the last batch.
func (f *ByLength) State() json.RawMessage { return marshal(f.batches.State()) }

// Restore goes to a place; see Feed.
func (f *ByLength) Restore(s json.RawMessage) error { return restore(s, f.batches.Restore) }

// Shape is a length of sequences, with the strategies that its steps may take.
type Shape struct {
	Seq     int
	Choices []Choice // the fastest by the estimate first; no two have the same micro-batches
}

// Choice is a strategy with the time of a step by the estimate.
type Choice struct {
	Strategy Strategy
	Seconds  float64
}

// LengthState is what is known of the steps of a length. It is kept in checkpoints.
type LengthState struct {
	Seq      int       `json:"seq"`
	Steps    int       `json:"steps"`
	Measured []Measure `json:"measured"`          // as Shape.Choices
	Chosen   int       `json:"chosen"`            // of these
	Settled  bool      `json:"settled,omitempty"` // what was measured has decided
}

// Measure is the least time that a step took with a choice; 0: it is not known.
type Measure struct {
	MicroBatch int     `json:"micro_batch"`
	Seconds    float64 `json:"seconds"`
}

// looks is how many steps are measured of each choice.
const looks = 3

// chooser chooses the strategy of each step.
type chooser struct {
	shapes []Shape
	states []LengthState
}

func newChooser(shapes []Shape) *chooser {
	c := &chooser{shapes: shapes}
	for _, s := range shapes {
		state := LengthState{Seq: s.Seq}
		for _, choice := range s.Choices {
			state.Measured = append(state.Measured, Measure{MicroBatch: choice.Strategy.MicroBatch})
		}
		c.states = append(c.states, state)
	}
	return c
}

// restore takes over what is known of the lengths that still have the same choices:
// another device may have others.
func (c *chooser) restore(states []LengthState) {
	for _, s := range states {
		i := c.find(s.Seq)
		if i < 0 || s.Steps < 0 || s.Chosen < 0 || s.Chosen >= len(s.Measured) {
			continue
		}
		if slices.EqualFunc(s.Measured, c.states[i].Measured, func(a, b Measure) bool { return a.MicroBatch == b.MicroBatch }) {
			c.states[i] = s
			c.states[i].Measured = slices.Clone(s.Measured)
		}
	}
}

// find is the place of a length, -1 for none.
func (c *chooser) find(seq int) int {
	return slices.IndexFunc(c.shapes, func(s Shape) bool { return s.Seq == seq })
}

// choice is which one the next step of length i takes.
func (c *chooser) choice(i int) int {
	s := c.states[i]
	if n := len(s.Measured); s.Steps < looks*n {
		return s.Steps % n
	}
	return s.Chosen
}

// done tells of a step of length i; 0 seconds are of one that was disturbed.
func (c *chooser) done(i int, seconds float64) {
	m := &c.states[i].Measured[c.choice(i)].Seconds
	if seconds > 0 && (*m == 0 || seconds < *m) {
		*m = seconds
	}
	c.states[i].Steps++
}

// settle lets what was measured decide.
func (c *chooser) settle() {
	for i := range c.states {
		s := &c.states[i]
		if s.Settled || s.Steps < looks*len(s.Measured) {
			continue
		}
		least := math.Inf(1)
		for k, m := range s.Measured {
			if m.Seconds > 0 && m.Seconds < least {
				s.Chosen, least = k, m.Seconds
			}
		}
		s.Settled = true
	}
}

// state is what a checkpoint keeps.
func (c *chooser) state() []LengthState {
	if c == nil {
		return nil
	}
	return c.states
}

// prepare looks whether the run has a shape for each length of its data.
func (r *Run) prepare() error {
	v, ok := r.Feed.(Varied)
	if !ok || r.chooser != nil {
		return nil
	}
	c := newChooser(r.Shapes)
	for _, n := range v.Lengths() {
		if i := c.find(n); i < 0 || len(r.Shapes[i].Choices) == 0 {
			return fmt.Errorf("batches of %d tokens have no strategy: the lengths are %d", n, v.Lengths())
		}
	}
	r.chooser = c
	return nil
}

// next reads a batch, and readies the trainer for its length, which is the i-th.
func (r *Run) next() (batch []any, i int, err error) {
	v, ok := r.Feed.(Varied)
	if !ok {
		return r.batch, 0, r.Feed.Next(r.batch...)
	}
	seq, err := v.Seq()
	if err != nil {
		return nil, 0, err
	}
	i = r.chooser.find(seq)
	if err := r.Trainer.At(seq, r.Shapes[i].Choices[r.chooser.choice(i)].Strategy); err != nil {
		return nil, i, err
	}
	for k, f := range r.Trainer.fields {
		batch = append(batch, part(r.batch[k], 0, r.Trainer.Config.Batch*f.len()))
	}
	return batch, i, v.Next(batch...)
}

// account notes a step of the i-th shape. It gives its length, 0 where all steps have
// one, and its tokens without padding.
func (r *Run) account(i int, seconds float64, disturbed bool) (seq, tokens int) {
	c := r.Trainer.Job()
	tokens = c.Batch * c.Seq
	if v, ok := r.Feed.(Varied); ok {
		seq, tokens = r.Trainer.seq, v.Tokens()
		if disturbed {
			seconds = 0
		}
		r.chooser.done(i, seconds)
		r.decide(false)
	}
	r.tokens += tokens
	return seq, tokens
}

// wholeLength readies the trainer for samples of the configuration's length.
func (r *Run) wholeLength() error {
	if r.chooser == nil {
		return nil
	}
	longest := r.Shapes[len(r.Shapes)-1]
	return r.Trainer.At(longest.Seq, longest.Choices[0].Strategy)
}

// decide lets measured times decide: where checkpoints are written, as one is.
func (r *Run) decide(saving bool) {
	if r.chooser != nil && (saving || r.SaveEvery == 0) {
		r.chooser.settle()
	}
}
