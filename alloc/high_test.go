package alloc

import (
	"testing"

	"github.com/headroom-go/headroom/trace"
)

// TestTakeHigh takes highs between which blocks come and go.
func TestTakeHigh(t *testing.T) {
	mem, stream := open(t, 64<<20, Options{})
	for _, size := range []uint64{5 << 20, 2 << 20} {
		b, err := mem.Alloc(size, trace.Gradient, stream)
		if err != nil {
			t.Fatal(err)
		}
		b.Free()
		if h := mem.TakeHigh(); h.Live != size || h.ByPurpose[trace.Gradient] != size || h.Reserved < size {
			t.Errorf("after %d bytes came and went: %+v", size, h)
		}
		if h := mem.TakeHigh(); h.Live != 0 {
			t.Errorf("nothing is live, and nothing was since: %+v", h)
		}
	}
}
