package bench

import (
	"errors"
	"math"
	"slices"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/train"
)

// everyBlock keeps of every block its input alone.
func everyBlock(g *group, micro int) train.Strategy {
	return train.Strategy{MicroBatch: micro, Recompute: g.c.Blocks()}
}

// segments cuts the forward pass into √blocks parts, near to equal numbers of
// operations where the least memory crosses, and keeps of each what others read
// (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).
func segments(g *group, micro int) train.Strategy {
	r := g.record(micro)
	n := int(math.Round(math.Sqrt(float64(g.c.Blocks()))))
	cuts := cutsOf(r, n)
	segment := func(op int) int {
		at, _ := slices.BinarySearch(cuts, op+1)
		return at
	}
	outside := make([]bool, len(r.Values)) // a value is read by another segment
	forwardReads(r, func(value, op int) {
		outside[value] = outside[value] || segment(op) != segment(r.Values[value].Op)
	})
	return train.Strategy{MicroBatch: micro, Values: scheduleOf(r, func(v int, w *tensor.Wait) {
		w.Reads = []int{math.MaxInt}
		if !outside[v] && r.Ops[r.Values[v].Op].Remade {
			w.Reads = []int{0, math.MaxInt}
		}
	})}
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

// forwardReads tells of every value that is read by an operation's second run or
// by its backward.
func forwardReads(r *tensor.Record, tell func(value, op int)) {
	of := map[int]int{} // the operation of a node
	for i, op := range r.Ops {
		values := op.From
		if !op.Back {
			of[op.Node] = i
		} else {
			i, values = of[op.Node], op.Reads
		}
		for _, v := range values {
			tell(v, i)
		}
	}
}

// cutsOf gives the operations before which the forward pass is cut.
func cutsOf(r *tensor.Record, n int) (cuts []int) {
	forward := slices.IndexFunc(r.Ops, func(op tensor.RecordedOp) bool { return op.Back })
	last := make([]int, len(r.Values)) // operation that reads a value last
	forwardReads(r, func(value, op int) { last[value] = max(last[value], op) })
	crossing := func(cut int) (bytes int64) {
		for v, value := range r.Values {
			if value.Op < cut && last[v] >= cut {
				bytes += value.Bytes
			}
		}
		return bytes
	}
	for i := 1; i < n; i++ {
		best := i * forward / n
		for d := range forward / (3 * n) {
			for _, cut := range []int{i*forward/n - d, i*forward/n + d} {
				if crossing(cut) < crossing(best) {
					best = cut
				}
			}
		}
		cuts = append(cuts, best)
	}
	return cuts
}

// scheduleOf is a schedule for the record, with the waits of the values that are
// read set by set.
func scheduleOf(r *tensor.Record, set func(value int, w *tensor.Wait)) *tensor.Schedule {
	read := make([]bool, len(r.Values))
	forwardReads(r, func(value, _ int) { read[value] = true })
	s := &tensor.Schedule{}
	for _, op := range r.Ops {
		if !op.Back {
			s.Waits = append(s.Waits, tensor.Wait{Op: op.Name})
		}
	}
	for v, value := range r.Values {
		if read[v] {
			set(v, &s.Waits[r.Ops[value.Op].Node])
		}
	}
	return s
}
