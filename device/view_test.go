package device

import (
	"math"
	"slices"
	"testing"
)

// TestViews uploads numbers and reads them through every view.
func TestViews(t *testing.T) {
	d, s := openStream(t, 2)
	p, err := d.Alloc(1 << 10)
	if err != nil {
		t.Fatal(err)
	}
	floats, got := []float32{1.5, -2, 0, 7}, make([]int32, 4)
	s.Upload(p, BytesOf(floats))
	s.Download(BytesOf(got), p)
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(Float32s(p, 4), floats) || !slices.Equal(Int32s(p, 4), got) {
		t.Errorf("float32 %v, int32 %v; want %v and %v", Float32s(p, 4), Int32s(p, 4), floats, got)
	}
	for i, x := range floats {
		if uint32(got[i]) != math.Float32bits(x) {
			t.Errorf("number %d has the bits %#x, want those of %g", i, got[i], x)
		}
	}
	if last := Bytes(p, 16)[15]; last != 0x40 {
		t.Errorf("last byte %#x", last)
	}
	if len(Bytes(0, 0)) != 0 || len(BytesOf[float32](nil)) != 0 || len(BytesOf([]int32{1, 2})) != 8 {
		t.Error("wrong lengths")
	}
	if d.Workers().N() != 2 {
		t.Errorf("%d workers", d.Workers().N())
	}
}
