package train_test

import (
	"math"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/train"
)

// shared is a device that another program takes memory of: no more than limit
// bytes are ours, by handles or, where there are none, by plain allocations.
type shared struct {
	device.Device
	taken, limit uint64
	sizes        map[device.Ptr]uint64
}

func (s *shared) take(size uint64) error {
	if s.taken+size > s.limit {
		return device.ErrOutOfMemory
	}
	s.taken += size
	return nil
}

func (s *shared) Create() (device.Handle, error) {
	if err := s.take(s.Info().Granularity); err != nil {
		return 0, err
	}
	return s.Device.Create()
}

func (s *shared) Destroy(h device.Handle) error {
	s.taken -= s.Info().Granularity
	return s.Device.Destroy(h)
}

func (s *shared) Alloc(size uint64) (device.Ptr, error) {
	if err := s.take(size); err != nil {
		return 0, err
	}
	p, err := s.Device.Alloc(size)
	s.sizes[p] = size
	return p, err
}

func (s *shared) Free(p device.Ptr) error {
	s.taken -= s.sizes[p]
	return s.Device.Free(p)
}

// TestMemoryTakenAway takes away most of the memory that steps use beside the
// weights in the middle of a run, and gives it back: the losses stay the same,
// the events tell what was done, and in the end the steps run as planned again.
func TestMemoryTakenAway(t *testing.T) {
	if invariant.Slow {
		t.Skip("under the race detector memory comes in segments too large to take half of them away")
	}
	c := config()
	c.GPT2.Width, c.GPT2.Layers = 64, 6
	c.Batch, c.Seq, c.GPT2.Context, c.Schedule.Steps = 8, 64, 64, 32
	want := losses(t, newRun(t, c, c.Plain()))
	dev := &shared{Device: host(t), limit: math.MaxUint64, sizes: map[device.Ptr]uint64{}}
	tr, err := train.New(dev, c, c.Plain())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	}()
	weights := dev.taken
	b := batches(t, c)
	x, y := make([]int32, c.Batch*c.Seq), make([]int32, c.Batch*c.Seq)
	kinds := map[string]int{}
	last := ""
	for step := range c.Schedule.Steps {
		switch step {
		case 5:
			half := (dev.taken - weights) / 2
			if _, err := tr.Memory().Trim(0); err != nil {
				t.Fatal(err)
			}
			dev.limit = weights + half
		case 15:
			dev.limit = math.MaxUint64
		}
		if err := b.Next(x, y); err != nil {
			t.Fatal(err)
		}
		r, err := tr.Step(x, y)
		if err != nil {
			t.Fatalf("step %d: %v", step+1, err)
		}
		if math.Abs(r.Loss-want[step]) > 1e-4*want[step] {
			t.Errorf("step %d: loss %v, want %v", step+1, r.Loss, want[step])
		}
		for _, e := range r.Events {
			kinds[e.Kind]++
			t.Logf("step %d: %s", step+1, e.Text)
			last = e.Kind
		}
	}
	if kinds["retry"] == 0 || kinds["evict"] == 0 || kinds["climb"] == 0 || last != "climb" {
		t.Errorf("events %v, the last is %s", kinds, last)
	}
}
