package dist

import (
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/kernel"
)

// accumulator combines elements of several sources, some of each at a time.
type accumulator struct {
	floats, moreFloats [chunk]float32
	ints, moreInts     [chunk]int32
}

// chunk is so many elements that those of one stay in the processor's cache.
const chunk = 4096

// combine puts into dst, buffer after buffer, what comes from all sources, in
// their order.
func (a *accumulator) combine(op Op, dst []Buf, from []source) error {
	for _, d := range dst {
		for lo := 0; lo < d.Len; lo += chunk {
			part := d.Range(lo, min(lo+chunk, d.Len))
			var err error
			if d.Type == device.Int32 {
				err = a.combineInts(op, part, from)
			} else {
				err = a.combineFloats(op, part, from)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *accumulator) combineInts(op Op, d Buf, from []source) error {
	sum, x := a.ints[:d.Len], a.moreInts[:d.Len]
	if err := from[0].ints(sum); err != nil {
		return err
	}
	for _, s := range from[1:] {
		if err := s.ints(x); err != nil {
			return err
		}
		add(op, sum, x)
	}
	copy(device.Int32s(d.Ptr, d.Len), sum)
	return nil
}

func (a *accumulator) combineFloats(op Op, d Buf, from []source) error {
	sum, x := a.floats[:d.Len], a.moreFloats[:d.Len]
	if err := from[0].floats(d.Type, sum); err != nil {
		return err
	}
	for _, s := range from[1:] {
		if err := s.floats(d.Type, x); err != nil {
			return err
		}
		add(op, sum, x)
	}
	if op == Mean {
		n := float32(len(from))
		for i := range sum {
			sum[i] /= n
		}
	}
	if d.Type == device.Float32 {
		copy(device.Float32s(d.Ptr, d.Len), sum)
	} else {
		kernel.Narrow(d.Type, device.Uint16s(d.Ptr, d.Len), sum)
	}
	return nil
}

// add combines x into sum.
func add[T float32 | int32](op Op, sum, x []T) {
	x = x[:len(sum)]
	if op == Max {
		for i, v := range x {
			sum[i] = max(sum[i], v)
		}
		return
	}
	for i, v := range x {
		sum[i] += v
	}
}
