package trace

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
)

// jaxProfile is a profile as JAX writes it: three buffers that one line of a training
// took on the first GPU, one on the second, and the code of an executable.
func jaxProfile() *profile.Profile {
	at := func(id uint64, name, file string, line int64) *profile.Location {
		return &profile.Location{ID: id, Line: []profile.Line{{Function: &profile.Function{ID: id, Name: name, Filename: file}, Line: line}}}
	}
	inner, outer, load := at(1, "init", "model.py", 12), at(2, "main", "train.py", 40), at(3, "compile", "pjit.py", 7)
	sample := func(count, space int64, kind, device string, where ...*profile.Location) *profile.Sample {
		return &profile.Sample{Value: []int64{count, space}, Location: where, Label: map[string][]string{"kind": {kind}, "device": {device}}}
	}
	return &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "allocations", Unit: "count"}, {Type: "space", Unit: "bytes"}},
		Sample: []*profile.Sample{
			sample(3, 1001, "buffer", "cuda:0", inner, outer), sample(1, 64, "buffer", "TPU_1(process=0,(0,0,0,0))", outer),
			sample(1, 0, "buffer", "cuda:0", outer), sample(7, 5, "executable", "cuda:0", load),
		},
		Location: []*profile.Location{inner, outer, load},
		Function: []*profile.Function{inner.Line[0].Function, outer.Line[0].Function, load.Line[0].Function},
	}
}

func written(t testing.TB, p *profile.Profile) []byte {
	var b bytes.Buffer
	if err := p.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestReadProfile(t *testing.T) {
	s := mustRead(t, "profile", written(t, jaxProfile()))
	var got []string
	for _, seg := range s.Segments {
		sizes := []uint64{}
		for _, b := range seg.Blocks {
			sizes = append(sizes, b.Size)
		}
		f := seg.Blocks[0].Stack.Frames()
		got = append(got, fmt.Sprintf("device %d: %v by %s:%d, %d frames", seg.Device, sizes, f[0].File, f[0].Line, len(f)))
	}
	want := []string{"device 0: [333 334 334] by model.py:12, 2 frames", "device 1: [64] by train.py:40, 1 frames", "device 0: [5] by pjit.py:7, 1 frames"}
	if !slices.Equal(got, want) || len(s.Traces) != 2 || !s.NoAddresses {
		t.Errorf("%d devices, %q, want %q", len(s.Traces), got, want)
	}
}

// TestReadProfileOdd: numbers that can't be are left out and counted, other profiles and
// damaged ones refused.
func TestReadProfileOdd(t *testing.T) {
	p := jaxProfile()
	p.Sample[0].Value[1] = -5
	p.Sample[1].Value[1] = 1 << 60
	p.Sample[1].Label["device"] = []string{"gpu:99999999999999999999"}
	p.Sample[3].Value[0] = 1 << 40
	if s := mustRead(t, "odd", written(t, p)); s.Oddities.Count != 2 || len(s.Segments) != 1 || !strings.Contains(s.Oddities.First, "-5 bytes") {
		t.Errorf("%d segments, %+v", len(s.Segments), s.Oddities)
	}
	p = jaxProfile()
	p.SampleType[1].Type = "cpu"
	var format *FormatError
	if _, err := Read(bytes.NewReader(written(t, p))); !errors.As(err, &format) || !strings.Contains(err.Error(), "go tool pprof shows it") {
		t.Errorf("a profile of time: %v", err)
	}
	if _, err := Read(strings.NewReader("\n\x04\x08\x01\x10\x02\xff\xff")); !errors.As(err, &format) || !strings.Contains(err.Error(), "no profile of pprof's either") {
		t.Errorf("bytes: %v", err)
	}
}
