package nn

import "math"

// Cosine is a learning-rate schedule: linear warm-up to Peak over Warmup
// steps, then half a cosine down to Floor at step Steps.
type Cosine struct {
	Peak   float64 `json:"peak"`
	Floor  float64 `json:"floor"`
	Warmup int     `json:"warmup_steps"`
	Steps  int     `json:"steps"`
}

// At is the rate of a step, counted from 1.
func (c Cosine) At(step int) float64 {
	if step <= c.Warmup {
		return c.Peak * float64(step) / float64(c.Warmup)
	}
	if step >= c.Steps {
		return c.Floor
	}
	done := float64(step-c.Warmup) / float64(c.Steps-c.Warmup)
	return c.Floor + (c.Peak-c.Floor)*(1+math.Cos(math.Pi*done))/2
}
