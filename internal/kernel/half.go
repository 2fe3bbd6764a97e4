package kernel

import (
	"math"

	"github.com/headroom-go/headroom/device"
)

// Conversions between float32 and the 16-bit types. Rounding is to nearest,
// ties to even. NaN stays NaN (a quiet one, with its sign and the leading bits
// of its payload), what is too great becomes infinite, and what is too small
// a subnormal number or zero.

// widen sets dst to the numbers whose bits are in src.
func widen(t device.DType, dst []float32, src []uint16) {
	if t == device.BFloat16 {
		vecFromBFloat16(dst, src[:len(dst)])
	} else {
		vecFromFloat16(dst, src[:len(dst)])
	}
}

// narrow sets dst to the bits of src, rounded.
func narrow(t device.DType, dst []uint16, src []float32) {
	if t == device.BFloat16 {
		vecToBFloat16(dst, src[:len(dst)])
	} else {
		vecToFloat16(dst, src[:len(dst)])
	}
}

func fromBFloat16Go(dst []float32, src []uint16) {
	for i, h := range src {
		dst[i] = math.Float32frombits(uint32(h) << 16)
	}
}

func toBFloat16Go(dst []uint16, src []float32) {
	for i, x := range src {
		b := math.Float32bits(x)
		if x != x {
			dst[i] = uint16(b>>16) | 0x40
			continue
		}
		dst[i] = uint16((b + 0x7fff + b>>16&1) >> 16)
	}
}

// denormScale is 2¹¹², by which the exponents of float32 and float16 are apart.
const denormScale = 1 << 112

func fromFloat16Go(dst []float32, src []uint16) {
	for i, h := range src {
		sign, rest := uint32(h)&0x8000<<16, uint32(h)&0x7fff
		if rest >= 0x7c00 { // infinite or NaN
			b := sign | 0x7f800000 | rest&0x3ff<<13
			if rest > 0x7c00 {
				b |= 0x400000
			}
			dst[i] = math.Float32frombits(b)
			continue
		}
		// A subnormal number of float16, moved to the place of its bits in
		// float32, is one there, too: the product is exact.
		x := math.Float32frombits(rest<<13) * denormScale
		dst[i] = math.Float32frombits(sign | math.Float32bits(x))
	}
}

func toFloat16Go(dst []uint16, src []float32) {
	for i, x := range src {
		dst[i] = toFloat16(x)
	}
}

func toFloat16(x float32) uint16 {
	b := math.Float32bits(x)
	sign, rest := uint16(b>>16&0x8000), b&0x7fffffff
	switch {
	case rest > 0x7f800000:
		return sign | 0x7e00 | uint16(rest>>13&0x3ff)
	case rest >= 0x477ff000: // 65520 and more round to infinity
		return sign | 0x7c00
	case rest < 0x38800000: // under 2⁻¹⁴: adding ½ leaves a multiple of 2⁻²⁴ in the lowest bits
		sum := math.Float32frombits(rest) + 0.5
		return sign | uint16(math.Float32bits(sum)-math.Float32bits(0.5))
	}
	rest += 0xfff + rest>>13&1 - (127-15)<<23
	return sign | uint16(rest>>13)
}
