package nn

import (
	"fmt"
	"math"

	"github.com/headroom-go/headroom/tensor"
)

// LossScaler is the factor of the loss that keeps small gradients in the range
// of 16-bit numbers (Micikevicius et al., "Mixed Precision Training", 2018).
// It is lowered after every step whose gradients overflowed, which the caller
// leaves out, and raised after Interval good steps in a row. It is a value:
// all of its state, with the JSON names of PyTorch's GradScaler.
type LossScaler struct {
	Scale    float64 `json:"scale"`
	Growth   float64 `json:"growth_factor"`
	Backoff  float64 `json:"backoff_factor"`
	Interval int     `json:"growth_interval"`
	Good     int     `json:"_growth_tracker"` // steps without overflow since Scale changed
}

// NewLossScaler gives a scaler at 2¹⁶ that doubles after 2000 good steps and
// halves on an overflow.
func NewLossScaler() LossScaler {
	return LossScaler{Scale: 1 << 16, Growth: 2, Backoff: 0.5, Interval: 2000}
}

// Update gives the scaler of the next step: overflow says whether a gradient
// of this one was infinite or not a number. The scale stays where growing
// would leave the range of float32.
func (s LossScaler) Update(overflow bool) LossScaler {
	if overflow {
		s.Scale, s.Good = s.Scale*s.Backoff, 0
		return s
	}
	s.Good++
	if s.Good < s.Interval {
		return s
	}
	s.Good = 0
	if grown := s.Scale * s.Growth; grown <= math.MaxFloat32 {
		s.Scale = grown
	}
	return s
}

// ClipGradNorm is the function of that name for gradients of the scaled loss:
// norm is that of the unscaled gradients, and the factor takes the scale out of
// them, too. The norm is not finite where a gradient overflowed.
func (s LossScaler) ClipGradNorm(params []*Parameter, limit float32) (scale, norm *tensor.Tensor) {
	return s.clip(limit, func(limit float32) (scale, norm *tensor.Tensor) { return ClipGradNorm(params, limit) })
}

// clip is ClipGradNorm, where of does so for gradients as they are.
func (s LossScaler) clip(limit float32, of func(limit float32) (scale, norm *tensor.Tensor)) (scale, norm *tensor.Tensor) {
	raw, scaled := of(limit * float32(s.Scale))
	defer raw.Release()
	defer scaled.Release()
	inverse := float32(1 / s.Scale)
	return tensor.Scale(raw, inverse), tensor.Scale(scaled, inverse)
}

// Validate says what is wrong with s, as read from a file, if anything.
func (s LossScaler) Validate() error {
	if !(s.Scale > 0 && s.Scale <= math.MaxFloat32) || !(s.Growth >= 1) || !(s.Backoff > 0 && s.Backoff < 1) || s.Interval < 1 || s.Good < 0 || s.Good >= s.Interval {
		return fmt.Errorf("loss scale %+v: the scale must be over 0 and finite, growth at least 1, backoff between 0 and 1, the interval at least 1, and fewer good steps counted than that", s)
	}
	return nil
}
