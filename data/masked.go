package data

import (
	"fmt"
	"math/rand/v2"
)

// Mask says how words are hidden.
type Mask struct {
	Token  int32 // stands for a hidden one
	Random int   // tokens below it are put in place of others
}

// Masked gives the samples of training on hidden words (Devlin et al., "BERT",
// 2019) from the windows of a Batches: 15 % of each window's tokens are to be
// named, of which 80 % are hidden, 10 % replaced by a random token and 10 %
// left. How many that are is the same for all windows (Places), so that shapes
// are too. What is chosen follows from the seed and the number of the window in
// the sequence of samples alone.
type Masked struct {
	*Batches
	mask  Mask
	spare []int32 // targets of the next-token task, unused
}

// NewMasked gives b's samples with words hidden. The place in b is its own.
func NewMasked(b *Batches, m Mask) *Masked {
	return &Masked{b, m, make([]int32, b.batch*b.seq)}
}

// Places is how many tokens of a window of seq are to be named: 15 %, rounded,
// and at least one.
func Places(seq int) int { return max(1, (seq*15+50)/100) }

// Next fills tokens, [batch, seq], and for each sequence Places(seq) places in
// it, in rising order, and labels, the tokens that stood there.
func (m *Masked) Next(tokens, places, labels []int32) error {
	at, p := m.State(), Places(m.seq)
	if len(places) != m.batch*p || len(labels) != len(places) {
		panic(fmt.Sprintf("data: %d places and %d labels for %d sequences with %d each", len(places), len(labels), m.batch, p))
	}
	if err := m.Batches.Next(tokens, m.spare); err != nil {
		return err
	}
	e := newEpoch(m.corpus.Len(), m.seq, at.Seed, at.Epoch)
	for row := range m.batch {
		if at.Position == e.windows {
			e, at.Position = newEpoch(m.corpus.Len(), m.seq, at.Seed, e.number+1), 0
		}
		m.mask.hide(mix(mix(at.Seed)+e.number)+2, uint64(at.Position), tokens[row*m.seq:(row+1)*m.seq], places[row*p:(row+1)*p], labels[row*p:(row+1)*p])
		at.Position++
	}
	return nil
}

// hide chooses len(places) of the tokens, each set as likely as another
// (selection sampling: Knuth, vol. 2, 3.4.2, algorithm S).
func (m Mask) hide(key, number uint64, tokens, places, labels []int32) {
	r := rand.New(rand.NewPCG(key, number))
	n := 0
	for i := range tokens {
		if n < len(places) && r.IntN(len(tokens)-i) < len(places)-n {
			places[n], labels[n] = int32(i), tokens[i]
			tokens[i] = m.instead(r, tokens[i])
			n++
		}
	}
}

// instead is what stands where a token is to be named.
func (m Mask) instead(r *rand.Rand, token int32) int32 {
	switch u := r.IntN(10); {
	case u < 8:
		return m.Token
	case u == 8:
		return int32(r.IntN(m.Random))
	}
	return token
}

// Windows are the samples of a corpus in order, to evaluate on: sequences of
// Seq tokens, a rest too short for one left out.
type Windows struct {
	Corpus *Corpus
	Seq    int
}

// Len is the number of windows.
func (w Windows) Len() int { return max(0, (w.Corpus.Len()-1)/w.Seq) }

// Read fills inputs and targets, Seq tokens each, with window i.
func (w Windows) Read(i int, inputs, targets []int32) error {
	window := make([]int32, w.Seq+1)
	if err := w.Corpus.window(window, i*w.Seq); err != nil {
		return err
	}
	copy(inputs, window)
	copy(targets, window[1:])
	return nil
}

// ReadMasked fills tokens, places and labels with window i, of which the same
// words are hidden every time.
func (w Windows) ReadMasked(i int, m Mask, tokens, places, labels []int32) error {
	if err := w.Corpus.window(tokens, i*w.Seq); err != nil {
		return err
	}
	m.hide(0, uint64(i), tokens, places, labels)
	return nil
}
