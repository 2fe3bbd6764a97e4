package data

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
)

// Widths chooses at most n widths for sequences, so that padding each to the next
// of them takes the fewest tokens: an exact partition by dynamic programming over
// the lengths. They ascend and are multiples of the given number, but for the last,
// which is at most the longest length itself rounded up. Empty sequences don't count.
func Widths(s Sequences, n, multiple int) []int {
	var longest int
	for i := range s.Len() {
		longest = max(longest, s.Length(i))
	}
	if longest == 0 || n < 1 {
		return nil
	}
	counts := make([]int, (longest-1)/multiple+1) // of the sequences by rounded length
	for i := range s.Len() {
		if l := s.Length(i); l > 0 {
			counts[(l-1)/multiple]++
		}
	}
	var widths []int
	for _, k := range cheapest(counts, n) {
		widths = append(widths, min((k+1)*multiple, longest))
	}
	return widths
}

// cheapest divides the counts into at most n runs, so that the sum of counts in
// each, times its last place (from 1), is the least. It gives the last places, from
// 0. A run that begins behind the last count at place j costs (the sum of what
// follows j) × place.
func cheapest(counts []int, n int) []int {
	sums := make([]int, len(counts)+1)
	for k, c := range counts {
		sums[k+1] = sums[k] + c
	}
	cost := make([]int, len(counts)+1) // of all before a place, in so many runs
	for k := range cost[1:] {
		cost[k+1] = math.MaxInt
	}
	var from [][]int // for each number of runs, where the last one begins
	for range min(n, len(counts)) {
		next, begins := slices.Clone(cost), make([]int, len(cost))
		for end := 1; end < len(cost); end++ {
			begins[end] = end // no run more
			for begin := range end {
				if cost[begin] == math.MaxInt {
					continue
				}
				if c := cost[begin] + (sums[end]-sums[begin])*end; c < next[end] {
					next[end], begins[end] = c, begin
				}
			}
		}
		cost, from = next, append(from, begins)
	}
	var ends []int
	for k, end := len(from)-1, len(counts); end > 0; k-- {
		if begin := from[k][end]; begin < end {
			ends = append(ends, end-1)
			end = begin
		}
	}
	slices.Reverse(ends)
	return ends
}

// ByLength gives batches of sequences of similar length, epoch after epoch, each
// of the same number of sequences and padded to one of few widths. All follows from
// the seed. It is not for concurrent use.
type ByLength struct {
	sequences   Sequences
	options     BucketOptions // the seed is that of the run
	fingerprint string
	epoch       uint64
	position    int // batches of the epoch that were given out
	buckets     *Buckets
	padded      *Padded
}

// LengthState is a place in a ByLength.
type LengthState struct {
	Seed      uint64 `json:"seed"`
	Epoch     uint64 `json:"epoch"`
	Position  int    `json:"position"` // batches of the epoch that were given out
	Rows      int    `json:"rows"`
	Widths    []int  `json:"widths"`
	Sequences string `json:"sequences"` // a hash of them
}

// NewByLength starts at the first batch for the seed; o has Rows and Widths. It
// reads 64 of the sequences, to know them again.
func NewByLength(s Sequences, o BucketOptions) (*ByLength, error) {
	if o.Rows < 1 {
		return nil, fmt.Errorf("data: batches of %d sequences: there must be some", o.Rows)
	}
	fingerprint, err := fingerprintOf(s)
	if err != nil {
		return nil, err
	}
	b := &ByLength{sequences: s, options: o, fingerprint: fingerprint}
	if b.buckets, err = b.open(o.Seed, 0); err != nil {
		return nil, err
	}
	b.padded = b.buckets.NewPadded()
	return b, nil
}

// open sorts an epoch.
func (b *ByLength) open(seed, epoch uint64) (*Buckets, error) {
	o := b.options
	o.Seed = mix(mix(seed) + epoch)
	return NewBuckets(b.sequences, o)
}

// fingerprintOf hashes all lengths and some of the sequences.
func fingerprintOf(s Sequences) (string, error) {
	const looked = 64
	hash := sha256.New()
	write := func(x int64) { binary.Write(hash, binary.LittleEndian, x) }
	for i := range s.Len() {
		write(int64(s.Length(i)))
	}
	for k := range min(looked, s.Len()) {
		i := k * (s.Len() - 1) / looked
		tokens := make([]int32, s.Length(i))
		if err := s.Read(i, tokens); err != nil {
			return "", err
		}
		for _, t := range tokens {
			write(int64(t))
		}
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// Width is that of the next batch.
func (b *ByLength) Width() (int, error) {
	if err := b.turn(); err != nil {
		return 0, err
	}
	return b.buckets.Width(b.position), nil
}

// turn goes to the next epoch where this one is at its end.
func (b *ByLength) turn() error {
	if b.position < b.buckets.Len() {
		return nil
	}
	next, err := b.open(b.options.Seed, b.epoch+1)
	if err != nil {
		return err
	}
	b.buckets, b.epoch, b.position = next, b.epoch+1, 0
	return nil
}

// Next gives the next batch, which is good until the one after it. After an error
// the place is that of before.
func (b *ByLength) Next() (*Padded, error) {
	if err := b.turn(); err != nil {
		return nil, err
	}
	if err := b.buckets.Read(b.position, b.padded); err != nil {
		return nil, err
	}
	b.position++
	return b.padded, nil
}

// Waste is the part of all tokens of the epoch that is padding.
func (b *ByLength) Waste() float64 { return b.buckets.Waste() }

// State is the place behind the last batch.
func (b *ByLength) State() LengthState {
	return LengthState{b.options.Seed, b.epoch, b.position, b.options.Rows, b.options.Widths, b.fingerprint}
}

// Restore continues at a place that State gave, with its seed. After an error b is
// as it was.
func (b *ByLength) Restore(s LengthState) error {
	if s.Sequences != b.fingerprint {
		return fmt.Errorf("data: cannot resume on other data: the state was made for sequences with hash %.12s, here they have %.12s", s.Sequences, b.fingerprint)
	}
	if s.Rows != b.options.Rows || !slices.Equal(s.Widths, b.options.Widths) {
		return fmt.Errorf("data: cannot resume with %d sequences of widths %d: the state was made for %d of %d", b.options.Rows, b.options.Widths, s.Rows, s.Widths)
	}
	buckets, err := b.open(s.Seed, s.Epoch)
	if err != nil {
		return err
	}
	if s.Position < 0 || s.Position > buckets.Len() {
		return fmt.Errorf("data: the state is broken: position %d in an epoch of %d batches", s.Position, buckets.Len())
	}
	b.options.Seed, b.epoch, b.position, b.buckets = s.Seed, s.Epoch, s.Position, buckets
	return nil
}
