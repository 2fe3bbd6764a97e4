package bench

import (
	"errors"
	"math"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/train"
)

// everyBlock keeps of every block its input alone.
func everyBlock(g *group, micro int) train.Strategy {
	return train.Strategy{MicroBatch: micro, Recompute: g.c.Blocks()}
}

// segments cuts the forward pass into √blocks parts and keeps of each what others
// read (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).
func segments(g *group, micro int) train.Strategy {
	n := int(math.Round(math.Sqrt(float64(g.c.Blocks()))))
	return train.Strategy{MicroBatch: micro, Values: g.record(micro).Segments(n)}
}

// allAway moves every value that backward reads away, and brings it back an
// operation before the first read.
func allAway(g *group, micro int) train.Strategy {
	s, _ := g.away(micro)
	return s
}

// away is allAway with the bytes that it moves each way.
func (g *group) away(micro int) (s train.Strategy, bytes int64) {
	r := g.record(micro)
	first, back := map[int]int{}, 0
	for _, op := range r.Ops {
		if !op.Back {
			continue
		}
		for _, v := range op.Reads {
			if _, ok := first[v]; !ok {
				first[v] = max(back-1, 0)
			}
		}
		back++
	}
	s = train.Strategy{MicroBatch: micro, Values: scheduleOf(r, func(v int, w *tensor.Wait) {
		if at, ok := first[v]; ok && r.Values[v].Saved {
			*w = tensor.Wait{Op: w.Op, Reads: []int{0, math.MaxInt}, Away: true, Fetch: []int{at}}
			bytes += r.Values[v].Bytes
		}
	})}
	return s, bytes
}

// record is the step with micro-batches of that size.
func (g *group) record(micro int) *tensor.Record {
	dev, err := device.OpenNull(device.NullOptions{Capacity: 1 << 46, Virtual: true})
	if err != nil {
		g.t.Fatal(err)
	}
	t, err := train.New(dev, g.c, train.Strategy{MicroBatch: micro})
	if err != nil {
		g.t.Fatal(err)
	}
	r, err := t.Record(nil, g.c.NewBatch()...)
	if err := errors.Join(err, t.Close(), dev.Close()); err != nil {
		g.t.Fatal(err)
	}
	return r
}

// scheduleOf is a schedule for the record, with the waits of the values set by
// set.
func scheduleOf(r *tensor.Record, set func(value int, w *tensor.Wait)) *tensor.Schedule {
	s := &tensor.Schedule{}
	for _, op := range r.Ops {
		if !op.Back {
			s.Waits = append(s.Waits, tensor.Wait{Op: op.Name})
		}
	}
	for v, value := range r.Values {
		set(v, &s.Waits[r.Ops[value.Op].Node])
	}
	return s
}
