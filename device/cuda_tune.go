package device

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/headroom-go/headroom/internal/cuda"
)

// Algorithms by measured times.
//
// cuBLASLt orders its algorithms for a product by estimates, and the first one
// is not always the fastest. So on a Tuner the first algorithms of a product are
// timed when it is queued for the first time, and the fastest is taken from then
// on. Algorithms add in different orders, so that a time decides about last
// bits, as it does for lengths of text (package train). Whoever goes on from a
// checkpoint must get the bits of one that was never interrupted: so what was
// chosen is kept there, and measuring ends when the first is written. From then
// on a product that is new takes its first algorithm, in the run that goes on as
// in one that goes on from the checkpoint.
//
// A product is timed where it stands, with its operands. If it overwrites its
// result, it may do so several times. If it adds to it, it adds to the end of
// the workspace, which algorithms leave alone; where that is too short, it takes
// its first algorithm.

// Tuner is a device whose products can take algorithms by measured times.
type Tuner interface {
	// Tune has products measured from now on, each when it is first queued. But
	// where known was made on such a device, they take what was chosen there, and
	// others the first algorithm.
	Tune(known *Tuning) error
	// Tuned ends the measuring, and gives what was chosen; nil where nothing
	// could be.
	Tuned() *Tuning
}

// TunerOf gives the Tuner that d is, or that d watches; nil for other devices.
func TunerOf(d Device) Tuner { return within[Tuner](d) }

// Tuning is the algorithms that products take, on GPUs of one model with one
// version of the library.
type Tuning struct {
	Model   string         `json:"gpu"`
	Library int            `json:"cublaslt"`
	Chosen  []TunedProduct `json:"products"`
}

// TunedProduct is a product, as the library sees it, and the number of its
// algorithm in the library's order.
type TunedProduct struct {
	cuda.Product
	Algorithm int
}

const (
	tunedAlgorithms = 8    // of a product
	maxTuned        = 1024 // products; programs whose shapes always change are better off without
)

// Validate says what cannot be in a Tuning that was read from a file, if
// anything.
func (t *Tuning) Validate() error {
	if t == nil {
		return nil
	}
	if n := len(t.Chosen); n > maxTuned {
		return fmt.Errorf("algorithms of %d products: at most %d are kept", n, maxTuned)
	}
	for _, c := range t.Chosen {
		if c.Algorithm < 0 || c.Algorithm >= tunedAlgorithms {
			return fmt.Errorf("algorithm %d for a product of %d×%d×%d: they are numbered from 0 to %d", c.Algorithm, c.M, c.N, c.K, tunedAlgorithms-1)
		}
	}
	return nil
}

// Tune implements Tuner.
func (d *CUDADevice) Tune(known *Tuning) error {
	b := &d.blas
	if b.blas == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tuning = &Tuning{Model: d.Info().Model, Library: b.blas.Version()}
	b.measuring = known == nil || known.Model != b.tuning.Model || known.Library != b.tuning.Library
	if !b.measuring {
		b.tuning.Chosen = slices.Clone(known.Chosen)
	}
	return errors.Join(d.forgetGraphs(), b.forget()) // a plan that is new may lie where one lay
}

// Tuned implements Tuner.
func (d *CUDADevice) Tuned() *Tuning {
	b := &d.blas
	b.mu.Lock()
	defer b.mu.Unlock()
	b.measuring = false
	if b.tuning == nil {
		return nil
	}
	t := *b.tuning
	t.Chosen = slices.Clone(t.Chosen)
	return &t
}

// tuned is the number of the algorithm for a product that is new.
func (q *CUDAQueue) tuned(plan *cuda.Plan, key *cuda.Product, p *Product) int {
	b := &q.stream.device.blas
	for _, c := range b.tuning.Chosen {
		if c.Product == *key && c.Algorithm < plan.Algorithms() {
			return c.Algorithm
		}
	}
	if !b.measuring || len(b.tuning.Chosen) == maxTuned || p.flops() < leastTuned {
		return 0
	}
	trial, ok := q.trial(p)
	if !ok {
		return 0
	}
	times, err := q.race(plan, &trial)
	if err != nil {
		q.stream.keep(err)
		return 0
	}
	best := fastest(times)
	b.tuning.Chosen = append(b.tuning.Chosen, TunedProduct{*key, best})
	return best
}

// leastTuned is the fewest operations that are worth it to measure a product.
const leastTuned = 2e8

func (p *Product) flops() float64 {
	return 2 * float64(p.M) * float64(p.N) * float64(p.K) * float64(p.Batch)
}

// trial is p as it may be done several times, if there is room for it.
func (q *CUDAQueue) trial(p *Product) (t Product, ok bool) {
	t = *p
	if !p.Accumulate {
		return t, true
	}
	size := q.WorkspaceBytes()
	room := size - asideBytes - q.stream.device.blas.workspace
	n := ((p.Batch-1)*p.StrideD+(p.M-1)*p.LDD+p.N)*p.TypeD.Size() + 256
	if n > room {
		return t, false
	}
	t.D = (q.Workspace(size) + Ptr(size-asideBytes-n) + 255) &^ 255
	return t, true
}

const (
	raceRounds = 3 // in which the algorithms take turns, so that a disturbance doesn't meet one alone
	raceRuns   = 2 // of each in a round
)

// race gives the least seconds that a run of each algorithm took; those that
// cannot run take for ever. The stream is waited for, before and after.
func (q *CUDAQueue) race(plan *cuda.Plan, p *Product) ([]float64, error) {
	s := q.stream
	if err := s.Sync(); err != nil {
		return nil, err
	}
	turns := slices.Repeat(q.able(plan, p), raceRounds)
	marks, err := timedEvents(s.context, len(turns)+1)
	if err != nil {
		return nil, err
	}
	err = s.context.RecordEvent(marks[0], s.handle)
	for k, i := range turns {
		plan.Choose(i)
		for range raceRuns {
			err = errors.Join(err, q.multiply(plan, p, cuda.Ptr(q.Workspace(plan.Workspace()))))
		}
		err = errors.Join(err, s.context.RecordEvent(marks[k+1], s.handle))
	}
	err = errors.Join(err, s.Sync())
	times := slices.Repeat([]float64{math.Inf(1)}, plan.Algorithms())
	for k, i := range turns {
		seconds, failed := s.context.Elapsed(marks[k], marks[k+1])
		times[i], err = min(times[i], seconds/raceRuns), errors.Join(err, failed)
	}
	return times, errors.Join(err, destroyEvents(s.context, marks))
}

// timedEvents gives n events that take times, or none.
func timedEvents(c *cuda.Context, n int) (list []cuda.Event, err error) {
	for range n {
		e, err := c.NewEvent(true)
		if err != nil {
			return nil, errors.Join(err, destroyEvents(c, list))
		}
		list = append(list, e)
	}
	return list, nil
}

func destroyEvents(c *cuda.Context, list []cuda.Event) (err error) {
	for _, e := range list {
		err = errors.Join(err, c.DestroyEvent(e))
	}
	return err
}

// able runs each algorithm once, which also loads its code, and gives the
// numbers of those that can.
func (q *CUDAQueue) able(plan *cuda.Plan, p *Product) (list []int) {
	for i := range plan.Algorithms() {
		plan.Choose(i)
		if q.multiply(plan, p, cuda.Ptr(q.Workspace(plan.Workspace()))) == nil {
			list = append(list, i)
		}
	}
	return list
}

const (
	shortest = 20e-6 // seconds; of what is shorter, queueing may take longer than running
	worth    = 0.98  // of the first algorithm's time
)

// fastest is the number of the least time, or 0 where that is not clearly the
// least.
func fastest(times []float64) int {
	best := 0
	for i, t := range times {
		if t < times[best] {
			best = i
		}
	}
	if times[0] < shortest || times[best] > worth*times[0] {
		return 0
	}
	return best
}
