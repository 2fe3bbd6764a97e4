// Package placement gives buffers with lifetimes their offsets in one range of memory.
//
// The problem is dynamic storage allocation (Garey and Johnson, SR2): buffers
// that are live at one time must not overlap in memory, and the highest address
// used shall be low. No peak can be below the largest sum of sizes live at one
// time; training steps nearly always reach that bound, hard instances don't.
//
// [Solve] works through these stages, each only where the one before left a gap:
//
//	problem.go  time becomes sections (maximal sets of buffers live together),
//	            sizes become units, and time is cut into independent parts
//	dive.go     a skyline dive builds a placement from the ground up, O(n log n)
//	nest.go     … asking for the best item within a stretch of time
//	wheel.go    squeaky wheel: dives are repeated with corrected keys
//	search.go   exact constraint search for a placement below a height
//	prover.go   … restarted along several lines that learn from failures
//	solve.go    shares the work among these, part by part
//	conflict.go explains why buffers don't fit
//
// Everything is deterministic: the same buffers, options and amount of work give
// the same plan. Work is counted, not timed; only the end of a context depends
// on the clock.
package placement

import (
	"fmt"
	"math/bits"
)

// Buffer is live during [Lower, Upper), in any unit of time; Lower < Upper. The
// unit of Size is any too, usually bytes; sizes sum to less than 2^62.
type Buffer struct {
	Lower, Upper int
	Size         uint64
}

// Plan is a placement.
type Plan struct {
	Offsets []uint64 // of each buffer; 0 for those of size 0
	Peak    uint64   // max of offset + size
	Bound   uint64   // proved: no plan has a lower peak
}

// Options of [Solve]. The zero value is the default.
type Options struct {
	// Capacity, when not 0, lets Solve stop at the first plan whose peak is not
	// above it.
	Capacity uint64
	// Align is a power of two that divides every offset; 0 means 1. Each buffer
	// takes up whole multiples of it, and so does the capacity.
	Align uint64
	// Seed varies the order in which placements are tried.
	Seed uint64
	// Work bounds the work, counted in steps of about 2 ns; 0 means some ten
	// seconds of it, or none if the context has a deadline.
	Work int
}

// LowerBound is the largest sum of sizes live at one time.
func LowerBound(bs []Buffer) uint64 {
	pr := newProblem(bs, 1)
	return uint64(pr.bound) * pr.unit
}

// check returns an error for input that isn't a problem.
func check(bs []Buffer, o Options) error {
	if o.Align&(o.Align-1) != 0 {
		return fmt.Errorf("placement: align is %d; it must be a power of two", o.Align)
	}
	align := max(o.Align, 1)
	var sum uint64
	for i, b := range bs {
		if b.Lower >= b.Upper {
			return fmt.Errorf("placement: buffer %d is live during [%d, %d): its end must be after its begin", i, b.Lower, b.Upper)
		}
		rounded := roundUp(b.Size, align)
		var carry uint64
		if sum, carry = bits.Add64(sum, rounded, 0); carry != 0 || rounded < b.Size || sum >= uint64(far) {
			return fmt.Errorf("placement: the sizes of buffers 0 to %d sum to 2^62 or more", i)
		}
	}
	return nil
}
