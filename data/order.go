package data

import "fmt"

// Order says which sample comes when, for one of several ranks. In an epoch,
// rank r of n takes every n-th place of the epoch's permutation of all samples,
// from the r-th on: the ranks' parts are disjoint and equally long. Fewer than n
// samples are left over in an epoch; with Shuffle they are others each time.
//
// Nothing is stored: the sample at any place is computed, so the memory does not
// depend on the number of samples, and the order is the same on every platform.
type Order struct {
	Samples     int    // in all
	Shuffle     bool   // else in the order of the source, each epoch the same
	Seed        uint64 // of the shuffle; the same on all ranks
	Rank, Ranks int    // this rank, and how many there are
}

// Place is a place in the sequence of a rank's samples.
type Place struct {
	Epoch    uint64 `json:"epoch"`
	Position int    `json:"position"` // samples of the epoch that were given out
}

func (o Order) check() error {
	if o.Ranks < 1 || o.Rank < 0 || o.Rank >= o.Ranks {
		return fmt.Errorf("data: rank %d of %d", o.Rank, o.Ranks)
	}
	if o.Samples < o.Ranks {
		return fmt.Errorf("data: %d samples for %d ranks: each needs one at least", o.Samples, o.Ranks)
	}
	return nil
}

// Len is the number of the rank's samples in an epoch.
func (o Order) Len() int { return o.Samples / o.Ranks }

// Epoch gives the order of an epoch's samples: at maps positions in [0, Len) to
// samples.
func (o Order) Epoch(number uint64) (at func(position int) int) {
	if !o.Shuffle {
		return func(position int) int { return position*o.Ranks + o.Rank }
	}
	p := newPermutation(o.Samples, mix(mix(o.Seed)+number)+1)
	return func(position int) int { return p.at(position*o.Ranks + o.Rank) }
}

// after is the place n samples behind p.
func (o Order) after(p Place, n int) Place {
	position := p.Position + n
	return Place{p.Epoch + uint64(position/o.Len()), position % o.Len()}
}
