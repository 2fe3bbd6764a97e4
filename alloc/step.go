package alloc

import (
	"errors"
	"fmt"
	"math"
)

// Reserve takes memory from the device until at least size bytes are reserved,
// so that later requests find it there. It fails if the limit or the device
// does not allow that; what is reserved is then as before.
func (a *Allocator) Reserve(size uint64) error {
	a.begin()
	defer a.unlock()
	switch {
	case a.closed:
		return errClosed
	case size <= a.stats.Reserved:
		return nil
	case size > a.limit:
		return fmt.Errorf("reserving %d bytes: %w", size, errLimit)
	}
	err := a.source.prepare(size - a.stats.Reserved)
	a.stats.PeakReserved = max(a.stats.PeakReserved, a.stats.Reserved)
	return err
}

// Trim gives wholly free memory back to the device until no more than keep
// bytes are reserved, after waiting on the host for the work that may touch
// it, and says how many bytes. Trim(0) gives back all that is wholly free. An
// error of the device ends it; what was given back until then stays so.
func (a *Allocator) Trim(keep uint64) (uint64, error) {
	a.begin()
	defer a.unlock()
	if a.closed {
		return 0, nil
	}
	a.settleFinished()
	return a.trim(keep)
}

func (a *Allocator) trim(keep uint64) (uint64, error) {
	a.stats.Trims++
	a.note("trim", 0, keep)
	if keep >= a.stats.Reserved {
		return 0, nil
	}
	return a.source.trim(keep)
}

// Step says that a step of the program ends here and the next one begins: its
// requests, or those of a plan that is followed, start anew. Requests of the same
// sizes in the same order as in an earlier step get the same places, so that a
// step that repeats needs nothing of the driver. Options tell what is done beside
// that: planning of the next step, trimming to SoftLimit, and every TrimEvery
// steps to nothing. An error comes from the device; the allocator can be used on.
func (a *Allocator) Step() error {
	a.begin()
	defer a.unlock()
	if a.closed {
		return errClosed
	}
	a.settleFinished()
	a.stats.Steps++
	var err error
	if a.options.PlanSteps && a.page > 0 {
		err = a.planStep()
	}
	if a.planned != nil {
		a.planned.next, a.planned.lost = 0, 0
	} else {
		a.steps.begin()
	}
	if keep := a.keep(); keep < a.stats.Reserved {
		_, trimErr := a.trim(keep)
		err = errors.Join(err, trimErr)
	}
	return err
}

// keep is what may stay reserved after this step.
func (a *Allocator) keep() uint64 {
	if n := a.options.TrimEvery; n > 0 && a.stats.Steps%uint64(n) == 0 {
		return 0
	}
	if a.options.SoftLimit > 0 {
		return a.options.SoftLimit
	}
	return math.MaxUint64
}
