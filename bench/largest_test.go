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
	largestSteps = flag.Int("largest-steps", 6, "steps that Headroom trains in TestLargest, the first four to warm up")
)

// largestJob is a job whose largest batch is looked for: by headroom plan --max-batch
// and train or, with --batch auto, by train alone, or by gpu_step.py.
type largestJob struct {
	name, ours, theirs string // arguments of Headroom's and of PyTorch's program
	settings           string // of PyTorch's allocator
}

// planned says whether the job has a plan.
func (j *largestJob) planned() bool {
	return j.ours != "" && !strings.Contains(j.ours, "--batch auto")
}

var largestJobs = []largestJob{
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
			if !only.MatchString(name) || *largestOnly && !job.planned() {
				continue
			}
			var r gpuResult
			if job.ours != "" {
				r, err = largestOurs(t.TempDir(), budget, &job)
			} else {
				r, err = largestTheirs(budget, &job)
			}
			printLargest(name, r, err)
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

// largestTheirs lets gpu_step.py find the batch and measure the step.
func largestTheirs(budget string, job *largestJob) (r gpuResult, err error) {
	n, err := sizes.Parse(budget)
	if err != nil {
		return r, err
	}
	cmd := exec.Command("python3", append([]string{"gpu_step.py", "bert-large", "--seq", "512", "--steps", "5", "--largest", fmt.Sprint(n)}, strings.Fields(job.theirs)...)...)
	cmd.Env = append(os.Environ(), "PYTORCH_ALLOC_CONF="+job.settings)
	err = lastJSON(cmd, &r)
	return r, err
}

// largestOurs trains with the plan for the largest batch.
func largestOurs(dir, budget string, job *largestJob) (r gpuResult, err error) {
	args := "--model bert-large --seq 512 " + job.ours
	if job.planned() {
		file, p, err := largestPlan(budget, args)
		if err != nil {
			return r, err
		}
		batch := p.Chosen.Strategy.MicroBatch
		if *largestOnly {
			return gpuResult{Batch: batch, predicted: p.Chosen.PeakBytes + largestWorkspace, strategy: p.Chosen.Description}, nil
		}
		args += fmt.Sprintf(" --batch %d --plan %s", batch, file)
	}
	r, err = runHeadroom(dir, &gpuRow{name: "bert-large", args: args, steps: *largestSteps, warm: 4}, budget)
	if err == nil && r.microBatch != r.Batch {
		err = fmt.Errorf("the batch of %d was cut into micro-batches of %d", r.Batch, r.microBatch)
	}
	return r, err
}

// largestWorkspace is what a GPU's device keeps of such budgets for its kernels.
const largestWorkspace = 256 << 20

// largestPlan reads the plan for the largest batch, which headroom plan makes if there
// is none yet: without a GPU for one of the same capacity, by the rates of GPUs.
func largestPlan(budget, args string) (file string, p *plan.Plan, err error) {
	file = filepath.Join(*largestPlans, strings.ReplaceAll(budget+" "+args, " ", "_")+".json")
	if _, err := os.Stat(file); err == nil {
		p, err = plan.Read(file)
		return file, p, err
	}
	n, err := sizes.Parse(budget)
	if err != nil {
		return "", nil, err
	}
	rates, known := filepath.Join(*largestPlans, "rates.json"), plan.CUDARates()
	known.Device = "GPUs"
	if err := known.Write(rates); err != nil {
		return "", nil, err
	}
	cmd := exec.Command(*headroom, append([]string{"plan", "--device", "null:" + sizes.Exact(n-largestWorkspace),
		"--rates", rates, "--max-batch", "--out", file}, strings.Fields(args)...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", nil, fmt.Errorf("%w: %s", err, lastLine(out))
	}
	p, err = plan.Read(file)
	return file, p, err
}
