package placement

import "fmt"

// Validate checks that the plan is one for the buffers: it has an offset for
// each, no two buffers overlap in both time and memory, and Peak is true. It
// compares all pairs, in O(n²), and knows nothing of how plans are made. The
// error names the first buffers that are wrong.
func Validate(bs []Buffer, p Plan) error {
	if len(p.Offsets) != len(bs) {
		return fmt.Errorf("placement: the plan has %d offsets for %d buffers", len(p.Offsets), len(bs))
	}
	var peak uint64
	for i, a := range bs {
		from, to := p.Offsets[i], p.Offsets[i]+a.Size
		if to < from {
			return fmt.Errorf("placement: buffer %d of size %d at offset %d passes 2^64", i, a.Size, from)
		}
		peak = max(peak, to)
		for j, b := range bs[:i] {
			if a.Lower < b.Upper && b.Lower < a.Upper && from < p.Offsets[j]+b.Size && p.Offsets[j] < to && a.Size > 0 && b.Size > 0 {
				return fmt.Errorf("placement: buffers %d and %d overlap: time [%d, %d) and [%d, %d), memory [%d, %d) and [%d, %d)",
					j, i, b.Lower, b.Upper, a.Lower, a.Upper, p.Offsets[j], p.Offsets[j]+b.Size, from, to)
			}
		}
	}
	if peak != p.Peak {
		return fmt.Errorf("placement: the plan gives its peak as %d, but it is %d", p.Peak, peak)
	}
	if p.Bound > p.Peak {
		return fmt.Errorf("placement: the plan's peak of %d is below its bound of %d", p.Peak, p.Bound)
	}
	return nil
}
