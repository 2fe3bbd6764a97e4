package plan

import (
	"context"
	"testing"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/remat"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// recorded runs a step of a small GPT-2 on a null device twice, and gives the
// record of the second with the measured peak and the operations' costs.
func recorded(t *testing.T) (r *tensor.Record, seconds []float64, peak uint64) {
	return stepOf(t, nil)
}

func recordedUnder(t *testing.T, s *tensor.Schedule) uint64 {
	_, _, peak := stepOf(t, s)
	return peak
}

func stepOf(t *testing.T, s *tensor.Schedule) (r *tensor.Record, seconds []float64, peak uint64) {
	t.Helper()
	rates := HostRates(1)
	var op int
	dev, err := device.OpenNull(device.NullOptions{Capacity: 1 << 40, Virtual: true, OnLaunch: func(l *device.Launch) {
		if op >= 0 && op < len(seconds) {
			seconds[op] += rates.seconds(l)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	mem, err := alloc.New(dev, alloc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	rt := tensor.New(mem, stream)
	c := nn.GPT2Config{Vocab: 256, Context: 64, Width: 64, Layers: 4, Heads: 4}
	m := nn.NewGPT2(rt, c, 1)
	x := rt.FromInt32s(trace.Input, make([]int32, 4*64), 4, 64)
	step := func() {
		loss := m.Loss(x, x)
		loss.Backward(1)
		loss.Release()
	}
	step()
	mem.ResetPeaks()
	if s != nil {
		rt.Follow(s, step)
		return nil, nil, mem.Stats().PeakLive
	}
	r = rt.Record(func(i int) { op = i; seconds = append(seconds, 0) }, step)
	return r, seconds, mem.Stats().PeakLive
}

// TestProgram compares the solver's memory with the runtime's: of a plain step,
// and of a step under the schedules of plans for less.
func TestProgram(t *testing.T) {
	const slack = 4096 // what is taken between operations
	r, seconds, peak := recorded(t)
	p := newProgram(r, seconds)
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}
	if plain := p.PlainPeak(); plain > int64(peak)+slack || plain < int64(peak)-slack {
		t.Errorf("peak %d, the program's %d", peak, plain)
	}
	for _, part := range []float64{0.9, 0.8, 0.7, 0.6} {
		budget := int64(part * float64(peak))
		plan, err := remat.Solve(context.Background(), &p.Program, budget, remat.Options{Work: 300_000})
		if err != nil {
			t.Error(part, err)
			continue
		}
		if got := recordedUnder(t, p.schedule(plan)); got > uint64(plan.Peak)+slack {
			t.Errorf("%v of the memory: the plan's peak is %d, the step's %d", part, plan.Peak, got)
		}
	}
}
