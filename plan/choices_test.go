package plan_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/train"
)

// wordy is a step whose logits are most of its memory: 23 MiB of them.
func wordy() train.Config {
	return config(nn.GPT2Config{Vocab: 6001, Context: 128, Width: 64, Layers: 2, Heads: 2}, 8, 128)
}

// oneCore is quick by the rates of one core, so that choices are the same everywhere.
func oneCore() plan.Options {
	o := quick
	o.Rates = plan.HostRates(1)
	return o
}

// TestLogitsFirst: where logits are what doesn't fit they go in parts, nothing is made
// again, and the peaks are those foretold; the curve begins so, too.
func TestLogitsFirst(t *testing.T) {
	c := wordy()
	info := device.Info{Capacity: 1 << 30, Granularity: 2 << 20, Virtual: true}
	roomy, err := plan.Search(context.Background(), info, c, quick)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := device.Open("host:" + size.Exact(roomy.Plain.ReservedBytes-4<<20))
	if err != nil {
		t.Fatal(err)
	}
	p, err := plan.Search(context.Background(), dev.Info(), c, oneCore())
	if err != nil {
		t.Fatal(err)
	}
	want := c.Plain()
	want.LogitRows = tensor.LogitRows
	if s := p.Chosen.Strategy; s != want {
		t.Errorf("chosen was %q", p.Chosen.Description)
	}
	if peak, reserved := measure(t, dev, c, p.Chosen.Strategy); peak != p.Chosen.PeakBytes || reserved != p.Chosen.ReservedBytes {
		t.Errorf("%s: measured peak %d and reserved %d, predicted %d and %d", p.Chosen.Description, peak, reserved, p.Chosen.PeakBytes, p.Chosen.ReservedBytes)
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
	points, err := plan.Curve(context.Background(), info, c, c.Batch, 2, oneCore())
	if err != nil || len(points) < 2 || points[1].Strategy != want {
		t.Errorf("the curve has %+v (%v)", points, err)
	}
}

// TestLogitsAlongTensor: ranks whose parts of the vocabulary differ in size have one
// strategy, also where only some would have room for another.
func TestLogitsAlongTensor(t *testing.T) {
	if invariant.Slow {
		t.Skip("checking so many plans takes minutes: TestPredictedIsMeasured plans with invariants")
	}
	p := train.Parallel{Mesh: train.Mesh{Tensor: 2}, Shard: train.ShardState}
	inParts := 0
	for _, budget := range []string{"host:14MiB", "host:22MiB"} {
		kinds := predicted(t, wordy(), 2, budget, p)
		t.Logf("%s: %v", budget, kinds)
		if len(kinds) != 1 {
			t.Errorf("%s: ranks have %v", budget, kinds)
		}
		for kind := range kinds {
			if strings.Contains(kind, "logits of") {
				inParts++
			}
		}
	}
	if inParts != 1 {
		t.Errorf("logits go in parts for %d of 2 budgets", inParts)
	}
}

// TestSearchPrecision: a GPU computes in bfloat16, a host in float32 unless only the
// other fits; the plan says which, and its file is of that.
func TestSearchPrecision(t *testing.T) {
	c := config(nn.GPT2Config{Vocab: 256, Context: 1024, Width: 64, Layers: 6, Heads: 4}, 1, 1024)
	search := func(info device.Info, capacity uint64) (*plan.Plan, error) {
		info.Capacity = capacity
		return plan.SearchPrecision(context.Background(), info, c, quick)
	}
	host := device.Info{Granularity: 2 << 20, Virtual: true}
	gpu := device.Info{Kind: device.CUDA, Granularity: 2 << 20, Virtual: true, Alias: true}
	for _, v := range []struct {
		info device.Info
		want tensor.DType
	}{{host, tensor.Float32}, {gpu, tensor.BFloat16}} {
		if p, err := search(v.info, 1<<30); err != nil || p.Precision != v.want {
			t.Errorf("%v: %v (%v), want %s", v.info.Kind, p, err, v.want)
		}
	}
	var small *plan.TooSmallError
	if _, err := search(host, 2<<20); !errors.As(err, &small) || !strings.Contains(err.Error(), "in bfloat16") {
		t.Fatalf("got error %v", err)
	}
	p, err := search(host, small.LeastBytes)
	if err != nil || p.Precision != tensor.BFloat16 {
		t.Fatalf("with the least that was named: %v (%v)", p, err)
	}
	path := filepath.Join(t.TempDir(), "plan.json")
	if err := p.Write(path); err != nil {
		t.Fatal(err)
	}
	read, err := plan.Read(path)
	if err != nil || read.Precision != tensor.BFloat16 {
		t.Fatalf("the file has %v (%v)", read, err)
	}
	host.Capacity = small.LeastBytes
	if err := read.For(host, c); err == nil || !strings.Contains(err.Error(), "steps in bfloat16, not in float32") {
		t.Errorf("for float32: %v", err)
	}
	if c.Precision = tensor.BFloat16; read.For(host, c) != nil {
		t.Errorf("for bfloat16: %v", read.For(host, c))
	}
}
