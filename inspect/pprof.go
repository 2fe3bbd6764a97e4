package inspect

import (
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/google/pprof/profile"

	"github.com/headroom-go/headroom/trace"
)

// WritePprof writes what is live on a device at its last out-of-memory event
// or, without one, at the peak, as a profile for go tool pprof, with the sample
// types inuse_objects and inuse_space (bytes as they were asked for). Samples
// have the labels purpose, stream and site (as in Site.At) and the number bytes,
// the size of one block.
//
// A Python function is named with its file, such as forward:net.py, because
// pprof would take all functions of one name for one; <module>, which it would
// hide, becomes module:train.py. Lines of native code are left out of stacks
// that have others. The error is w's, or says that the snapshot has no such device.
func WritePprof(w io.Writer, s *trace.Snapshot, device int) error {
	if err := knows(s, device); err != nil {
		return err
	}
	return newProfiler(examine(NewHistory(s, device))).profile().Write(w)
}

// profiler makes a profile of evidence.
type profiler struct {
	e         *evidence
	p         *profile.Profile
	stacks    map[*trace.Stack][]*profile.Location
	locations map[trace.Frame]*profile.Location
	functions map[trace.Frame]*profile.Function // by file and name; the line is 0
}

func newProfiler(e *evidence) *profiler {
	return &profiler{
		e: e,
		p: &profile.Profile{
			SampleType:        []*profile.ValueType{{Type: "inuse_objects", Unit: "count"}, {Type: "inuse_space", Unit: "bytes"}},
			DefaultSampleType: "inuse_space",
			PeriodType:        &profile.ValueType{Type: "space", Unit: "bytes"},
			Period:            1,
			Comments:          []string{fmt.Sprintf("device %d after %d events", e.h.device, e.state.Event)},
		},
		stacks:    map[*trace.Stack][]*profile.Location{},
		locations: map[trace.Frame]*profile.Location{},
		functions: map[trace.Frame]*profile.Function{},
	}
}

// sampleKey is what the blocks of one sample share.
type sampleKey struct {
	stack   *trace.Stack
	purpose trace.Purpose
	stream  int
	size    uint64
}

func (r *profiler) profile() *profile.Profile {
	if i := r.e.state.Event; i > 0 {
		r.p.TimeNanos = r.e.h.Event(i-1).TimeUS * 1000
	}
	samples := map[sampleKey]*profile.Sample{}
	for _, l := range r.e.leases {
		k := sampleKey{l.Stack, r.e.purposes.of(l), l.Stream(), l.Size}
		if samples[k] == nil {
			samples[k] = r.sample(k)
			r.p.Sample = append(r.p.Sample, samples[k])
		}
		samples[k].Value[0]++
		samples[k].Value[1] += int64(l.Size)
	}
	return r.p
}

func (r *profiler) sample(k sampleKey) *profile.Sample {
	return &profile.Sample{
		Location: r.stack(k.stack),
		Value:    make([]int64, 2),
		Label:    map[string][]string{"purpose": {k.purpose.String()}, "stream": {fmt.Sprint(k.stream)}, "site": {r.e.sites.site(k.stack).At}},
		NumLabel: map[string][]int64{"bytes": {int64(k.size)}},
		NumUnit:  map[string][]string{"bytes": {"bytes"}},
	}
}

// stack gives the locations of a stack, innermost first. Where nothing was
// recorded there is one that says so.
func (r *profiler) stack(s *trace.Stack) []*profile.Location {
	if known, ok := r.stacks[s]; ok {
		return known
	}
	var out []*profile.Location
	for _, f := range readable(s.Frames()) {
		out = append(out, r.location(f))
	}
	if len(out) == 0 {
		out = append(out, r.location(trace.Frame{Func: unknownSite}))
	}
	r.stacks[s] = out
	return out
}

// readable leaves out native code where there is other.
func readable(frames []trace.Frame) []trace.Frame {
	var out []trace.Frame
	for _, f := range frames {
		if isPython(f) || strings.HasSuffix(f.File, ".go") {
			out = append(out, f)
		}
	}
	if len(out) == 0 {
		return frames
	}
	return out
}

func isPython(f trace.Frame) bool { return strings.HasSuffix(f.File, ".py") }

func (r *profiler) location(f trace.Frame) *profile.Location {
	if l := r.locations[f]; l != nil {
		return l
	}
	l := &profile.Location{ID: uint64(len(r.p.Location) + 1), Line: []profile.Line{{Function: r.function(f), Line: int64(f.Line)}}}
	r.p.Location = append(r.p.Location, l)
	r.locations[f] = l
	return l
}

func (r *profiler) function(f trace.Frame) *profile.Function {
	f.Line = 0
	if fn := r.functions[f]; fn != nil {
		return fn
	}
	fn := &profile.Function{ID: uint64(len(r.p.Function) + 1), Name: functionName(f), SystemName: f.Func, Filename: f.File}
	r.p.Function = append(r.p.Function, fn)
	r.functions[f] = fn
	return fn
}

// functionName is the name that pprof shows.
func functionName(f trace.Frame) string {
	if !isPython(f) {
		return f.Func
	}
	return strings.Trim(f.Func, "<>") + ":" + path.Base(strings.ReplaceAll(f.File, `\`, "/"))
}
