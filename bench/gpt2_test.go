package bench

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/train"
)

// The job: GPT-2 124M in float32.
const (
	batch = 4
	seq   = 64
	steps = 8
)

// child, in the environment, makes the test program train GPT-2 if it is
// "train", another model if it is "bert" or "resnet", or read the snapshot that
// it names, and exit.
const child = "HEADROOM_BENCH_CHILD"

func TestMain(m *testing.M) {
	run := readSnapshot
	switch os.Getenv(child) {
	case "":
		os.Exit(m.Run())
	case "train":
		run = trainGPT2
	case "bert":
		run = func() error { return trainModel(bertJob) }
	case "resnet":
		run = func() error { return trainModel(resnetJob) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// trainGPT2 prints what gpt2_step.py prints.
func trainGPT2() error {
	dev, err := device.Open("host:6GiB")
	if err != nil {
		return err
	}
	g, err := nn.LookupGPT2("gpt2")
	if err != nil {
		return err
	}
	c := train.Config{Model: "gpt2", GPT2: g, Batch: batch, Seq: seq, Seed: 1, Clip: 1, Schedule: nn.Cosine{Peak: 1e-4, Steps: steps},
		AdamW: nn.AdamWOptions{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1}}
	t, err := train.New(dev, c, c.Plain())
	if err != nil {
		return err
	}
	x, y := make([]int32, batch*seq), make([]int32, batch*seq)
	for range steps {
		for i := range x {
			x[i], y[i] = rand.Int32N(int32(g.Vocab)), rand.Int32N(int32(g.Vocab))
		}
		start := time.Now()
		if _, err := t.Step(x, y); err != nil {
			return err
		}
		fmt.Println(time.Since(start).Seconds())
	}
	if err := printMaxRSS(); err != nil {
		return err
	}
	return t.Close()
}

// BenchmarkGPT2Step runs both programs one after the other and reports the
// median of the steps after the first two.
func BenchmarkGPT2Step(b *testing.B) {
	python, err := pythonWithTorch()
	b.Run("headroom", func(b *testing.B) {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), child+"=train")
		measure(b, cmd)
	})
	b.Run("pytorch", func(b *testing.B) {
		if err != nil {
			b.Skip(err)
		}
		cmd := exec.Command(python, "gpt2_step.py", fmt.Sprint(batch), fmt.Sprint(seq), fmt.Sprint(steps), fmt.Sprint(runtime.NumCPU()))
		cmd.Env = peerEnv()
		measure(b, cmd)
	})
}

// peerEnv is the environment in which the peers are at their best.
func peerEnv() []string {
	env := slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "OPENBLAS_") })
	return append(env, "OMP_WAIT_POLICY=PASSIVE")
}

func pythonWithTorch() (string, error) {
	for _, p := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(p, "-c", "import torch").Run() == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("no python3 with torch: apt-get install python3-torch")
}

func measure(b *testing.B, cmd *exec.Cmd) {
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		b.Fatal(err)
	}
	var seconds []float64
	lines := bufio.NewScanner(strings.NewReader(string(out)))
	for lines.Scan() {
		if rss, ok := strings.CutPrefix(lines.Text(), "maxrss "); ok {
			bytes, err := strconv.ParseFloat(rss, 64)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(bytes/1e6, "MB-maxrss")
			continue
		}
		s, err := strconv.ParseFloat(lines.Text(), 64)
		if err != nil {
			b.Fatal(err)
		}
		seconds = append(seconds, s)
	}
	seconds = seconds[2:]
	slices.Sort(seconds)
	b.ReportMetric(seconds[len(seconds)/2], "s/step")
	b.ReportMetric(0, "ns/op")
}

// printMaxRSS ends what a child prints: the most memory that it had resident.
func printMaxRSS() error {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return err
	}
	fmt.Println("maxrss", usage.Maxrss*1024)
	return nil
}
