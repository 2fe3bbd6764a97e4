package spill

import (
	"fmt"
	"slices"
	"sync"

	"github.com/headroom-go/headroom/internal/size"
)

// shelf gives out pieces of a memory, up to a capacity. What was given back it
// keeps and gives out again for the same size, since a training step asks for the
// same sizes again and again. Its methods may be called from several goroutines at
// once.
type shelf[P any] struct {
	mu       sync.Mutex
	capacity uint64
	make     func(size uint64) (P, error) // called under mu
	used     uint64                       // in pieces that were made, given out or not
	out      int                          // pieces given out
	free     map[uint64][]P
}

// Stats are the figures of a place.
type Stats struct {
	CapacityBytes uint64
	UsedBytes     uint64 // taken from the memory, given out or not
	Pieces        int    // given out
}

// newShelf gives a shelf whose pieces make takes from the memory.
func newShelf[P any](capacity uint64, make func(size uint64) (P, error)) *shelf[P] {
	return &shelf[P]{capacity: capacity, make: make, free: map[uint64][]P{}}
}

// unit is what sizes are rounded up to.
const unit = 4096

// Take gives a piece of at least size bytes, and how many they are, for GiveBack:
// one that was given back, or a new one, or where there is no room for that the
// smallest free one that is large enough. It fails when a new one would pass the
// capacity or the memory has no more.
func (s *shelf[P]) Take(size uint64) (piece P, whole uint64, err error) {
	whole = (max(size, 1) + unit - 1) / unit * unit
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(s.free[whole]) > 0:
	case whole <= s.capacity-s.used:
		if piece, err = s.make(whole); err == nil {
			s.used += whole
			s.out++
		}
		return piece, whole, err
	default:
		if whole, err = s.larger(whole); err != nil {
			return piece, 0, err
		}
	}
	list := s.free[whole]
	s.free[whole] = list[:len(list)-1]
	s.out++
	return list[len(list)-1], whole, nil
}

// larger is the smallest size above whole of which a piece is free.
func (s *shelf[P]) larger(whole uint64) (least uint64, err error) {
	for n, list := range s.free {
		if n > whole && len(list) > 0 && (least == 0 || n < least) {
			least = n
		}
	}
	if least == 0 {
		err = fmt.Errorf("%s more would pass the %s set aside for values outside the device: %s are in use or kept for other sizes",
			size.Format(whole), size.Format(s.capacity), size.Format(s.used))
	}
	return least, err
}

// GiveBack takes a piece back.
func (s *shelf[P]) GiveBack(piece P, whole uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free[whole] = append(s.free[whole], piece)
	s.out--
}

// Shrink lowers the capacity. Of the pieces that were made, which lie one behind the
// other, only those within it are left: others are not given out again, and those that
// are out are to come back with Lose.
func (s *shelf[P]) Shrink(capacity uint64, within func(piece P, whole uint64) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.capacity = min(s.capacity, capacity)
	s.used = min(s.used, s.capacity)
	for whole, list := range s.free {
		s.free[whole] = slices.DeleteFunc(list, func(p P) bool { return !within(p, whole) })
	}
}

// Lose takes back a piece that is none any more.
func (s *shelf[P]) Lose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out--
}

// Stats gives the figures of now.
func (s *shelf[P]) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{s.capacity, s.used, s.out}
}

// leaks is an error if pieces are still out.
func (s *shelf[P]) leaks() error {
	if n := s.Stats().Pieces; n > 0 {
		return fmt.Errorf("%d values are still outside the device", n)
	}
	return nil
}
