package train

import (
	"fmt"

	"github.com/headroom-go/headroom/tensor"
)

// mixed says whether steps compute in 16 bits, now or before they fell back.
func (t *Trainer) mixed() bool { return t.Config.Precision != tensor.Float32 }

// casting runs f, a forward pass, with operations computing in the precision of now.
func (t *Trainer) casting(f func()) {
	if t.mixed() {
		plain := f
		f = func() { t.rt.Autocast(t.precision.Type, plain) }
	}
	t.rt.WithLogitRows(t.now.LogitRows, f)
}

// judgePrecision finds whether the step was skipped, and gives precision for
// the next one. A step in float32 that overflows is no matter of precision.
func (t *Trainer) judgePrecision(r *Result) {
	if !t.mixed() || t.precision.Type == tensor.Float32 {
		return
	}
	r.Skipped = !finite(r.GradNorm)
	if r.Skipped {
		r.Events = append(r.Events, Event{"skip", fmt.Sprintf("numbers overflowed in %s: step %d is done again with the next batch", t.precision.Type, r.Step)})
	}
	next, change := t.precision.Update(r.Skipped)
	t.precision = next
	if change.Changed() {
		r.Events = append(r.Events, Event{"precision", fmt.Sprintf("%s: from now on steps compute in %s instead of %s", change.Reason, change.To, change.From)})
	}
}
