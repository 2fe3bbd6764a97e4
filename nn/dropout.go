package nn

import "github.com/headroom-go/headroom/tensor"

// Dropout sets each element to 0 with probability P in training (Srivastava
// et al., 2014), and makes the others larger, so that the mean stays.
type Dropout struct {
	P float64

	mode *Mode
	line line // of ranks that have each some of the tokens
	place
}

// Dropout gives a layer that follows b's mode.
func (b *Builder) Dropout(name string, p float64) *Dropout {
	d := &Dropout{P: p, mode: b.Mode, place: b.place(name)}
	if b.ofTokens {
		d.line = b.line()
	}
	return d
}

// Parameters gives none.
func (d *Dropout) Parameters() []*Parameter { return nil }

// Forward is x itself outside training.
func (d *Dropout) Forward(x *tensor.Tensor) *tensor.Tensor {
	return d.call(d, x, func(x *tensor.Tensor) *tensor.Tensor { return tensor.DropoutPart(x, d.now(), d.line.part(x)) })
}

// now is the probability at the moment.
func (d *Dropout) now() float32 {
	if d.mode.Training {
		return float32(d.P)
	}
	return 0
}
