package train_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/internal/spill"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/train"
)

// memory is a Store in the host's memory.
func memory(t *testing.T) *spill.Place {
	t.Helper()
	p, err := spill.Memory(nil, 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// awayRun is a run of c with a store.
func awayRun(t *testing.T, dir string, c train.Config, s train.Strategy) *train.Run {
	t.Helper()
	place := memory(t) // closed after the trainer
	r := noisy(t, dir, c, s)
	if err := r.Trainer.UseStore(place, nil); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestStateAway: for every family and optimizer the losses and, to the last
// bit, the files of a run with its optimizer outside the device are those of a
// run that keeps it there, with micro-batches and recompute, too.
func TestStateAway(t *testing.T) {
	eachFamily(t, func(t *testing.T, c train.Config) {
		for i, micro := range []int{4, 2, 1} {
			if micro < c.Batch && !c.Divisible() || invariant.Slow && micro != 2 {
				continue
			}
			c.Clip = float32(i % 2)
			s := train.Strategy{MicroBatch: micro, Recompute: micro % 2}
			plain := noisy(t, t.TempDir(), c, s)
			want := losses(t, plain)
			s.StateAway = true
			for _, s.GradientsAway = range []bool{false, true} {
				away := awayRun(t, t.TempDir(), c, s)
				if got := losses(t, away); !slices.Equal(got, want) {
					t.Errorf("%s, clip %g: losses %v, want %v", c.Describe(s), c.Clip, got, want)
				}
				sameFiles(t, plain.Dir, away.Dir, "model.safetensors", train.CheckpointFile)
			}
		}
	})
}

// TestStateAwayMixed steps in 16 bits, with losses scaled and steps skipped.
func TestStateAwayMixed(t *testing.T) {
	for _, d := range []tensor.DType{tensor.BFloat16, tensor.Float16} {
		c := families()["gpt2"]
		c.Precision = d
		s := train.Strategy{MicroBatch: 2}
		want := losses(t, noisy(t, t.TempDir(), c, s))
		s.StateAway, s.GradientsAway = true, true
		if got := losses(t, awayRun(t, t.TempDir(), c, s)); !slices.Equal(got, want) {
			t.Errorf("%v: losses %v, want %v", d, got, want)
		}
	}
}

// TestStateAwayResume cuts runs and goes on with the state elsewhere.
func TestStateAwayResume(t *testing.T) {
	eachFamily(t, func(t *testing.T, c train.Config) {
		whole := noisy(t, t.TempDir(), c, c.Plain())
		want := losses(t, whole)
		away := c.Plain()
		away.StateAway = true
		for _, first := range []train.Strategy{c.Plain(), away} {
			second := c.Plain()
			second.StateAway = !first.StateAway
			cut := awayRun(t, t.TempDir(), c, first)
			got := cutAfter(t, cut, 2)
			cp, err := train.OpenCheckpoint(cut.Dir)
			if err != nil {
				t.Fatal(err)
			}
			defer cp.Close()
			r := awayRun(t, cut.Dir, c, second)
			if err := r.Resume(cp); err != nil {
				t.Fatal(err)
			}
			if got = append(got, losses(t, r)...); !slices.Equal(got, want) {
				t.Errorf("losses %v, want %v", got, want)
			}
			sameFiles(t, whole.Dir, cut.Dir, "model.safetensors", train.CheckpointFile)
		}
	})
}

// TestStateAwaySaves: with the state outside, the peak on the device is lower
// by that state, and at rest the weights alone are there.
func TestStateAwaySaves(t *testing.T) {
	c := families()["gpt2"]
	var peaks []uint64
	for _, s := range []train.Strategy{{MicroBatch: 1}, {MicroBatch: 1, StateAway: true}, {MicroBatch: 1, StateAway: true, GradientsAway: true}} {
		r := awayRun(t, t.TempDir(), c, s)
		losses(t, r)
		stats := r.Trainer.Memory().Stats()
		peaks = append(peaks, stats.PeakLive)
		if weights := uint64(4 * r.Trainer.Parameters()); s.StateAway && stats.Live > weights*3/2 { // in blocks of 512 bytes
			t.Errorf("%s: %d bytes live after a run, of weights there are %d", c.Describe(s), stats.Live, weights)
		}
	}
	if state := uint64(8 * parameters(t, c)); peaks[1]+state > peaks[0] || peaks[2] >= peaks[1] {
		t.Errorf("peaks %v: the state has %d bytes", peaks, state)
	}
}

func parameters(t *testing.T, c train.Config) int {
	return noisy(t, t.TempDir(), c, c.Plain()).Trainer.Parameters()
}

// refusing is a Store that has room n times.
type refusing struct {
	tensor.Store
	n int
}

var errNoRoom = errors.New("no room")

func (r *refusing) TakeBytes(size uint64) ([]byte, func(), error) {
	if r.n--; r.n < 0 {
		return nil, nil, errNoRoom
	}
	return r.Store.TakeBytes(size)
}

// TestStateAwayRefused lets every call of the store fail: the state must have
// room, and where it has not, that is said and nothing is lost.
func TestStateAwayRefused(t *testing.T) {
	c := families()["gpt2"]
	s := train.Strategy{MicroBatch: 2, StateAway: true, GradientsAway: true}
	want := losses(t, awayRun(t, t.TempDir(), c, s))
	refused := 0
	for n := 0; ; n++ {
		place := memory(t)
		r := noisy(t, t.TempDir(), c, s)
		if err := r.Trainer.UseStore(&refusing{place, n}, nil); err == nil {
			if got := losses(t, r); !slices.Equal(got, want) {
				t.Errorf("losses %v, want %v", got, want)
			}
			break
		} else if refused++; !errors.Is(err, errNoRoom) || !strings.Contains(err.Error(), "no room outside the device") {
			t.Errorf("refused after %d: %v", n, err)
		}
		if pieces := place.Stats().Pieces; pieces != 0 {
			t.Errorf("refused after %d: %d pieces are still out", n, pieces)
		}
		if _, err := r.Trainer.Step(c.NewBatch()...); err == nil || !strings.Contains(err.Error(), "UseStore") {
			t.Errorf("a step without a store: %v", err)
		}
	}
	if refused == 0 {
		t.Error("the store never refused")
	}
}

// TestStateAwayOutOfMemory lets the device be full from its n-th allocation on:
// a step that fails has changed nothing.
func TestStateAwayOutOfMemory(t *testing.T) {
	c := families()["gpt2"]
	c.Batch, c.Schedule.Steps = 128, 2
	s := train.Strategy{MicroBatch: 64, StateAway: true, GradientsAway: true}
	want, _ := trainAwayOnFull(t, c, s, math.MaxInt)
	failures := 0
	for n := 0; ; n++ {
		got, failed := trainAwayOnFull(t, c, s, n)
		if got != nil && !slices.Equal(got, want) {
			t.Errorf("full after %d: losses %v, want %v", n, got, want)
		}
		if failures += failed; got != nil && failed == 0 {
			break
		}
	}
	if failures == 0 {
		t.Error("no step failed")
	}
}

func trainAwayOnFull(t *testing.T, c train.Config, s train.Strategy, n int) (losses []float64, failures int) {
	dev := &full{host(t), n}
	tr, err := train.New(dev, c, s)
	if errors.Is(err, device.ErrOutOfMemory) {
		return nil, 0
	}
	if err == nil {
		err = tr.UseStore(memory(t), nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	tr.Strict = true
	feed, batch := &noise{fields: c.Fields()}, c.NewBatch()
	for range c.Schedule.Steps {
		feed.Next(batch...)
		r, err := tr.Step(batch...)
		if errors.Is(err, device.ErrOutOfMemory) {
			failures++
			dev.mend()
			r, err = tr.Step(batch...)
		}
		if err != nil {
			t.Fatal(err)
		}
		losses = append(losses, r.Loss)
	}
	if err := tr.Close(); err != nil {
		t.Errorf("full after %d: %v", n, err)
	}
	return losses, failures
}

// TestStateAwayInFile keeps the optimizer in a file.
func TestStateAwayInFile(t *testing.T) {
	place, err := spill.File(t.TempDir(), 64<<20)
	if err != nil {
		t.Skip(err)
	}
	c := families()["moe"]
	s := train.Strategy{MicroBatch: 2, StateAway: true}
	want := losses(t, noisy(t, t.TempDir(), c, train.Strategy{MicroBatch: 2}))
	t.Cleanup(func() {
		if err := place.Close(); err != nil {
			t.Error(err)
		}
	})
	r := noisy(t, t.TempDir(), c, s)
	if err := r.Trainer.UseStore(place, nil); err != nil {
		t.Fatal(err)
	}
	if got := losses(t, r); !slices.Equal(got, want) {
		t.Errorf("losses %v, want %v", got, want)
	}
}

// TestGradientsNeedState refuses gradients outside without the state there.
func TestGradientsNeedState(t *testing.T) {
	c := families()["gpt2"]
	if err := c.Allows(train.Strategy{MicroBatch: 1, GradientsAway: true}); err == nil || !strings.Contains(err.Error(), "only where the optimizer's state does") {
		t.Error(err)
	}
}
