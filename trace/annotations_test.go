package trace

import (
	"slices"
	"testing"
)

// annotated is a file with an annotation of any kind between two sound ones,
// all of them in a list of any kind.
func annotated(s style, odd any, list bool) []byte {
	begin := pairs{"stage", "START", "name", "step", "device", 0, "time_us", 5}
	end := pairs{"name", "step", "time_us", 9, "stage", "END", "device", 0, "more", items{1, pairs{}}}
	var marks any = items{begin, odd, end}
	if !list {
		marks = odd
	}
	return assemble(s, pairs{"segments", items{}, "device_traces", items{items{}}, "external_annotations", marks})
}

// TestOddAnnotations: what is no begin and no end is left out, and the others
// are read.
func TestOddAnnotations(t *testing.T) {
	sound := []Annotation{{Name: "step", Begin: true, TimeUS: 5}, {Name: "step", TimeUS: 9}}
	for _, s := range styles {
		for _, odd := range []any{nil, 5, "text", items{}, pairs{}, tuple{1, 2}, pairs{"stage", nil, "name", "x"}, pairs{"stage", "MIDDLE", "name", "x"}, pairs{"stage", items{}}, pairs{"name", "x", "time_us", 7}} {
			if got := mustRead(t, s.String(), annotated(s, odd, true)); !slices.Equal(got.Annotations, sound) {
				t.Errorf("%v, %v: annotations %v", s, odd, got.Annotations)
			}
			if got := mustRead(t, s.String(), annotated(s, odd, false)); len(got.Annotations) > 0 {
				t.Errorf("%v, %v in place of a list: annotations %v", s, odd, got.Annotations)
			}
		}
		odd := pairs{"stage", "END", "name", 5, "device", "none", "time_us", nil}
		if got := mustRead(t, s.String(), annotated(s, odd, true)); len(got.Annotations) != 3 || got.Annotations[1] != (Annotation{}) {
			t.Errorf("%v: an annotation without anything known is read as %v", s, got.Annotations)
		}
	}
}

// FuzzAnnotations: whatever a middle annotation holds, the ones around it are
// read, and all of them come back from a file that is written of them.
func FuzzAnnotations(f *testing.F) {
	for kind := range uint8(8) {
		f.Add(kind, "step", "START", int64(1), int64(1<<62))
	}
	f.Fuzz(func(t *testing.T, kind uint8, name, stage string, device, time int64) {
		odd := []any{
			pairs{"stage", stage, "name", name, "device", int(device), "time_us", int(time)},
			pairs{"stage", name, "name", stage, "device", uint64(device), "time_us", float64(time)},
			pairs{name, stage, "stage", stage}, items{name, pairs{"stage", stage}}, tuple{stage, int(time)},
			pairs{"stage", pairs{"stage", stage}, "name", items{name}}, name, nil,
		}[kind%8]
		s := mustRead(t, "odd", annotated(styles[int(kind/8)%len(styles)], odd, true))
		n := len(s.Annotations)
		if n < 2 || s.Annotations[0] != (Annotation{Name: "step", Begin: true, TimeUS: 5}) || s.Annotations[n-1] != (Annotation{Name: "step", TimeUS: 9}) {
			t.Fatalf("annotations %v", s.Annotations)
		}
		for _, again := range [][]byte{pickled(t, s), jsonLines(t, s)} {
			if got := mustRead(t, "again", again); !slices.Equal(got.Annotations, s.Annotations) {
				t.Errorf("annotations %v, read again %v", s.Annotations, got.Annotations)
			}
		}
	})
}
