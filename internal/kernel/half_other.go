//go:build !amd64

package kernel

func vecFromBFloat16(dst []float32, src []uint16) { fromBFloat16Go(dst, src) }
func vecToBFloat16(dst []uint16, src []float32)   { toBFloat16Go(dst, src) }
func vecFromFloat16(dst []float32, src []uint16)  { fromFloat16Go(dst, src) }
func vecToFloat16(dst []uint16, src []float32)    { toFloat16Go(dst, src) }
