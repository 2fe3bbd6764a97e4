package kernel

import "github.com/headroom-go/headroom/device"

// Widen gives in dst the numbers of type t, BFloat16 or Float16, whose bits are
// src, which is as long.
func Widen(t device.DType, dst []float32, src []uint16) { widen(t, dst, src) }

// Narrow gives in dst the bits of src, as long, rounded to t, BFloat16 or
// Float16.
func Narrow(t device.DType, dst []uint16, src []float32) { narrow(t, dst, src) }
