package inspect

import (
	"fmt"
	"testing"

	"github.com/headroom-go/headroom/trace"
)

// TestAnnotatedStep: what repeats inside one annotated step, as its layers do,
// is no row of steps, and nothing in it leaks; the same record without the
// annotation has to be guessed. Annotated steps that are many, or that cover
// little of the record, change nothing.
func TestAnnotatedStep(t *testing.T) {
	layers := func() *program {
		p := train(12, func(int) uint64 { return 4 << 20 })
		p.s.Annotations = nil
		return p
	}
	annotate := func(p *program, number int, from, to int64) {
		name := fmt.Sprintf("ProfilerStep#%d", number)
		p.s.Annotations = append(p.s.Annotations, trace.Annotation{Name: name, Begin: true, TimeUS: from}, trace.Annotation{Name: name, TimeUS: to})
	}
	whole, part, many := layers(), layers(), layers()
	annotate(whole, 1, 0, whole.time)
	annotate(part, 1, 0, part.time/4)
	for i := range int64(12) {
		annotate(many, int(i), i*many.time/12, (i+1)*many.time/12)
	}
	for _, c := range []struct {
		name string
		p    *program
		want Verdict
	}{{"none", layers(), Leak}, {"whole", whole, Healthy}, {"part", part, Leak}, {"many", many, Leak}} {
		r, err := explainWorst(c.p.snapshot())
		if err != nil || r.Verdict != c.want {
			t.Errorf("%s: %v, %v, want %s", c.name, r, err, c.want)
		}
	}
}
