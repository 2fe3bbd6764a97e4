package trace

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strconv"

	"github.com/google/pprof/profile"
)

// Profiles of device memory for go tool pprof, as jax.profiler.save_device_memory_profile
// writes them: what is live, by the stacks that took it.

// ProfileBackend is Settings.Backend of a snapshot that was read from a profile.
const ProfileBackend = "profile"

const (
	maxProfile       = 64 << 20 // bytes of a profile
	maxProfileBlocks = 1 << 20
	maxSample        = 1 << 50 // bytes
	maxProfileDevice = 255
)

// readProfile reads a profile to its end. Its samples become blocks, of which each
// sample's have a segment of their own.
func readProfile(in *input) (*Snapshot, error) {
	data, err := io.ReadAll(io.LimitReader(in, maxProfile+1))
	if err != nil {
		return nil, fmt.Errorf("the compressed data are damaged: %w", err)
	}
	if len(data) > maxProfile {
		return nil, &FormatError{KindBinary, fmt.Sprintf("it begins % x and has more than the %d bytes that a profile of pprof's may have", data[:8], maxProfile)}
	}
	p, err := profile.ParseUncompressed(data)
	if err == nil {
		err = p.CheckValid()
	}
	if err != nil {
		return nil, &FormatError{KindBinary, fmt.Sprintf("it begins % x, and is no profile of pprof's either (%v)", data[:min(len(data), 8)], err)}
	}
	r := profileReader{s: &Snapshot{NoAddresses: true, Settings: Settings{Known: true, Backend: ProfileBackend, MaxSplitSize: -1}}, space: -1, count: -1, stacks: map[string]*Stack{}}
	for i, t := range p.SampleType {
		switch t.Type {
		case "space", "inuse_space":
			r.space = i
		case "allocations", "inuse_objects":
			r.count = i
		}
	}
	if r.space < 0 {
		return nil, &FormatError{KindBinary, "it is a profile of pprof's without the bytes of memory in use: go tool pprof shows it"}
	}
	for _, sample := range p.Sample {
		r.sample(sample)
	}
	return r.s, nil
}

type profileReader struct {
	s            *Snapshot
	space, count int // places of these values in a sample; count may be -1
	blocks       int
	end          uint64 // of the addresses so far
	stacks       map[string]*Stack
}

// sample adds what one stack holds. It is one block where its number of blocks makes no
// sense, or there are too many.
func (r *profileReader) sample(of *profile.Sample) {
	size := of.Value[r.space]
	if size == 0 {
		return
	}
	if size < 0 || size > maxSample {
		if r.s.Oddities.Count++; r.s.Oddities.Count == 1 {
			r.s.Oddities.First = fmt.Sprintf("a sample has %d bytes", size)
		}
		return
	}
	n := int64(1)
	if r.count >= 0 && of.Value[r.count] > 0 && of.Value[r.count] <= min(size, int64(maxProfileBlocks-r.blocks)) {
		n = of.Value[r.count]
	}
	seg := Segment{Device: r.device(of), Addr: r.end, Size: uint64(size)}
	stack := r.stack(of.Location)
	for i := range n {
		each := uint64(size*(i+1)/n - size*i/n)
		seg.Blocks = append(seg.Blocks, Block{Addr: r.end, Size: each, Requested: each, Purpose: samplePurpose(of), Stack: stack})
		r.end += each
	}
	r.blocks += int(n)
	r.s.Segments = append(r.s.Segments, seg)
}

var firstNumber = regexp.MustCompile(`\d+`)

// device is the number in a sample's device, such as gpu:1 or TPU_3(process=0).
func (r *profileReader) device(of *profile.Sample) int {
	number := 0
	if names := of.Label["device"]; len(names) > 0 {
		if n, err := strconv.Atoi(firstNumber.FindString(names[0])); err == nil && n <= maxProfileDevice {
			number = n
		}
	}
	for number >= len(r.s.Traces) {
		r.s.Traces = append(r.s.Traces, &Trace{})
	}
	return number
}

// stack gives the lines of locations, innermost first.
func (r *profileReader) stack(locations []*profile.Location) *Stack {
	var frames []Frame
	var key bytes.Buffer
	for _, l := range locations {
		fmt.Fprint(&key, l.ID, " ")
		for _, line := range l.Line {
			f := Frame{Line: int(line.Line)}
			if line.Function != nil {
				f.File, f.Func = line.Function.Filename, line.Function.Name
			}
			frames = append(frames, f)
		}
	}
	if len(frames) == 0 {
		return nil
	}
	if r.stacks[key.String()] == nil {
		r.stacks[key.String()] = NewStack(frames)
	}
	return r.stacks[key.String()]
}

// samplePurpose is what a sample of ours is for; JAX tells buffers from executables alone.
func samplePurpose(of *profile.Sample) Purpose {
	for p := range Purpose(NumPurposes) {
		if names := of.Label["purpose"]; len(names) > 0 && names[0] == p.String() {
			return p
		}
	}
	return Other
}
