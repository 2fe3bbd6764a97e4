package dist_test

import (
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
)

// TestParts: parts tile a buffer, begin at multiples of its unit, and are none longer
// than the first.
func TestParts(t *testing.T) {
	for _, n := range []int{0, 1, 10, 64, 96, 1000} {
		for _, unit := range []int{0, 1, 6} {
			for size := 1; size < 7; size++ {
				b, at := dist.Buf{Len: n, Type: device.Float32, Unit: unit}, 0
				for r := range size {
					p := b.Part(size, r)
					if int(p.Ptr) != 4*at || p.Len > 0 && at%max(unit, 1) != 0 || p.Len > b.Part(size, 0).Len {
						t.Errorf("%d elements in units of %d: part %d of %d is %+v, want one from %d on", n, unit, r, size, p, at)
					}
					at += p.Len
				}
				if at != n || unit == 1 && n%size == 0 && b.Part(size, size-1).Len != n/size {
					t.Errorf("%d elements in units of %d: the %d parts hold %d, the last one %d", n, unit, size, at, b.Part(size, size-1).Len)
				}
			}
		}
	}
}
