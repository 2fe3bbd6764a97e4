package bench

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	sizes "github.com/headroom-go/headroom/internal/size"
)

var (
	gpuRows  = flag.String("gpu", "", "regular expression of the rows that TestGPU measures on GPU 0, or all")
	headroom = flag.String("headroom", "", "headroom program for TestGPU (default: it is built)")
)

// gpuRow is one training job: how Headroom runs it, each time in another
// budget, and how PyTorch does.
type gpuRow struct {
	name    string
	args    string // of headroom train
	steps   int    // that Headroom trains, of which some warm up
	warm    int
	budgets []string
	peers   []string // arguments of gpu_step.py
}

var gpuTable = []gpuRow{
	{"gpt2", "--model gpt2 --batch 16 --seq 1024 --precision bfloat16", 20, 5, []string{"6GiB", "4GiB"},
		[]string{"gpt2 --amp --compile", "gpt2 --amp"}},
	{"gpt2-xl", "--model gpt2-xl --batch 4 --seq 1024 --precision bfloat16", 20, 5, []string{"30GiB"},
		[]string{"gpt2-xl --batch 4 --amp", "gpt2-xl --batch 4 --amp --checkpoint"}},
	{"bert-large", "--model bert-large --batch 16 --seq 512 --precision bfloat16", 20, 5, []string{"10GiB", "8GiB", "6656MiB"},
		[]string{"bert-large --seq 512 --amp", "bert-large --seq 512 --amp --checkpoint"}},
	{"resnet152", "--model resnet152 --batch 128 --precision bfloat16", 20, 5, []string{"8GiB", "7GiB", "4GiB"},
		[]string{"resnet152 --batch 128 --amp", "resnet152 --batch 128 --amp --checkpoint"}},
}

// gpuResult is what both programs are asked for. Memory of Headroom's is what
// the step took of the device's budget, with the workspace of its kernels.
type gpuResult struct {
	Batch         int     `json:"batch"`
	Seconds       float64 `json:"seconds"`
	PerSecond     float64 `json:"per_second"` // tokens or images
	PeakBytes     uint64  `json:"peak_bytes"`
	ReservedBytes uint64  `json:"reserved_bytes"`
	OutOfMemory   string  `json:"out_of_memory"`

	predicted  uint64
	strategy   string
	microBatch int
}

// TestGPU trains models on a GPU by headroom train, in several budgets, and by
// PyTorch (gpu_step.py), and prints the median step, the speed and the peaks of
// memory of each.
func TestGPU(t *testing.T) {
	if *gpuRows == "" {
		t.Skip("SKIPPED: -gpu is not given")
	}
	if *gpuRows == "all" {
		*gpuRows = ""
	}
	only, err := regexp.Compile(*gpuRows)
	if err != nil {
		t.Fatal(err)
	}
	buildHeadroom(t)
	fmt.Println("| job | step | tokens or images a second | peak | reserved | foretold peak |\n|---|---|---|---|---|---|")
	for _, row := range gpuTable {
		if !only.MatchString(row.name) {
			continue
		}
		for _, budget := range row.budgets {
			r, err := runHeadroom(t.TempDir(), &row, budget)
			printGPU(row.name+" in "+budget, r, err)
		}
		for _, peer := range row.peers {
			r, err := runPeer(peer)
			printGPU("PyTorch "+peer, r, err)
		}
	}
}

// buildHeadroom builds the program where -headroom does not give one.
func buildHeadroom(t *testing.T) {
	if *headroom != "" {
		return
	}
	*headroom = filepath.Join(t.TempDir(), "headroom")
	build := exec.Command("go", "build", "-o", *headroom, "./cmd/headroom")
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func printGPU(name string, r gpuResult, err error) {
	if err != nil {
		fmt.Printf("| %s | %v |\n", name, err)
		return
	}
	if r.OutOfMemory != "" {
		fmt.Printf("| %s | %s |\n", name, r.OutOfMemory)
		return
	}
	fmt.Printf("| %s | %.1f ms | %.0f | %.2f GiB | %.2f | ", name, r.Seconds*1e3, r.PerSecond, float64(r.PeakBytes)/giB, float64(r.ReservedBytes)/giB)
	if r.predicted != 0 {
		fmt.Printf("%.2f (%s)", float64(r.predicted)/giB, r.strategy)
	}
	fmt.Println(" |")
}

// runPeer runs gpu_step.py.
func runPeer(args string) (r gpuResult, err error) {
	err = lastJSON(exec.Command("python3", append([]string{"gpu_step.py"}, strings.Fields(args)...)...), &r)
	return r, err
}

// lastJSON runs a program and decodes the last line that it prints.
func lastJSON(cmd *exec.Cmd, result any) error {
	out, err := cmd.Output()
	if err == nil {
		return json.Unmarshal([]byte(lastLine(out)), result)
	}
	if e, ok := err.(*exec.ExitError); ok {
		err = fmt.Errorf("%w: %s", err, lastLine(e.Stderr))
	}
	return err
}

func lastLine(b []byte) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return lines[len(lines)-1]
}

// runHeadroom runs headroom train on random data in dir.
func runHeadroom(dir string, row *gpuRow, budget string) (r gpuResult, err error) {
	data, err := randomData(dir, row.name)
	if err != nil {
		return r, err
	}
	run := filepath.Join(dir, "run")
	args := append([]string{"train", "--device", "cuda:0," + budget, "--steps", fmt.Sprint(row.steps), "--data", data, "--out", run}, strings.Fields(row.args)...)
	if row.name == "bert-large" {
		words, err := writeWords(dir)
		if err != nil {
			return r, err
		}
		args = append(args, "--vocab", words)
	}
	if out, err := exec.Command(*headroom, args...).CombinedOutput(); err != nil {
		return r, fmt.Errorf("%w: %s", err, lastLine(out))
	}
	s, err := readSummary(filepath.Join(run, "summary.json"))
	if err != nil {
		return r, err
	}
	given, err := sizes.Parse(budget)
	if err != nil {
		return r, err
	}
	workspace := given - s.BudgetBytes
	r = gpuResult{Batch: s.Batch, PeakBytes: s.MeasuredPeakBytes + workspace, ReservedBytes: s.MeasuredReservedBytes + workspace,
		predicted: s.PredictedPeakBytes + workspace, strategy: s.Strategy, microBatch: s.MicroBatch}
	if r.Seconds, err = medianStep(filepath.Join(run, "metrics.jsonl"), row.warm); err != nil {
		return r, err
	}
	r.PerSecond = float64(max(1, s.Seq)*s.Batch) / r.Seconds
	return r, os.RemoveAll(dir)
}

type gpuSummary struct {
	Batch                 int    `json:"batch"`
	Seq                   int    `json:"seq"`
	BudgetBytes           uint64 `json:"budget_bytes"` // without the workspace
	PredictedPeakBytes    uint64 `json:"predicted_peak_bytes"`
	MeasuredPeakBytes     uint64 `json:"measured_peak_bytes"`
	MeasuredReservedBytes uint64 `json:"measured_reserved_bytes"`
	Strategy              string `json:"strategy"`
	MicroBatch            int    `json:"micro_batch"`
}

func readSummary(file string) (s gpuSummary, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(b, &s)
}

// medianStep leaves out the first steps: of the first five one is recorded.
func medianStep(file string, warm int) (float64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	var took []float64
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		var step struct {
			Seconds float64 `json:"step_seconds"`
		}
		if err := json.Unmarshal(s.Bytes(), &step); err != nil {
			return 0, err
		}
		took = append(took, step.Seconds)
	}
	if len(took) <= warm {
		return 0, fmt.Errorf("%s: only %d steps", file, len(took))
	}
	took = took[warm:]
	slices.Sort(took)
	return took[len(took)/2], nil
}

// randomData writes tokens, or 512 images of 224×224.
func randomData(dir, model string) (string, error) {
	random := rand.New(rand.NewPCG(1, 2))
	if model != "resnet152" {
		const tokens = 1 << 23
		b := make([]byte, 0, 2*tokens)
		for range tokens {
			b = binary.LittleEndian.AppendUint16(b, uint16(random.IntN(30000)))
		}
		file := filepath.Join(dir, "tokens.bin")
		return file, os.WriteFile(file, b, 0o666)
	}
	const images = 512
	pixels, labels := make([]byte, images*3*224*224), make([]byte, images)
	for i := range pixels {
		pixels[i] = byte(random.IntN(256))
	}
	for i := range labels {
		labels[i] = byte(random.IntN(10))
	}
	if err := writeNPY(filepath.Join(dir, "train-images.npy"), pixels, fmt.Sprintf("(%d, 3, 224, 224)", images)); err != nil {
		return "", err
	}
	return dir, writeNPY(filepath.Join(dir, "train-labels.npy"), labels, fmt.Sprintf("(%d,)", images))
}

// writeWords writes a vocabulary of BERT's size.
func writeWords(dir string) (string, error) {
	words := []string{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
	for len(words) < 30522 {
		words = append(words, fmt.Sprintf("w%d", len(words)))
	}
	file := filepath.Join(dir, "vocab.txt")
	return file, os.WriteFile(file, []byte(strings.Join(words, "\n")+"\n"), 0o666)
}

// writeNPY writes bytes in NumPy's format.
func writeNPY(file string, b []byte, shape string) error {
	header := fmt.Sprintf("{'descr': '|u1', 'fortran_order': False, 'shape': %s, }", shape)
	header += strings.Repeat(" ", (64-(len(header)+11)%64)%64) + "\n"
	head := binary.LittleEndian.AppendUint16([]byte("\x93NUMPY\x01\x00"), uint16(len(header)))
	return os.WriteFile(file, slices.Concat(head, []byte(header), b), 0o666)
}
