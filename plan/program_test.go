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
func recorded(t *testing.T, back func(loss *tensor.Tensor)) (r *tensor.Record, seconds []float64, peak uint64) {
	return stepOf(t, nil, back)
}

func recordedUnder(t *testing.T, s *tensor.Schedule, back func(loss *tensor.Tensor)) uint64 {
	_, _, peak := stepOf(t, s, back)
	return peak
}

func stepOf(t *testing.T, s *tensor.Schedule, back func(loss *tensor.Tensor)) (r *tensor.Record, seconds []float64, peak uint64) {
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
		back(loss)
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
	compareMemory(t, func(loss *tensor.Tensor) { loss.Backward(1) }, 0.9, 0.8, 0.7, 0.6)
}

// TestProgramDeferring: so does it of a step that puts gradients of weights off, where
// little can be saved: at the peak backward has kept all that these need.
func TestProgramDeferring(t *testing.T) {
	compareMemory(t, func(loss *tensor.Tensor) {
		tensor.BackwardDeferring([]*tensor.Tensor{loss}, []*tensor.Tensor{loss.Runtime().Full(1)}).Run()
	}, 0.99)
}

func compareMemory(t *testing.T, back func(loss *tensor.Tensor), parts ...float64) {
	t.Helper()
	const slack = 4096 // what is taken between operations
	r, seconds, peak := recorded(t, back)
	p := newProgram(r, seconds)
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}
	if plain := p.PlainPeak(); plain > int64(peak)+slack || plain < int64(peak)-slack {
		t.Errorf("peak %d, the program's %d", peak, plain)
	}
	for _, part := range parts {
		budget := int64(part * float64(peak))
		plan, err := remat.Solve(context.Background(), &p.Program, budget, remat.Options{Work: 300_000})
		if err != nil {
			t.Error(part, err)
			continue
		}
		if got := recordedUnder(t, p.schedule(plan), back); got > uint64(plan.Peak)+slack {
			t.Errorf("%v of the memory: the plan's peak is %d, the step's %d", part, plan.Peak, got)
		}
	}
}
