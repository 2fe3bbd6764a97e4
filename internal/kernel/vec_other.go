//go:build !amd64

package kernel

func vecFill(dst []float32, value float32)             { fillGo(dst, value) }
func vecAdd(dst, a, b []float32)                       { addGo(dst, a, b) }
func vecSub(dst, a, b []float32)                       { subGo(dst, a, b) }
func vecMul(dst, a, b []float32)                       { mulGo(dst, a, b) }
func vecDiv(dst, a, b []float32)                       { divGo(dst, a, b) }
func vecScale(dst, src []float32, factor float32)      { scaleGo(dst, src, factor) }
func vecAxpy(dst, src []float32, factor float32)       { axpyGo(dst, src, factor) }
func vecRelu(dst, src []float32)                       { reluGo(dst, src) }
func vecReluGrad(dst, dy, x []float32)                 { reluGradGo(dst, dy, x) }
func vecTanh(dst, src []float32)                       { tanhGo(dst, src) }
func vecTanhGrad(dst, dy, x []float32)                 { tanhGradGo(dst, dy, x) }
func vecGelu(dst, src []float32)                       { geluGo(dst, src) }
func vecGeluGrad(dst, dy, x []float32)                 { geluGradGo(dst, dy, x) }
func vecSoftmaxGrad(dst, dy, y []float32, dot float32) { softmaxGradGo(dst, dy, y, dot) }
func vecNorm(dst, x, gamma, beta []float32, mean, rstd float32) {
	normGo(dst, x, gamma, beta, mean, rstd)
}
func vecNormGrad(dst, dy, x, gamma []float32, mean, rstd, meanG, meanGX float32) {
	normGradGo(dst, dy, x, gamma, mean, rstd, meanG, meanGX)
}
func addNormParams(dgamma, dbeta, dy, x []float32, mean, rstd float32) {
	normParamsGo(dgamma, dbeta, dy, x, mean, rstd)
}
func vecAdamW(w, g, m, v []float32, f *adamFactors)      { adamWGo(w, g, m, v, f) }
func expShift(dst, src []float32, shift float32) float32 { return expShiftGo(dst, src, shift) }
func maxOf(src []float32) float32                        { return maxOfGo(src) }
func sumOf(src []float32) float32                        { return sumOfGo(src) }
func dotOf(a, b []float32) float32                       { return dotGo(a, b) }
func squaresOf(src []float32, center float32) float32    { return squaresGo(src, center) }
func normSumsOf(dy, x, gamma []float32, mean, rstd float32) (sumG, sumGX float32) {
	return normSumsGo(dy, x, gamma, mean, rstd)
}

func vecTranspose(dst []float32, ldd int, src []float32, lds int) { transposeGo(dst, ldd, src, lds) }
func vecSqrt(dst, src []float32)                                  { sqrtGo(dst, src) }
