package bench

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/train"
)

var (
	curveDevice = flag.String("curve", "", "device on which TestCurve trains beside PyTorch on GPU 0, such as cuda:0,8GiB")
	curveModel  = flag.String("curve-model", "gpt2", "GPT-2 that TestCurve trains")
	curveTokens = flag.String("curve-tokens", "", "file of tokens (little-endian uint16) for TestCurve")
)

const curveSteps, curveWarmup = 200, 20

// curve is curve.json, from which PyTorch builds the same model.
type curve struct {
	Layers  int     `json:"layers"`
	Heads   int     `json:"heads"`
	Width   int     `json:"width"`
	Context int     `json:"context"`
	Batch   int     `json:"batch"`
	Seq     int     `json:"seq"`
	Rate    float64 `json:"rate"`
	Warmup  int     `json:"warmup"` // steps until the rate is reached
}

// TestCurve trains GPT-2 for 200 steps from the same weights on the same
// batches: Headroom in float32 and bfloat16, PyTorch in float32 once and in
// bfloat16 twice. It prints how far the losses are from each other. Rounding
// to 16 bits is what a precision costs: Headroom's bfloat16 may be no farther
// from its float32 than PyTorch's is from its own.
func TestCurve(t *testing.T) {
	if *curveDevice == "" || *curveTokens == "" {
		t.Skip("SKIPPED: -curve and -curve-tokens are not given")
	}
	g, err := nn.LookupGPT2(*curveModel)
	if err != nil {
		t.Fatal(err)
	}
	c := curve{g.Layers, g.Heads, g.Width, g.Context, 8, min(256, g.Context), 3e-4, curveWarmup}
	dir := t.TempDir()
	batches := writeCurve(t, dir, c)
	ours := trainCurve(t, dir, g, c, batches, tensor.Float32)
	ours16 := trainCurve(t, dir, g, c, batches, tensor.BFloat16)
	theirs := peerCurve(t, dir, "float32")
	theirs16, again := peerCurve(t, dir, "bfloat16"), peerCurve(t, dir, "bfloat16")
	fmt.Printf("losses, first and last: Headroom %.4f %.4f (bfloat16 %.4f %.4f), PyTorch %.4f %.4f (bfloat16 %.4f %.4f)\n",
		ours[0], ours[curveSteps-1], ours16[0], ours16[curveSteps-1], theirs[0], theirs[curveSteps-1], theirs16[0], theirs16[curveSteps-1])
	fmt.Println("| difference of losses over 200 steps | mean | greatest |\n|---|---|---|")
	for _, d := range []struct {
		name string
		a, b []float64
	}{
		{"Headroom and PyTorch, float32", ours, theirs},
		{"Headroom bfloat16 and its float32", ours16, ours},
		{"PyTorch bfloat16 and its float32", theirs16, theirs},
		{"Headroom and PyTorch, bfloat16", ours16, theirs16},
		{"PyTorch bfloat16, two runs", theirs16, again},
	} {
		mean, most := apart(d.a, d.b)
		fmt.Printf("| %s | %.5f | %.5f |\n", d.name, mean, most)
	}
	own, _ := apart(ours16, ours)
	peer, _ := apart(theirs16, theirs)
	if own > 1.5*peer+1e-4 {
		t.Errorf("bfloat16 is %.5f from float32 in the mean; PyTorch's is %.5f", own, peer)
	}
}

// apart is the mean and the greatest distance of two curves.
func apart(a, b []float64) (mean, most float64) {
	for i := range a {
		d := math.Abs(a[i] - b[i])
		mean, most = mean+d/float64(len(a)), max(most, d)
	}
	return mean, most
}

// writeCurve writes what both programs read, and gives inputs and targets of
// each step in turn.
func writeCurve(t *testing.T, dir string, c curve) [][]int32 {
	t.Helper()
	raw, err := os.ReadFile(*curveTokens)
	if err != nil {
		t.Fatal(err)
	}
	if len(raw)/2 <= c.Seq+1 {
		t.Fatalf("%s has %d tokens: want more than %d", *curveTokens, len(raw)/2, c.Seq+1)
	}
	var batches [][]int32
	var file []byte
	for at := 0; len(batches) < 2*curveSteps; {
		x, y := make([]int32, 0, c.Batch*c.Seq), make([]int32, 0, c.Batch*c.Seq)
		for range c.Batch {
			if at+c.Seq+1 > len(raw)/2 {
				at = 0
			}
			for i := range c.Seq {
				x = append(x, int32(binary.LittleEndian.Uint16(raw[2*(at+i):])))
				y = append(y, int32(binary.LittleEndian.Uint16(raw[2*(at+i+1):])))
			}
			at += c.Seq
		}
		for _, n := range append(x, y...) {
			file = binary.LittleEndian.AppendUint32(file, uint32(n))
		}
		batches = append(batches, x, y)
	}
	settings, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"batches.bin": file, "curve.json": settings} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return batches
}

// trainCurve trains Headroom's model and gives its losses. The weights that
// the model begins with are written for PyTorch.
func trainCurve(t *testing.T, dir string, g nn.GPT2Config, c curve, batches [][]int32, precision tensor.DType) []float64 {
	t.Helper()
	dev, err := device.Open(*curveDevice)
	if err != nil {
		t.Fatal(err)
	}
	config := train.Config{Model: *curveModel, GPT2: g, Batch: c.Batch, Seq: c.Seq, Seed: 1, Clip: 1, Precision: precision,
		Schedule: nn.Cosine{Peak: c.Rate, Floor: c.Rate, Warmup: c.Warmup, Steps: curveSteps}, AdamW: nn.AdamWOptions{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}}
	run, err := train.New(dev, config, config.Plain())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(run.Save(dir, train.State{}), train.Export(dir)); err != nil {
		t.Fatal(err)
	}
	losses := make([]float64, curveSteps)
	for i := range losses {
		r, err := run.Step(batches[2*i], batches[2*i+1])
		if err != nil {
			t.Fatal(err)
		}
		losses[i] = r.Loss
	}
	if err := run.Close(); err != nil {
		t.Fatal(err)
	}
	return losses
}

// peerCurve gives PyTorch's losses.
func peerCurve(t *testing.T, dir, precision string) (losses []float64) {
	t.Helper()
	cmd := exec.Command("python3", "curve_step.py", dir, precision)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Fields(string(out)) {
		loss, err := strconv.ParseFloat(line, 64)
		if err != nil {
			t.Fatal(err)
		}
		losses = append(losses, loss)
	}
	if len(losses) != curveSteps {
		t.Fatalf("PyTorch gave %d losses", len(losses))
	}
	return losses
}
