package kernel

import (
	"math"
	"slices"
	"testing"

	"github.com/headroom-go/headroom/device"
)

// halfTypes are the 16-bit types with the bits of their exponent and fraction.
var halfTypes = []struct {
	t                  device.DType
	exponent, fraction int
	infinity           uint16
}{{device.BFloat16, 8, 7, 0x7f80}, {device.Float16, 5, 10, 0x7c00}}

// halfValue is the number that bits stand for, by the definition of IEEE 754.
func halfValue(bits uint16, exponent, fraction int) float64 {
	bias := 1<<(exponent-1) - 1
	e, f := int(bits>>fraction)&(1<<exponent-1), float64(bits&(1<<fraction-1))
	sign := 1 - 2*float64(bits>>15)
	switch {
	case e == 1<<exponent-1 && f != 0:
		return math.NaN()
	case e == 1<<exponent-1:
		return sign * math.Inf(1)
	case e == 0:
		return sign * math.Ldexp(f, 1-bias-fraction)
	}
	return sign * math.Ldexp(1+f/float64(int(1)<<fraction), e-bias)
}

// TestWiden converts all patterns of both types to float32 and back.
func TestWiden(t *testing.T) { eachSIMD(t, testWiden) }

func testWiden(t *testing.T) {
	var bits, again [1 << 16]uint16
	var wide [1 << 16]float32
	for i := range bits {
		bits[i] = uint16(i)
	}
	for _, h := range halfTypes {
		widen(h.t, wide[:], bits[:])
		narrow(h.t, again[:], wide[:])
		for i, x := range wide {
			want := halfValue(bits[i], h.exponent, h.fraction)
			if float64(x) != want && !(x != x && want != want) || math.Signbit(float64(x)) != (i >= 1<<15) {
				t.Fatalf("%s: %#04x is %v, want %v", h.t, i, x, want)
			}
			quiet := bits[i]
			if x != x {
				quiet |= 1 << (h.fraction - 1)
			}
			if again[i] != quiet {
				t.Fatalf("%s: %#04x became %v and then %#04x", h.t, i, x, again[i])
			}
		}
	}
}

// TestNarrow rounds, for every two neighbouring numbers of a type, the float32
// half way between them and those next to that: to the even one, down and up.
// Past the greatest number lies infinity.
func TestNarrow(t *testing.T) { eachSIMD(t, testNarrow) }

func testNarrow(t *testing.T) {
	for _, h := range halfTypes {
		var from []float32
		var want []uint16
		for bits := uint16(0); bits < h.infinity; bits++ {
			low, high := halfValue(bits, h.exponent, h.fraction), halfValue(bits+1, h.exponent, h.fraction)
			if bits+1 == h.infinity { // where the next number would be
				high = 2*low - halfValue(bits-1, h.exponent, h.fraction)
			}
			middle := float32((low + high) / 2)
			if float64(middle) != (low+high)/2 {
				continue // bfloat16's least subnormal numbers have no float32 between them; none are
			}
			even := bits + bits&1
			for i, x := range []float32{math.Nextafter32(middle, 0), middle, math.Nextafter32(middle, float32(math.Inf(1)))} {
				to := [...]uint16{bits, even, bits + 1}[i]
				from, want = append(from, x, -x), append(want, to, to|0x8000)
			}
		}
		from, want = append(from, math.MaxFloat32, float32(math.Inf(-1))), append(want, h.infinity, h.infinity|0x8000)
		if len(from) < 6*30000 {
			t.Fatalf("%s: only %d numbers", h.t, len(from))
		}
		got := make([]uint16, len(from))
		narrow(h.t, got, from)
		for i, x := range from {
			if got[i] != want[i] {
				t.Fatalf("%s: %v (%#08x) rounds to %#04x, want %#04x", h.t, x, math.Float32bits(x), got[i], want[i])
			}
		}
	}
}

// TestNarrowNaN keeps NaN NaN whatever bits of it are cut off.
func TestNarrowNaN(t *testing.T) { eachSIMD(t, testNarrowNaN) }

func testNarrowNaN(t *testing.T) {
	from := make([]float32, 0, 64)
	for _, bits := range []uint32{0x7f800001, 0xff800001, 0x7fffffff, 0x7fc00000, 0xffffffff, 0x7f801fff, 0x7fa00000} {
		from = append(from, math.Float32frombits(bits))
	}
	from = slices.Repeat(from, 16)
	for _, h := range halfTypes {
		got := make([]uint16, len(from))
		narrow(h.t, got, from)
		for i, b := range got {
			if b&^0x8000 <= h.infinity || b>>15 != uint16(math.Float32bits(from[i])>>31) {
				t.Errorf("%s: NaN %#08x became %#04x", h.t, math.Float32bits(from[i]), b)
			}
		}
	}
}

// TestHalfLengths converts slices of all small lengths, and nothing beside them.
func TestHalfLengths(t *testing.T) { eachSIMD(t, testHalfLengths) }

func testHalfLengths(t *testing.T) {
	r := seeded(t)
	for _, h := range halfTypes {
		for n := range 70 {
			src, dst := randoms(r, n+5), make([]uint16, n+5)
			narrow(h.t, dst[:n], src)
			back := make([]float32, n+5)
			widen(h.t, back[:n], dst)
			for i, x := range back {
				if i < n && math.Abs(float64(x-src[i])) > 0.004*math.Abs(float64(src[i]))+1e-7 || i >= n && (x != 0 || dst[i] != 0) {
					t.Fatalf("%s: element %d of %d is %v (%#04x), was %v", h.t, i, n, x, dst[i], src[i])
				}
			}
		}
	}
}

// BenchmarkHalf converts 4096 numbers, and multiplies matrices of bfloat16.
func BenchmarkHalf(b *testing.B) {
	wide, bits := make([]float32, 4096), make([]uint16, 4096)
	for _, h := range halfTypes {
		b.Run("widen/"+h.t.String(), func(b *testing.B) {
			b.SetBytes(6 * 4096)
			for b.Loop() {
				widen(h.t, wide, bits)
			}
		})
		b.Run("narrow/"+h.t.String(), func(b *testing.B) {
			b.SetBytes(6 * 4096)
			for b.Loop() {
				narrow(h.t, bits, wide)
			}
		})
	}
	var mem benchMemory
	for _, t := range []device.DType{device.Float32, device.BFloat16} {
		of := func(n int) Array { return Array{mem.ptr(n).Ptr, t} }
		g := Gemm{M: 1024, N: 2304, K: 768, A: of(1024 * 768), LDA: 768, B: of(768 * 2304), LDB: 2304, C: of(1024 * 2304), LDC: 2304}
		benchFlops(b, "qkv/"+t.String(), func(s device.Stream) { MatMul(s, g) })
	}
}
