package nn

import (
	"fmt"

	"github.com/headroom-go/headroom/tensor"
)

// Precision is how a training computes, and what it does when numbers
// overflow. A step runs the loss under Runtime.Autocast(Type), Backward from
// Seed, and ClipGradNorm; it is left out where that norm is not finite. Update
// gives the Precision of the next step.
//
// Parameters and their gradients stay float32 throughout. Float16 has little
// range, so that its losses are scaled; where steps overflow in spite of that,
// Update falls back to BFloat16, and from there to Float32. It is a value: all
// of its state.
type Precision struct {
	Type    tensor.DType `json:"type"` // BFloat16, Float16, or Float32 for no autocast
	Scaler  LossScaler   `json:"scaler"`
	Limit   int          `json:"limit"`   // overflows in a row after which precision goes up
	Skipped int          `json:"skipped"` // overflows in a row so far
}

// PrecisionChange is what Update did beside counting.
type PrecisionChange struct {
	From, To tensor.DType // the same where precision stayed
	Reason   string       // why it went up
}

// Changed says whether precision went up.
func (c PrecisionChange) Changed() bool { return c.From != c.To }

// NewPrecision gives one that computes in d and goes up after 20 overflows in
// a row: more than take the first scale, 2¹⁶, under 1.
func NewPrecision(d tensor.DType) Precision {
	return Precision{Type: d, Scaler: NewLossScaler(), Limit: 20}
}

// Seed is what to begin backward with: the loss scale for Float16, which alone
// needs one, otherwise 1.
func (p Precision) Seed() float32 {
	if p.Type == tensor.Float16 {
		return float32(p.Scaler.Scale)
	}
	return 1
}

// ClipGradNorm is the function of that name for gradients of the loss times Seed.
func (p Precision) ClipGradNorm(params []*Parameter, limit float32) (scale, norm *tensor.Tensor) {
	return p.Clip(limit, func(limit float32) (scale, norm *tensor.Tensor) { return ClipGradNorm(params, limit) })
}

// Clip is ClipGradNorm for those who compute the norm of gradients, as they are,
// in their own way: of is given the limit that holds for them.
func (p Precision) Clip(limit float32, of func(limit float32) (scale, norm *tensor.Tensor)) (scale, norm *tensor.Tensor) {
	if p.Type == tensor.Float16 {
		return p.Scaler.clip(limit, of)
	}
	return of(limit)
}

// Validate says what is wrong with p, as read from a file, if anything.
func (p Precision) Validate() error {
	if p.Type > tensor.Float16 || !p.Type.Float() || p.Limit < 1 || p.Skipped < 0 || p.Type != tensor.Float32 && p.Skipped >= p.Limit {
		return fmt.Errorf("precision of type %d with %d of %d overflows: want a floating-point type, a limit of 1 or more, and fewer overflows than that",
			p.Type, p.Skipped, p.Limit)
	}
	return p.Scaler.Validate()
}

// Update gives the Precision of the next step; overflow says whether the norm
// of this one was infinite or not a number. Precision goes up after Limit
// overflows in a row, and from Float16 when the scale has come under 1, where
// it no longer protects what is small. At Float32 it can go no further.
func (p Precision) Update(overflow bool) (Precision, PrecisionChange) {
	c := PrecisionChange{From: p.Type, To: p.Type}
	if p.Type == tensor.Float16 {
		p.Scaler = p.Scaler.Update(overflow)
	}
	if !overflow {
		p.Skipped = 0
		return p, c
	}
	p.Skipped++
	switch {
	case p.Type == tensor.Float32:
		return p, c
	case p.Type == tensor.Float16 && p.Scaler.Scale < 1:
		c.Reason = fmt.Sprintf("the loss scale fell to %g", p.Scaler.Scale)
	case p.Skipped >= p.Limit:
		c.Reason = fmt.Sprintf("%d steps in a row overflowed", p.Skipped)
	default:
		return p, c
	}
	p.Skipped, p.Type = 0, above(p.Type)
	c.To = p.Type
	return p, c
}

// above is the type that a training falls back to.
func above(d tensor.DType) tensor.DType {
	if d == tensor.Float16 {
		return tensor.BFloat16
	}
	return tensor.Float32
}
