package bench

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	sizes "github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/plan"
)

var (
	largestRows  = flag.String("largest", "", "regular expression of the rows that TestLargest measures on GPU 0, or all")
	largestPlans = flag.String("largest-plans", "", "folder where TestLargest keeps Headroom's plans (default: they are found anew)")
	largestOnly  = flag.Bool("largest-only-plan", false, "make the plans of TestLargest, without a GPU, and no more")
	largestSteps = flag.Int("largest-steps", 3, "steps that Headroom trains in TestLargest, the first to warm up")
)

// largestJobs are the jobs whose largest batch is looked for, by name and arguments:
// of headroom plan and train (with --batch auto of train alone), and of gpu_step.py.
var largestJobs = []struct{ name, ours, theirs, settings string }{
	{name: "Headroom float32, all values kept", ours: "--precision float32 --batch auto"},
	{name: "Headroom float32", ours: "--precision float32"},
	{name: "Headroom float32 --away", ours: "--precision float32 --away 24GiB"},
	{name: "PyTorch float32", theirs: ""},
	{name: "PyTorch float32 checkpointing", theirs: "--checkpoint"},
	{name: "Headroom bfloat16, all values kept", ours: "--precision bfloat16 --batch auto"},
	{name: "Headroom bfloat16", ours: "--precision bfloat16"},
	{name: "Headroom bfloat16 --away", ours: "--precision bfloat16 --away 24GiB"},
	{name: "PyTorch AMP", theirs: "--amp"},
	{name: "PyTorch AMP checkpointing", theirs: "--amp --checkpoint"},
	{name: "PyTorch AMP checkpointing expandable", theirs: "--amp --checkpoint", settings: "expandable_segments:True"},
}

// TestLargest finds the largest batch of BERT-large with 512 tokens, in one piece, that
// is trained in 16 GiB and in 24 GiB of a GPU, and prints the step with it: by Headroom
// with all values kept, with values made again, and with memory of the host as well, and
// by PyTorch, whose allocator is bounded to as much. The context is outside of both.
func TestLargest(t *testing.T) {
	if *largestRows == "" {
		t.Skip("SKIPPED: -largest is not given")
	}
	if *largestRows == "all" {
		*largestRows = ""
	}
	only, err := regexp.Compile(*largestRows)
	if err != nil {
		t.Fatal(err)
	}
	if *largestPlans == "" {
		*largestPlans = t.TempDir()
	}
	buildHeadroom(t)
	fmt.Println("| job | largest batch | step | samples a second | peak | reserved | foretold peak |\n|---|---|---|---|---|---|---|")
	for _, budget := range []string{"16GiB", "24GiB"} {
		for _, job := range largestJobs {
			name := budget + " " + job.name
			if !only.MatchString(name) {
				continue
			}
			if job.ours != "" {
				r, err := largestOurs(t.TempDir(), budget, job.ours)
				printLargest(name, r, err)
			} else if !*largestOnly {
				r, err := largestTheirs(budget, job.theirs, job.settings)
				printLargest(name, r, err)
			}
		}
	}
}

func printLargest(name string, r gpuResult, err error) {
	switch {
	case err != nil:
		fmt.Printf("| %s | %v |\n", name, err)
	case r.OutOfMemory != "":
		fmt.Printf("| %s | %s |\n", name, r.OutOfMemory)
	case r.Seconds == 0: // planned only
		fmt.Printf("| %s | %d | | | | | %.2f (%s) |\n", name, r.Batch, float64(r.predicted)/giB, r.strategy)
	default:
		fmt.Printf("| %s | %d | %.0f ms | %.1f | %.2f GiB | %.2f |", name, r.Batch, r.Seconds*1e3, float64(r.Batch)/r.Seconds, float64(r.PeakBytes)/giB, float64(r.ReservedBytes)/giB)
		if r.predicted != 0 {
			fmt.Printf(" %.2f (%s)", float64(r.predicted)/giB, r.strategy)
		}
		fmt.Println(" |")
	}
}

// largestTheirs lets gpu_step.py find the batch.
func largestTheirs(budget, args, settings string) (r gpuResult, err error) {
	n, err := sizes.Parse(budget)
	if err != nil {
		return r, err
	}
	cmd := exec.Command("python3", append([]string{"gpu_step.py", "bert-large", "--seq", "512", "--steps", "5", "--largest", fmt.Sprint(n)}, strings.Fields(args)...)...)
	cmd.Env = append(os.Environ(), "PYTORCH_ALLOC_CONF="+settings)
	err = lastJSON(cmd, &r)
	return r, err
}

// largestOurs trains with the plan for the largest batch.
func largestOurs(dir, budget, args string) (r gpuResult, err error) {
	if !strings.Contains(args, "--batch auto") {
		file, p, err := largestPlan(budget, args)
		if err != nil {
			return r, err
		}
		if *largestOnly {
			return gpuResult{Batch: p.Chosen.Strategy.MicroBatch, predicted: p.Chosen.PeakBytes + largestWorkspace, strategy: p.Chosen.Description}, nil
		}
		args += fmt.Sprintf(" --batch %d --plan %s", p.Chosen.Strategy.MicroBatch, file)
	} else if *largestOnly {
		return r, fmt.Errorf("train finds it by itself")
	}
	row := gpuRow{name: "bert-large", args: "--model bert-large --seq 512 " + args, steps: *largestSteps, warm: 1}
	return runHeadroom(dir, &row, budget)
}

// largestWorkspace is what a GPU's device keeps of such budgets for its kernels.
const largestWorkspace = 256 << 20

// largestPlan reads the plan for the largest batch, which headroom plan makes if there
// is none yet: without a GPU for one of the same capacity, by the rates of GPUs.
func largestPlan(budget, args string) (file string, p *plan.Plan, err error) {
	file = filepath.Join(*largestPlans, budget+strings.ReplaceAll(args, " ", "")+".json")
	if _, err := os.Stat(file); err == nil {
		p, err = plan.Read(file)
		return file, p, err
	}
	n, err := sizes.Parse(budget)
	if err != nil {
		return "", nil, err
	}
	rates, known := filepath.Join(*largestPlans, "rates.json"), plan.CUDARates()
	if err := known.Write(rates); err != nil {
		return "", nil, err
	}
	cmd := exec.Command(*headroom, append([]string{"plan", "--model", "bert-large", "--seq", "512", "--device", "null:" + sizes.Exact(n-largestWorkspace),
		"--rates", rates, "--max-batch", "--out", file}, strings.Fields(args)...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", nil, fmt.Errorf("%w: %s", err, lastLine(out))
	}
	p, err = plan.Read(file)
	return file, p, err
}
