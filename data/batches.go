package data

import (
	"fmt"
	"math"
)

// Batches gives the samples of next-token training from a corpus, epoch after
// epoch, in batches that all have one shape.
//
// A sample is a window of seq+1 tokens: the first seq are the inputs, the last
// seq the targets. In an epoch the windows start at offset, offset+seq,
// offset+2·seq, ..., as many as fit, so that each token after the offset is a
// target once, save a rest at the end too short for a window. The offset is a
// random number below seq, small enough for one window to fit; the order of the
// windows is a random permutation. Both follow from the seed and the number of
// the epoch alone, on every platform. Where an epoch ends within a batch, the
// next one fills it.
//
// A Batches is not for concurrent use. Its memory does not depend on the corpus.
type Batches struct {
	corpus      *Corpus
	fingerprint Fingerprint
	batch, seq  int
	seed        uint64
	epoch       epoch
	position    int     // windows of the epoch that were given out
	sample      []int32 // one window
}

// State is a place in the sequence of samples, to store and to resume from.
type State struct {
	Seed     uint64      `json:"seed"`
	Seq      int         `json:"seq"`
	Epoch    uint64      `json:"epoch"`
	Position int         `json:"position"` // samples of the epoch that were given out
	Corpus   Fingerprint `json:"corpus"`
}

// NewBatches starts at the first sample for the seed. It reads the corpus once
// for its fingerprint: the whole, or of a file a sample.
func NewBatches(c *Corpus, batch, seq int, seed uint64) (*Batches, error) {
	if batch < 1 || seq < 1 || batch > math.MaxInt/seq {
		return nil, fmt.Errorf("data: batches of %d sequences of %d tokens: both must be positive, and their product an int", batch, seq)
	}
	if c.Len() <= seq {
		return nil, fmt.Errorf("data: the corpus has %d tokens, but a sequence of %d needs at least %d (the last one's target is a token more): give more text or shorter sequences", c.Len(), seq, uint(seq)+1)
	}
	fingerprint, err := c.fingerprint()
	if err != nil {
		return nil, err
	}
	b := &Batches{corpus: c, fingerprint: fingerprint, batch: batch, seq: seq, seed: seed, sample: make([]int32, seq+1)}
	b.epoch = newEpoch(c.Len(), seq, seed, 0)
	return b, nil
}

// Next fills inputs and targets, each of batch·seq elements, row-major
// [batch, seq]. Other lengths are misuse and panic. An error means that the file
// of the corpus does not read or holds no tokens of its tokenizer; the place is
// then that of before. A corpus in memory gives none.
func (b *Batches) Next(inputs, targets []int32) error {
	if n := b.batch * b.seq; len(inputs) != n || len(targets) != n {
		panic(fmt.Sprintf("data: %d inputs and %d targets for a batch of %d×%d", len(inputs), len(targets), b.batch, b.seq))
	}
	epoch, position := b.epoch, b.position
	for row := 0; row < len(inputs); row += b.seq {
		if err := b.next(); err != nil {
			b.epoch, b.position = epoch, position
			return err
		}
		copy(inputs[row:row+b.seq], b.sample)
		copy(targets[row:row+b.seq], b.sample[1:])
	}
	return nil
}

// next puts the next window into b.sample.
func (b *Batches) next() error {
	if b.position == b.epoch.windows {
		b.epoch = newEpoch(b.corpus.Len(), b.seq, b.seed, b.epoch.number+1)
		b.position = 0
	}
	if err := b.corpus.window(b.sample, b.epoch.start(b.position)); err != nil {
		return err
	}
	b.position++
	return nil
}

// Windows is the number of samples in the current epoch. It differs by at most
// one from epoch to epoch.
func (b *Batches) Windows() int { return b.epoch.windows }

// State is the place behind the last sample that was given out.
func (b *Batches) State() State {
	return State{Seed: b.seed, Seq: b.seq, Epoch: b.epoch.number, Position: b.position, Corpus: b.fingerprint}
}

// Restore continues at a place that State gave, with its seed: the samples are
// those that would have followed there. The number of sequences in a batch may
// differ; the corpus and the length of a sequence must not. After an error b is
// as it was.
func (b *Batches) Restore(s State) error {
	if s.Corpus != b.fingerprint {
		return fmt.Errorf("data: cannot resume on other data: the state was made for %v, the corpus is %v", s.Corpus, b.fingerprint)
	}
	if s.Seq != b.seq {
		return fmt.Errorf("data: cannot resume with sequences of %d tokens: the state was made for %d", b.seq, s.Seq)
	}
	e := newEpoch(b.corpus.Len(), b.seq, s.Seed, s.Epoch)
	if s.Position < 0 || s.Position > e.windows {
		return fmt.Errorf("data: the state is broken: position %d in an epoch of %d samples", s.Position, e.windows)
	}
	b.seed, b.epoch, b.position = s.Seed, e, s.Position
	return nil
}

// epoch is the order of the windows in one pass over the corpus.
type epoch struct {
	number  uint64
	seq     int
	offset  int
	windows int
	order   permutation
}

func newEpoch(tokens, seq int, seed, number uint64) epoch {
	key := mix(mix(seed) + number)
	inputs := tokens - 1 // the last token is a target only
	offset := int(mix(key) % uint64(min(seq, inputs-seq+1)))
	windows := (inputs - offset) / seq
	return epoch{number, seq, offset, windows, newPermutation(windows, key+1)}
}

// start is where the i-th window of the epoch begins.
func (e *epoch) start(i int) int { return e.offset + e.order.at(i)*e.seq }

// String is for messages.
func (f Fingerprint) String() string {
	return fmt.Sprintf("%d tokens of %s with hash %.12s", f.Tokens, f.Tokenizer, f.SHA256)
}
