package plan

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/atomicfile"
	"github.com/headroom-go/headroom/internal/size"
)

// Rates is what time is estimated from. Where a kernel was measured, a launch
// takes what the nearest measured launch of it took, in proportion to the
// roofline; other launches take what the roofline says.
type Rates struct {
	Device         string  `json:"device"` // that they are of, as DeviceOf names it
	FlopsPerSecond float64 `json:"flops_per_second"`
	BytesPerSecond float64 `json:"bytes_per_second"`
	LaunchSeconds  float64 `json:"launch_seconds"` // the cost of a launch beside its work

	// Half is how many times longer than by its bytes and flops a launch takes that
	// works on 16 bits, where such launches are like those on float32 but for that; of
	// those that were not measured, timings of the others then tell. 0: they are not
	// alike.
	Half float64 `json:"half,omitempty"`

	// LinkBytesPerSecond is how fast a device sends to others while as much comes
	// from them; 0 stands for 25e9, of a network of 200 Gbit/s or of PCIe 4.
	LinkBytesPerSecond float64 `json:"link_bytes_per_second,omitempty"`

	Kernels map[string][]Timing `json:"kernels,omitempty"` // by the name that kernelOf gives

	// Away is how fast copies go to places outside the device, by what names them.
	Away map[string]CopyRates `json:"away,omitempty"`
}

// CopyRates are the speeds of copies to memory outside a device, and back.
type CopyRates struct {
	OutBytesPerSecond  float64 `json:"out_bytes_per_second"`
	BackBytesPerSecond float64 `json:"back_bytes_per_second"`
}

// Timing is what launches of a kernel took that have this much work.
type Timing struct {
	Flops   uint64  `json:"flops"`
	Bytes   uint64  `json:"bytes"`
	Seconds float64 `json:"seconds"`
}

// DeviceOf names what rates depend on of a device: of a GPU the model, of the host the
// number of its workers. A null device has no rates of its own.
func DeviceOf(info device.Info) string {
	if info.Kind == device.CUDA {
		return info.Model
	}
	return fmt.Sprintf("host, %d workers", max(info.Workers, 1))
}

// HostRates are the rates of a host device of which nothing was measured, from
// the benchmarks of internal/kernel on one server core with AVX-512. Choices
// compare estimates with each other, so that what counts is their proportion. Ranks
// of a host exchange through its memory. It converts 16 bits to float32 and back, which
// made a step of gpt2-mini take 1.2 times as much processor time as in float32.
func HostRates(workers int) Rates {
	return Rates{Device: DeviceOf(device.Info{Workers: workers}), FlopsPerSecond: 180e9 * float64(workers), BytesPerSecond: 12e9, Half: 1.3, LinkBytesPerSecond: 12e9, LaunchSeconds: 5e-6}
}

// CUDARates are the rates of a GPU, from steps of GPT-2 and ResNet-152 on an H200: in
// float32, and of products, attention and convolutions, which tensor cores compute, in
// 16 bits.
func CUDARates() Rates {
	return Rates{FlopsPerSecond: 40e12, BytesPerSecond: 3.3e12, LaunchSeconds: 3e-6, Kernels: map[string][]Timing{
		"matmul of 16 bits": {
			{Flops: 19.3e9, Bytes: 52e6, Seconds: 41e-6},
			{Flops: 77.3e9, Bytes: 131e6, Seconds: 119e-6},
			{Flops: 316e9, Bytes: 495e6, Seconds: 440e-6},
		},
		"attention_forward of 16 bits":  {{Flops: 25.8e9, Bytes: 101e6, Seconds: 110e-6}},
		"attention_backward of 16 bits": {{Flops: 64.5e9, Bytes: 203e6, Seconds: 510e-6}},
		"conv of 16 bits":               {{Flops: 13.2e9, Bytes: 129e6, Seconds: 38e-6}, {Flops: 29.6e9, Bytes: 52e6, Seconds: 48e-6}},
		"conv_grad_input of 16 bits":    {{Flops: 13.2e9, Bytes: 64e6, Seconds: 32e-6}, {Flops: 29.6e9, Bytes: 27e6, Seconds: 43e-6}},
		"conv_grad_weight of 16 bits":   {{Flops: 13.2e9, Bytes: 64e6, Seconds: 32e-6}, {Flops: 29.6e9, Bytes: 27e6, Seconds: 60e-6}},
	}}
}

// kernelOf names what is timed alike: operations that work on 16 bits apart
// from those on float32 alone.
func kernelOf(l *device.Launch) string { return kernelName(l, half(l)) }

func kernelName(l *device.Launch, half bool) string {
	if half {
		return l.Kernel.Name + " of 16 bits"
	}
	return l.Kernel.Name
}

// half says whether a launch works on 16 bits.
func half(l *device.Launch) bool {
	return slices.ContainsFunc(l.Type[:], func(t device.DType) bool { return t.Size() == 2 })
}

// rates are those to estimate with for a device.
func (o Options) rates(info device.Info) Rates {
	if o.Rates.FlopsPerSecond > 0 {
		return o.Rates
	}
	return RatesOf(info)
}

// RatesOf are the rates of a device of which nothing was measured.
func RatesOf(info device.Info) Rates {
	if info.Kind != device.CUDA {
		return HostRates(max(info.Workers, 1))
	}
	r := CUDARates()
	r.Device = DeviceOf(info)
	return r
}

// seconds estimates the time of one launch.
func (r *Rates) seconds(l *device.Launch) float64 {
	s := r.roof(l.Flops, l.Bytes)
	if times := r.measured(l); times > 0 {
		return s * times
	}
	if half(l) {
		s *= cmp.Or(r.Half, 1)
	}
	return max(s, r.LaunchSeconds+float64(l.Link)/cmp.Or(r.LinkBytesPerSecond, 25e9))
}

// measured is how many times longer than by the roofline a launch takes, as far as
// launches like it were measured; 0 where none were.
func (r *Rates) measured(l *device.Launch) float64 {
	is := half(l)
	if t := nearest(r.Kernels[kernelName(l, is)], l.Flops, l.Bytes); t != nil {
		return t.Seconds / r.roof(t.Flops, t.Bytes)
	}
	t := nearest(r.Kernels[kernelName(l, !is)], l.Flops, l.Bytes)
	switch {
	case t == nil || r.Half == 0:
		return 0
	case is:
		return r.Half * t.Seconds / r.roof(t.Flops, t.Bytes)
	}
	return t.Seconds / r.roof(t.Flops, t.Bytes) / r.Half
}

// roof is the time of a launch that is bound by arithmetic or by memory,
// whichever takes longer (Williams et al., "Roofline", 2009).
func (r *Rates) roof(flops, bytes uint64) float64 {
	return r.LaunchSeconds + max(float64(flops)/r.FlopsPerSecond, float64(bytes)/r.BytesPerSecond)
}

// nearest gives the timing whose flops and bytes are nearest in proportion, nil
// of none.
func nearest(timings []Timing, flops, bytes uint64) (best *Timing) {
	least := math.Inf(1)
	for i, t := range timings {
		far := math.Abs(math.Log(float64(1+t.Flops)/float64(1+flops))) + math.Abs(math.Log(float64(1+t.Bytes)/float64(1+bytes)))
		if far < least {
			best, least = &timings[i], far
		}
	}
	return best
}

// Add enters the timings of o, which replace those of the same work.
func (r *Rates) Add(o Rates) {
	kernels := map[string][]Timing{}
	for name, timings := range r.Kernels {
		for _, t := range timings {
			if same := nearest(o.Kernels[name], t.Flops, t.Bytes); same == nil || same.Flops != t.Flops || same.Bytes != t.Bytes {
				kernels[name] = append(kernels[name], t)
			}
		}
	}
	for name, timings := range o.Kernels {
		kernels[name] = append(kernels[name], timings...)
	}
	r.Kernels = kernels
}

// Write writes the rates to a file, as JSON.
func (r *Rates) Write(path string) error {
	return atomicfile.Write(path, func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetIndent("", " ")
		return e.Encode(r)
	})
}

// Learn corrects the rates by what was measured. What is new is taken as it is; of
// work that was measured before, the time goes half of the way (of its logarithm), so
// that a run on a machine that was busy then does not spoil what is known. Of each
// kernel the latest timings are kept.
func (r *Rates) Learn(measured Rates) {
	kernels := map[string][]Timing{}
	for name, timings := range measured.Kernels {
		for _, t := range timings {
			if before := nearest(r.Kernels[name], t.Flops, t.Bytes); before != nil && before.Flops == t.Flops && before.Bytes == t.Bytes {
				t.Seconds = math.Sqrt(t.Seconds * before.Seconds)
			}
			kernels[name] = append(kernels[name], t)
		}
	}
	r.Add(Rates{Kernels: kernels})
	for name, timings := range r.Kernels {
		r.Kernels[name] = timings[max(len(timings)-mostTimings, 0):]
	}
}

// Bounds of a file of rates.
const (
	mostRates   = 16 << 20 // bytes
	mostKernels = 1 << 10
	mostTimings = 1 << 9 // of a kernel
	mostSeconds = 1 << 12
	mostPlaces  = 1 << 8 // outside the device
)

// ReadRates reads rates that Write wrote, to estimate times on a device with info's
// properties. Rates of another device are an error; a null device takes any.
func ReadRates(path string, info device.Info) (r Rates, err error) {
	f, err := os.Open(path)
	if err != nil {
		return r, fmt.Errorf("rates: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, mostRates+1))
	if err == nil && len(text) > mostRates {
		err = fmt.Errorf("more than %s are no rates", size.Format(mostRates))
	}
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		err = d.Decode(&r)
	}
	if err == nil {
		err = r.check()
	}
	if of := DeviceOf(info); err == nil && info.Kind != device.Null && r.Device != of {
		err = fmt.Errorf("they were measured on another device (%s) than this one (%s): give a file of this one's, or a new name", r.Device, of)
	}
	if err != nil {
		return Rates{}, fmt.Errorf("rates %s: %w", path, err)
	}
	return r, nil
}

// check looks for numbers that give no time, and for more than any device has.
func (r *Rates) check() error {
	good := func(x float64) bool { return x > 0 && !math.IsInf(x, 1) }
	if r.Device == "" {
		return errors.New("they do not say of which device they are: measure them anew")
	}
	if !good(r.FlopsPerSecond) || !good(r.BytesPerSecond) || !good(r.LaunchSeconds) {
		return fmt.Errorf("%g flops/s, %g bytes/s, %g s a launch: all must be over 0", r.FlopsPerSecond, r.BytesPerSecond, r.LaunchSeconds)
	}
	if h := r.Half; h != 0 && !good(h) {
		return fmt.Errorf("launches on 16 bits take %g times as long: it must be over 0, or left out", h)
	}
	if l := r.LinkBytesPerSecond; l != 0 && !good(l) {
		return fmt.Errorf("%g bytes/s to other devices: it must be over 0, or left out", l)
	}
	if len(r.Kernels) > mostKernels {
		return fmt.Errorf("%d kernels: there are at most %d", len(r.Kernels), mostKernels)
	}
	if len(r.Away) > mostPlaces {
		return fmt.Errorf("%d places outside the device: there are at most %d", len(r.Away), mostPlaces)
	}
	for name, a := range r.Away {
		if !good(a.OutBytesPerSecond) || !good(a.BackBytesPerSecond) {
			return fmt.Errorf("%g bytes/s to %s and %g back: both must be over 0", a.OutBytesPerSecond, name, a.BackBytesPerSecond)
		}
	}
	for name, timings := range r.Kernels {
		if len(timings) > mostTimings {
			return fmt.Errorf("%d timings of %s: there are at most %d", len(timings), name, mostTimings)
		}
		for _, t := range timings {
			if !good(t.Seconds) || t.Seconds > mostSeconds {
				return fmt.Errorf("%s of %d flops and %d bytes takes %g s: it must be over 0 and at most %d", name, t.Flops, t.Bytes, t.Seconds, mostSeconds)
			}
		}
	}
	return nil
}
