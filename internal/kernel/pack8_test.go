package kernel

import (
	"bytes"
	"math"
	"testing"

	"github.com/headroom-go/headroom/device"
)

// TestPack8 packs numbers of every magnitude and holds what is read against the
// stated bound, and what is packed, on a GPU too, against the host's bytes.
func TestPack8(t *testing.T) {
	r := seeded(t)
	for i := range trials(200) {
		n := 1 + r.IntN(300)
		if i%20 == 0 {
			n = 20_000 + r.IntN(5000)
		}
		x := randoms(r, n)
		for k := range x {
			x[k] *= float32(math.Pow(2, float64(r.IntN(8)-4)))
			if i%3 == 1 {
				x[k] *= float32(math.Pow(2, float64(r.IntN(240)-140)))
			}
		}
		if i%5 == 0 {
			x[r.IntN(n)] = []float32{float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), 0, math.MaxFloat32}[r.IntN(5)]
		}
		packed, y := throughPack8(t, x)
		for from := 0; from < n; from += pack8Block {
			to := min(n, from+pack8Block)
			checkPack8(t, x[from:to], y[from:to])
		}
		comparePacked(t, packed, x)
	}
}

// comparePacked compares packed numbers with what the host packs block by block.
func comparePacked(t *testing.T, packed, x []float32) {
	t.Helper()
	scaled := blocks(len(x), pack8Block)
	data := device.BytesOf(packed)[4*scaled:]
	for b := range scaled {
		from, to := b*pack8Block, min(len(x), (b+1)*pack8Block)
		want := make([]byte, to-from)
		scale := pack8(want, x[from:to])
		if got := packed[b]; !(got == scale || got != got && scale != scale) || !bytes.Equal(data[from:to], want) {
			t.Fatalf("block %d of %v: scale %v and %v, want %v and %v", b, x[from:to], got, data[from:to], scale, want)
		}
	}
}

func throughPack8(t *testing.T, x []float32) (packed, y []float32) {
	t.Helper()
	n := len(x)
	c := &testCase{t: t}
	from, to := c.input(x), c.output((Pack8Bytes(n)+3)/4)
	c.run(func(s device.Stream) { Pack8(s, n, to.ptr(), from.ptr()) })
	if want := uint64(4*n + Pack8Bytes(n)); c.launch.Bytes != want {
		t.Fatalf("%d bytes of traffic, want %d", c.launch.Bytes, want)
	}
	c = &testCase{t: t}
	src, back := c.input(to.data), c.output(n)
	c.run(func(s device.Stream) { Unpack8(s, n, back.ptr(), src.ptr()) })
	return to.data, back.data
}

// checkPack8 compares a block with the numbers that were packed.
func checkPack8(t *testing.T, x, y []float32) {
	t.Helper()
	var most float64
	for _, v := range x {
		most = max(most, math.Abs(float64(v)))
	}
	for i, v := range x {
		switch got := float64(y[i]); {
		case math.IsNaN(most) || math.IsInf(most, 0):
			if !math.IsNaN(got) {
				t.Fatalf("%v in a block with %v is read as %v", v, most, got)
			}
		case !(math.Abs(got-float64(v)) <= most/254*(1+0x1p-15)+0x1p-142):
			t.Fatalf("%v in a block up to %v is read as %v", v, most, got)
		}
	}
}
