package kernel

// The vector forms convert whole blocks of 16 (AVX-512) or 8 elements; what is
// left over is converted by the plain ones.

// blocks is the number of elements of n that lie in whole blocks.
func (s simd) blocks(n int) int {
	switch s {
	case avx512:
		return n &^ 15
	case avx2:
		return n &^ 7
	}
	return 0
}

func vecFromBFloat16(dst []float32, src []uint16) {
	n := vectors.blocks(len(dst))
	switch vectors {
	case avx512:
		fromBFloat16AVX512(dst[:n], src)
	case avx2:
		fromBFloat16AVX2(dst[:n], src)
	}
	fromBFloat16Go(dst[n:], src[n:])
}

func vecToBFloat16(dst []uint16, src []float32) {
	n := vectors.blocks(len(dst))
	switch vectors {
	case avx512:
		toBFloat16AVX512(dst[:n], src)
	case avx2:
		toBFloat16AVX2(dst[:n], src)
	}
	toBFloat16Go(dst[n:], src[n:])
}

func vecFromFloat16(dst []float32, src []uint16) {
	n := 0
	if vectors == avx512 {
		n = avx512.blocks(len(dst))
		fromFloat16AVX512(dst[:n], src)
	}
	fromFloat16Go(dst[n:], src[n:])
}

func vecToFloat16(dst []uint16, src []float32) {
	n := 0
	if vectors == avx512 {
		n = avx512.blocks(len(dst))
		toFloat16AVX512(dst[:n], src)
	}
	toFloat16Go(dst[n:], src[n:])
}
