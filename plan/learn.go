package plan

import (
	"maps"
	"slices"
	"time"

	"github.com/headroom-go/headroom/device"
)

// How rates are learned from a run.
//
// Now and then the stream waits around each launch of a step, as in a calibration;
// the steps between say what a whole one takes. Steps of one kind (a length and a
// strategy) are the same launches every time, and give timings as Calibrate's do.

// When a Learner looks at launches: in every lookEvery-th step, mostLooks times for a
// kind and twice that in all for each (some come seldom), but not in the first few steps, in which memory is touched for the first time
// and a snapshot and a profile are written.
const (
	firstLook = 4
	lookEvery = 5 // no multiple of how many strategies a run takes in turn
	mostLooks = 4
)

// Learner measures the steps of a run, to correct the rates that its plan was
// estimated with. It is used from the goroutine that trains.
type Learner struct {
	watch *stopwatch
	steps int
	looks int // steps in which launches were looked at
	kinds map[string]*kindOfStep
}

// kindOfStep is what was measured of steps with the same launches.
type kindOfStep struct {
	whole []time.Duration // of steps in which nothing waited
	timed [][]launched
}

// NewLearner measures what is done on the Learner's Device, which is dev.
func NewLearner(dev device.Device) *Learner {
	return &Learner{watch: newStopwatch(dev), kinds: map[string]*kindOfStep{}}
}

// Device is where the run must compute.
func (l *Learner) Device() device.Device { return l.watch }

// Step is told after each step what kind it was of and how long it took.
func (l *Learner) Step(kind string, seconds float64) {
	l.steps++
	k := l.kinds[kind]
	if k == nil {
		k = &kindOfStep{}
		l.kinds[kind] = k
	}
	switch {
	case l.watch.on && len(k.timed) < mostLooks:
		k.look(l.watch.launches)
	case !l.watch.on && l.steps >= firstLook:
		k.whole = append(k.whole, time.Duration(seconds*float64(time.Second)))
	}
	l.watch.launches = nil
	if l.watch.on = l.steps >= firstLook && l.steps%lookEvery == 0 && l.wants(); l.watch.on {
		l.looks++
	}
}

// look enters what was launched until a step's end. Behind some steps a checkpoint is
// written, or the model evaluated: only those with the fewest launches are steps alone.
func (k *kindOfStep) look(launches []launched) {
	if len(k.timed) > 0 && len(launches) < len(k.timed[0]) {
		k.timed = nil
	}
	if len(k.timed) == 0 || len(launches) == len(k.timed[0]) {
		k.timed = append(k.timed, launches)
	}
}

// wants says whether launches of some kind are still to be looked at.
func (l *Learner) wants() bool {
	if l.looks >= 2*mostLooks*len(l.kinds) {
		return false
	}
	for _, k := range l.kinds {
		if len(k.timed) < mostLooks {
			return true
		}
	}
	return false
}

// Rates are what was measured, without a device; there are none where no kind had
// steps of both sorts. Steps that differ from others of their kind, such as those that
// ran out of memory, are left out.
func (l *Learner) Rates() (r Rates) {
	for _, name := range slices.Sorted(maps.Keys(l.kinds)) {
		k := l.kinds[name]
		if len(k.timed) == 0 || len(k.whole) == 0 {
			continue
		}
		if kernels, err := timings(k.timed, median(k.whole)); err == nil {
			r.Add(Rates{Kernels: kernels})
		}
	}
	return r
}

// Median is what an undisturbed step of a kind took, in seconds; 0 where there was
// none.
func (l *Learner) Median(kind string) float64 {
	if k := l.kinds[kind]; k != nil && len(k.whole) > 0 {
		return median(slices.Clone(k.whole)).Seconds()
	}
	return 0
}
