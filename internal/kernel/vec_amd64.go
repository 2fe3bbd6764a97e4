package kernel

import "golang.org/x/sys/cpu"

//go:generate go -C gen run ./vec -out ../vec_amd64.s -stubs ../vec_stub_amd64.go -pkg kernel

// simd is an instruction set of the vector layer.
type simd int

const (
	plainGo simd = iota
	avx2         // with FMA
	avx512       // the foundation, with BMI2
)

// bestSIMD is the best instruction set that this processor has.
func bestSIMD() simd {
	switch {
	case cpu.X86.HasAVX512F && cpu.X86.HasBMI2:
		return avx512
	case cpu.X86.HasAVX2 && cpu.X86.HasFMA:
		return avx2
	}
	return plainGo
}

// vectors is the instruction set in use. Only tests change it.
var vectors = bestSIMD()

func vecFill(dst []float32, value float32) {
	switch vectors {
	case avx512:
		fillAVX512(dst, value)
	case avx2:
		fillAVX2(dst, value)
	default:
		fillGo(dst, value)
	}
}

func vecAdd(dst, a, b []float32) {
	a, b = a[:len(dst)], b[:len(dst)]
	switch vectors {
	case avx512:
		addAVX512(dst, a, b)
	case avx2:
		addAVX2(dst, a, b)
	default:
		addGo(dst, a, b)
	}
}

func vecSub(dst, a, b []float32) {
	a, b = a[:len(dst)], b[:len(dst)]
	switch vectors {
	case avx512:
		subAVX512(dst, a, b)
	case avx2:
		subAVX2(dst, a, b)
	default:
		subGo(dst, a, b)
	}
}

func vecMul(dst, a, b []float32) {
	a, b = a[:len(dst)], b[:len(dst)]
	switch vectors {
	case avx512:
		mulAVX512(dst, a, b)
	case avx2:
		mulAVX2(dst, a, b)
	default:
		mulGo(dst, a, b)
	}
}

func vecDiv(dst, a, b []float32) {
	a, b = a[:len(dst)], b[:len(dst)]
	switch vectors {
	case avx512:
		divAVX512(dst, a, b)
	case avx2:
		divAVX2(dst, a, b)
	default:
		divGo(dst, a, b)
	}
}

func vecScale(dst, src []float32, factor float32) {
	src = src[:len(dst)]
	switch vectors {
	case avx512:
		scaleAVX512(dst, src, factor)
	case avx2:
		scaleAVX2(dst, src, factor)
	default:
		scaleGo(dst, src, factor)
	}
}

func vecAxpy(dst, src []float32, factor float32) {
	src = src[:len(dst)]
	switch vectors {
	case avx512:
		axpyAVX512(dst, src, factor)
	case avx2:
		axpyAVX2(dst, src, factor)
	default:
		axpyGo(dst, src, factor)
	}
}

func vecRelu(dst, src []float32) {
	src = src[:len(dst)]
	switch vectors {
	case avx512:
		reluAVX512(dst, src)
	case avx2:
		reluAVX2(dst, src)
	default:
		reluGo(dst, src)
	}
}

func vecReluGrad(dst, dy, x []float32) {
	dy, x = dy[:len(dst)], x[:len(dst)]
	switch vectors {
	case avx512:
		reluGradAVX512(dst, dy, x)
	case avx2:
		reluGradAVX2(dst, dy, x)
	default:
		reluGradGo(dst, dy, x)
	}
}

func vecSqrt(dst, src []float32) {
	src = src[:len(dst)]
	switch vectors {
	case avx512:
		sqrtAVX512(dst, src)
	case avx2:
		sqrtAVX2(dst, src)
	default:
		sqrtGo(dst, src)
	}
}

func vecTanh(dst, src []float32) {
	src = src[:len(dst)]
	switch vectors {
	case avx512:
		tanhAVX512(dst, src)
	case avx2:
		tanhAVX2(dst, src)
	default:
		tanhGo(dst, src)
	}
}

func vecTanhGrad(dst, dy, x []float32) {
	dy, x = dy[:len(dst)], x[:len(dst)]
	switch vectors {
	case avx512:
		tanhGradAVX512(dst, dy, x)
	case avx2:
		tanhGradAVX2(dst, dy, x)
	default:
		tanhGradGo(dst, dy, x)
	}
}

func vecGelu(dst, src []float32) {
	src = src[:len(dst)]
	switch vectors {
	case avx512:
		geluAVX512(dst, src)
	case avx2:
		geluAVX2(dst, src)
	default:
		geluGo(dst, src)
	}
}

func vecGeluGrad(dst, dy, x []float32) {
	dy, x = dy[:len(dst)], x[:len(dst)]
	switch vectors {
	case avx512:
		geluGradAVX512(dst, dy, x)
	case avx2:
		geluGradAVX2(dst, dy, x)
	default:
		geluGradGo(dst, dy, x)
	}
}

func vecSoftmaxGrad(dst, dy, y []float32, dot float32) {
	dy, y = dy[:len(dst)], y[:len(dst)]
	switch vectors {
	case avx512:
		softmaxGradAVX512(dst, dy, y, dot)
	case avx2:
		softmaxGradAVX2(dst, dy, y, dot)
	default:
		softmaxGradGo(dst, dy, y, dot)
	}
}

func vecNorm(dst, x, gamma, beta []float32, mean, rstd float32) {
	x, gamma, beta = x[:len(dst)], gamma[:len(dst)], beta[:len(dst)]
	switch vectors {
	case avx512:
		normAVX512(dst, x, gamma, beta, mean, rstd)
	case avx2:
		normAVX2(dst, x, gamma, beta, mean, rstd)
	default:
		normGo(dst, x, gamma, beta, mean, rstd)
	}
}

func vecNormGrad(dst, dy, x, gamma []float32, mean, rstd, meanG, meanGX float32) {
	dy, x, gamma = dy[:len(dst)], x[:len(dst)], gamma[:len(dst)]
	switch vectors {
	case avx512:
		normGradAVX512(dst, dy, x, gamma, mean, rstd, meanG, meanGX)
	case avx2:
		normGradAVX2(dst, dy, x, gamma, mean, rstd, meanG, meanGX)
	default:
		normGradGo(dst, dy, x, gamma, mean, rstd, meanG, meanGX)
	}
}

func addNormParams(dgamma, dbeta, dy, x []float32, mean, rstd float32) {
	dbeta, dy, x = dbeta[:len(dgamma)], dy[:len(dgamma)], x[:len(dgamma)]
	switch vectors {
	case avx512:
		normParamsAVX512(dgamma, dbeta, dy, x, mean, rstd)
	case avx2:
		normParamsAVX2(dgamma, dbeta, dy, x, mean, rstd)
	default:
		normParamsGo(dgamma, dbeta, dy, x, mean, rstd)
	}
}

func vecAdamW(w, g, m, v []float32, f *adamFactors) {
	g, m, v = g[:len(w)], m[:len(w)], v[:len(w)]
	switch vectors {
	case avx512:
		adamWAVX512(w, g, m, v, &f.grad)
	case avx2:
		adamWAVX2(w, g, m, v, &f.grad)
	default:
		adamWGo(w, g, m, v, f)
	}
}

func expShift(dst, src []float32, shift float32) float32 {
	src = src[:len(dst)]
	switch vectors {
	case avx512:
		return expShiftAVX512(dst, src, shift)
	case avx2:
		return expShiftAVX2(dst, src, shift)
	}
	return expShiftGo(dst, src, shift)
}

func maxOf(src []float32) float32 {
	switch vectors {
	case avx512:
		return maxOfAVX512(src)
	case avx2:
		return maxOfAVX2(src)
	}
	return maxOfGo(src)
}

func sumOf(src []float32) float32 {
	switch vectors {
	case avx512:
		return sumOfAVX512(src)
	case avx2:
		return sumOfAVX2(src)
	}
	return sumOfGo(src)
}

func dotOf(a, b []float32) float32 {
	b = b[:len(a)]
	switch vectors {
	case avx512:
		return dotAVX512(a, b)
	case avx2:
		return dotAVX2(a, b)
	}
	return dotGo(a, b)
}

func squaresOf(src []float32, center float32) float32 {
	switch vectors {
	case avx512:
		return squaresAVX512(src, center)
	case avx2:
		return squaresAVX2(src, center)
	}
	return squaresGo(src, center)
}

func normSumsOf(dy, x, gamma []float32, mean, rstd float32) (sumG, sumGX float32) {
	x, gamma = x[:len(dy)], gamma[:len(dy)]
	switch vectors {
	case avx512:
		return normSumsAVX512(dy, x, gamma, mean, rstd)
	case avx2:
		return normSumsAVX2(dy, x, gamma, mean, rstd)
	}
	return normSumsGo(dy, x, gamma, mean, rstd)
}

func vecTranspose(dst []float32, ldd int, src []float32, lds int) {
	_, _ = dst[(tile-1)*ldd+tile-1], src[(tile-1)*lds+tile-1]
	switch vectors {
	case avx512:
		transpose16AVX512(&dst[0], ldd, &src[0], lds, 1)
	case avx2:
		transpose8AVX2(&dst[0], ldd, &src[0], lds, 2)
		transpose8AVX2(&dst[8], ldd, &src[8*lds], lds, 2)
	default:
		transposeGo(dst, ldd, src, lds)
	}
}
