package train_test

import (
	"math"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/train"
)

// shared is a device that another program takes memory of.
type shared struct {
	device.Device
	handles, limit int
}

func (s *shared) Create() (device.Handle, error) {
	if s.handles >= s.limit {
		return 0, device.ErrOutOfMemory
	}
	h, err := s.Device.Create()
	if err == nil {
		s.handles++
	}
	return h, err
}

func (s *shared) Destroy(h device.Handle) error {
	err := s.Device.Destroy(h)
	if err == nil {
		s.handles--
	}
	return err
}

// TestMemoryTakenAway takes away most of the memory that steps use beside the
// weights in the middle of a run, and gives it back: the losses stay the same,
// the events tell what was done, and in the end the steps run as planned again.
func TestMemoryTakenAway(t *testing.T) {
	c := config()
	c.GPT2.Width, c.GPT2.Layers = 64, 6
	c.Batch, c.Seq, c.GPT2.Context, c.Schedule.Steps = 8, 64, 64, 40
	want := losses(t, newRun(t, c, c.Plain()))
	dev := &shared{Device: host(t), limit: math.MaxInt}
	tr, err := train.New(dev, c, c.Plain())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	}()
	weights := dev.handles
	b := batches(t, c)
	x, y := make([]int32, c.Batch*c.Seq), make([]int32, c.Batch*c.Seq)
	kinds := map[string]int{}
	last := ""
	for step := range c.Schedule.Steps {
		switch step {
		case 5:
			if _, err := tr.Memory().Trim(0); err != nil {
				t.Fatal(err)
			}
			dev.limit = weights + 2
		case 20:
			dev.limit = math.MaxInt
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
