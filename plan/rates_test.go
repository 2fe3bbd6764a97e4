package plan

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/train"
)

func near(x, y float64) bool { return math.Abs(x-y) < 1e-9*math.Abs(y) }

// TestRatesOf16Bits: on the host a launch on 16 bits takes Half times what its bytes
// and flops say, or what was measured of such in float32; a GPU's are not alike.
func TestRatesOf16Bits(t *testing.T) {
	full := &device.Launch{Kernel: &device.Kernel{Name: "gemm"}, Flops: 1e9, Bytes: 1e4}
	half := &device.Launch{Kernel: full.Kernel, Flops: 1e9, Bytes: 5e3}
	half.Type[0] = device.BFloat16
	r := Rates{FlopsPerSecond: 1e9, BytesPerSecond: 1e8, Half: 1.5}
	check := func(what string, l *device.Launch, want float64) {
		t.Helper()
		if got := r.seconds(l); !near(got, want) {
			t.Errorf("%s: %v s, want %v", what, got, want)
		}
	}
	check("float32", full, 1)
	check("16 bits", half, 1.5)
	r.Kernels = map[string][]Timing{"gemm": {{Flops: 1e9, Bytes: 1e4, Seconds: 4}}}
	check("16 bits, float32 measured", half, 6)
	r.Kernels = map[string][]Timing{"gemm of 16 bits": {{Flops: 1e9, Bytes: 5e3, Seconds: 3}}}
	check("float32, 16 bits measured", full, 2)
	r.Half = 0
	check("a GPU's float32, 16 bits measured", full, 1)
}

// TestRates: a launch that was measured takes what it took, one of other work
// takes what the nearest took in proportion to the roofline, and one of another
// kernel what the roofline says.
func TestRates(t *testing.T) {
	r := Rates{Device: "host, 1 workers", FlopsPerSecond: 1e9, BytesPerSecond: 1e8, LaunchSeconds: 1e-3, Kernels: map[string][]Timing{
		"gemm": {{Flops: 1e6, Bytes: 1e4, Seconds: 4e-3}, {Flops: 1e9, Bytes: 1e6, Seconds: 2}},
	}}
	for _, test := range []struct {
		kernel       string
		flops, bytes uint64
		want         float64
	}{
		{"gemm", 1e6, 1e4, 4e-3},
		{"gemm", 1e9, 1e6, 2},
		{"gemm", 2e6, 1e4, 6e-3},  // the roofline has 2 ms for the first, 3 ms for this
		{"gemm", 5e8, 1e6, 1.002}, // by half of the second's second, and a launch
		{"relu", 10, 1e6, 0.011},
		{"relu", 1e9, 1e6, 1.001},
	} {
		l := &device.Launch{Kernel: &device.Kernel{Name: test.kernel}, Flops: test.flops, Bytes: test.bytes}
		if got := r.seconds(l); math.Abs(got/test.want-1) > 1e-3 {
			t.Errorf("%s of %d flops and %d bytes: %v s, want %v", test.kernel, test.flops, test.bytes, got, test.want)
		}
	}
	half := &device.Launch{Kernel: &device.Kernel{Name: "gemm"}, Type: [device.MaxPtrs]device.DType{1: device.BFloat16}, Flops: 1e6, Bytes: 1e4}
	if got := r.seconds(half); math.Abs(got/2e-3-1) > 1e-3 {
		t.Errorf("gemm of 16 bits, of which nothing is known: %v s, want 0.002", got)
	}
	r.Add(Rates{Kernels: map[string][]Timing{"gemm": {{1e6, 1e4, 5e-3}}, "relu": {{10, 20, 1e-6}}}})
	want := map[string][]Timing{"gemm": {{1e9, 1e6, 2}, {1e6, 1e4, 5e-3}}, "relu": {{10, 20, 1e-6}}}
	if !reflect.DeepEqual(r.Kernels, want) {
		t.Errorf("added: %v, want %v", r.Kernels, want)
	}
	path := filepath.Join(t.TempDir(), "rates.json")
	if err := r.Write(path); err != nil {
		t.Fatal(err)
	}
	if back, err := ReadRates(path, device.Info{Workers: 1}); err != nil || !reflect.DeepEqual(back, r) {
		t.Errorf("read %v, %v; wrote %v", back, err, r)
	}
}

// TestReadRatesRefuses: what is no file of this device's rates is told apart.
func TestReadRatesRefuses(t *testing.T) {
	const rates = `"flops_per_second": 1, "bytes_per_second": 1, "launch_seconds": 1`
	for want, text := range map[string]string{
		"0 bytes/s":                    `{"device": "host, 1 workers", "flops_per_second": 1, "bytes_per_second": 0, "launch_seconds": 1}`,
		"-1 bytes/s to other devices":  `{"device": "host, 1 workers", ` + rates + `, "link_bytes_per_second": -1}`,
		"takes -1 s":                   `{"device": "host, 1 workers", ` + rates + `, "kernels": {"gemm": [{"flops": 1, "bytes": 1, "seconds": -1}]}}`,
		"takes 5000 s":                 `{"device": "host, 1 workers", ` + rates + `, "kernels": {"gemm": [{"flops": 1, "bytes": 1, "seconds": 5000}]}}`,
		"513 timings":                  `{"device": "host, 1 workers", ` + rates + `, "kernels": {"gemm": [` + strings.Repeat(`{"flops": 1, "bytes": 1, "seconds": 1},`, 512) + `{"flops": 1, "bytes": 1, "seconds": 1}]}}`,
		"unknown field":                `{"speed": 1}`,
		"invalid character":            `fast`,
		"do not say of which device":   `{` + rates + `}`,
		"another device (host, 2 work": `{"device": "host, 2 workers", ` + rates + `}`,
		"another device (NVIDIA H200)": `{"device": "NVIDIA H200", ` + rates + `}`,
	} {
		path := filepath.Join(t.TempDir(), "rates.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := ReadRates(path, device.Info{Workers: 1}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, error %v, want %q", r, err, want)
		}
	}
	path := filepath.Join(t.TempDir(), "rates.json")
	if err := os.WriteFile(path, []byte(`{"device": "NVIDIA H200", `+rates+`}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadRates(path, device.Info{Kind: device.Null}); err != nil {
		t.Errorf("for a plan on a null device: %v", err)
	}
	if err := os.Truncate(path, mostRates+1); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadRates(path, device.Info{Kind: device.Null}); err == nil || !strings.Contains(err.Error(), "more than 16MiB") {
		t.Errorf("a large file: %v", err)
	}
}

// TestTimings: of each launch the quickest, of those with the same work the
// mean, and in sum what a step takes.
func TestTimings(t *testing.T) {
	step := func(a, b, c time.Duration) []launched {
		return []launched{{"gemm", 8, 4, a}, {"relu", 1, 4, b}, {"gemm", 8, 4, c}}
	}
	got, err := timings([][]launched{step(10, 2, 40), step(30, 1, 20), step(20, 3, 30)}, 62)
	if err != nil {
		t.Fatal(err)
	}
	if g, r := got["gemm"], got["relu"]; len(got) != 2 || len(g) != 1 || len(r) != 1 || !near(g[0].Seconds, 30e-9) || !near(r[0].Seconds, 2e-9) {
		t.Errorf("%v: want 30 ns for gemm, 2 ns for relu", got)
	}
	if _, err := timings([][]launched{step(1, 1, 1), step(1, 1, 1)[:2]}, 3); err == nil {
		t.Error("steps of 3 and 2 launches pass")
	}
}

// TestCalibrate: what was measured is what a trial launches, so that a step's
// estimate is the sum of what its launches took.
func TestCalibrate(t *testing.T) {
	c := train.Config{Model: "test", GPT2: nn.GPT2Config{Vocab: 64, Context: 16, Width: 32, Layers: 2, Heads: 2}, Batch: 4, Seq: 16, Seed: 1, Clip: 1,
		Schedule: nn.Cosine{Peak: 1e-3, Steps: 5}, AdamW: nn.AdamWOptions{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}}
	dev, err := device.Open("host:64MiB")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Calibrate(dev, c, c.Plain())
	if err != nil {
		t.Fatal(err)
	}
	sum, launches, begun := 0.0, 0, false
	null, err := device.OpenNull(device.NullOptions{Capacity: 1 << 30, Virtual: true, OnLaunch: func(l *device.Launch) {
		if !begun { // the model is built
			return
		}
		n := nearest(r.Kernels[l.Kernel.Name], l.Flops, l.Bytes)
		if n == nil || n.Flops != l.Flops || n.Bytes != l.Bytes {
			t.Errorf("%s of %d flops and %d bytes was not measured: %v", l.Kernel.Name, l.Flops, l.Bytes, n)
			return
		}
		sum += n.Seconds
		launches++
	}})
	if err != nil {
		t.Fatal(err)
	}
	peak, reserved, err := task{c: c}.train(null, null, c.Plain(), &books{}, &again{}, func() { sum, launches, begun = 0, 0, true })
	if err != nil || launches == 0 {
		t.Fatalf("peak %d, reserved %d, %d launches: %v", peak, reserved, launches, err)
	}
	trial, err := Try(dev.Info(), dev.Info().Capacity, c, c.Plain(), Options{Rates: r})
	if err != nil || !near(trial.Seconds, sum) {
		t.Errorf("estimate %v s, launches took %v (%v)", trial.Seconds, sum, err)
	}
	if err := errors.Join(null.Close(), dev.Close()); err != nil {
		t.Error(err)
	}
}

// TestCalibrateFails: a step that does not fit is an error, and leaves nothing.
func TestCalibrateFails(t *testing.T) {
	c := train.Config{Model: "test", GPT2: nn.GPT2Config{Vocab: 64, Context: 64, Width: 64, Layers: 4, Heads: 2}, Batch: 16, Seq: 64, Seed: 1,
		Schedule: nn.Cosine{Peak: 1e-3, Steps: 5}, SGD: nn.SGDOptions{Momentum: 0.9}}
	dev, err := device.Open("host:8MiB")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Calibrate(dev, c, c.Plain()); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("got error %v", err)
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}
