package plan

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/train"
)

// How rates are measured.
//
// A few steps run on the device itself. In every other one of them the stream
// waits around each launch, which gives the launch's time; the steps between
// run as steps do, and say what the whole takes. A step is the same launches
// every time; of each the quickest over the steps is taken, since other work on
// the machine only adds, and the mean of those with the same work. All are then
// scaled so that they add up to the median of the undisturbed steps: waiting
// costs time, and so does what happens between launches.

// calibrationSteps is how many steps are measured of each kind.
const calibrationSteps = 5

// Calibrate runs steps of c with strategy s on dev, with random data, and gives
// the rates that it has there. On an error of the step (it may not fit) it gives
// that; dev is as it was.
func Calibrate(dev device.Device, c train.Config, s train.Strategy) (r Rates, err error) {
	return CalibrateBy(sinceNow(), dev, c, s)
}

// sinceNow is a clock of the wall's time.
func sinceNow() func() time.Duration {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}

// CalibrateBy is Calibrate by another clock than the wall's: by the process's
// time on processors, where other work has a part of them and dev one worker.
func CalibrateBy(clock func() time.Duration, dev device.Device, c train.Config, s train.Strategy) (r Rates, err error) {
	w := &stopwatch{Device: dev, clock: clock}
	t, err := train.New(w, c, s)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	t.Strict = true
	if err := t.UseStore(heap, nil); err != nil {
		return r, err
	}
	batch := randomBatch(c)
	var steps []time.Duration
	var timed [][]launched
	for i := range 2 * (1 + calibrationSteps) {
		w.on, w.launches = i%2 == 1, nil
		start := clock()
		if _, err := t.Step(batch...); err != nil {
			return r, err
		}
		switch took := clock() - start; {
		case i < 2: // memory is touched for the first time
		case w.on:
			timed = append(timed, w.launches)
		default:
			steps = append(steps, took)
		}
	}
	r = RatesOf(dev.Info())
	r.Kernels, err = timings(timed, median(steps))
	return r, err
}

// timings are those of steps of the same launches that take so long.
func timings(steps [][]launched, took time.Duration) (map[string][]Timing, error) {
	sum, kernels := 0.0, map[string][]Timing{}
	count := map[launched]int{} // by name and work
	for i, l := range steps[0] {
		var times []time.Duration
		for _, step := range steps {
			if len(step) != len(steps[0]) || step[i].name != l.name {
				return nil, fmt.Errorf("steps differ: one has %d launches, another %d", len(steps[0]), len(step))
			}
			times = append(times, step[i].took)
		}
		l.took = 0
		seconds := max(slices.Min(times).Seconds(), 1e-9)
		sum += seconds
		list := kernels[l.name]
		at := slices.IndexFunc(list, func(t Timing) bool { return t.Flops == l.flops && t.Bytes == l.bytes })
		if at < 0 {
			at = len(list)
			list = append(list, Timing{l.flops, l.bytes, 0})
		}
		count[l]++
		list[at].Seconds += (seconds - list[at].Seconds) / float64(count[l])
		kernels[l.name] = list
	}
	for _, list := range kernels {
		for i := range list {
			list[i].Seconds *= took.Seconds() / sum
		}
		slices.SortFunc(list, func(x, y Timing) int { return cmp.Or(cmp.Compare(x.Flops, y.Flops), cmp.Compare(x.Bytes, y.Bytes)) })
	}
	return kernels, nil
}

func median(list []time.Duration) time.Duration {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}

// randomBatch is a batch of c of random numbers.
func randomBatch(c train.Config) []any {
	random := rand.New(rand.NewPCG(1, 2))
	batch := c.NewBatch()
	for k, f := range c.Fields() {
		switch array := batch[k].(type) {
		case []int32:
			for i := range array {
				array[i] = random.Int32N(int32(f.Below))
			}
		case []float32:
			for i := range array {
				array[i] = float32(random.NormFloat64())
			}
		}
	}
	return batch
}

// heap is a tensor.Store of the program's own memory.
var heap = tensor.HostStore(func(size uint64) (buf []byte, giveBack func(), err error) {
	return make([]byte, size), func() {}, nil
})

// stopwatch is a device that measures its launches while it is on.
type stopwatch struct {
	device.Device
	clock    func() time.Duration
	on       bool
	launches []launched
}

func newStopwatch(dev device.Device) *stopwatch { return &stopwatch{Device: dev, clock: sinceNow()} }

// Unwrap is the device that is measured.
func (w *stopwatch) Unwrap() device.Device { return w.Device }

// launched is a launch or copy, as the null device names it, with its time.
type launched struct {
	name         string
	flops, bytes uint64
	took         time.Duration
}

func (w *stopwatch) NewStream() (device.Stream, error) {
	s, err := w.Device.NewStream()
	return &watchedStream{s, w}, err
}

// watchedStream is a stream of a stopwatch.
type watchedStream struct {
	device.Stream
	watch *stopwatch
}

// time runs work, which queues what l says. Errors of the work stay in the
// stream.
func (s *watchedStream) time(l launched, work func()) {
	if !s.watch.on {
		work()
		return
	}
	_ = s.Sync()
	start := s.watch.clock()
	work()
	_ = s.Sync()
	l.took = s.watch.clock() - start
	s.watch.launches = append(s.watch.launches, l)
}

func (s *watchedStream) Launch(l *device.Launch) {
	s.time(launched{kernelOf(l), l.Flops, l.Bytes, 0}, func() { s.Stream.Launch(l) })
}

func (s *watchedStream) Copy(dst, src device.Ptr, n uint64) {
	s.time(launched{"copy", 0, 2 * n, 0}, func() { s.Stream.Copy(dst, src, n) })
}

func (s *watchedStream) Upload(dst device.Ptr, src []byte) {
	s.time(launched{"upload", 0, uint64(len(src)), 0}, func() { s.Stream.Upload(dst, src) })
}

func (s *watchedStream) Download(dst []byte, src device.Ptr) {
	s.time(launched{"download", 0, uint64(len(dst)), 0}, func() { s.Stream.Download(dst, src) })
}
