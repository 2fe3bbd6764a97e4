package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headroom-go/headroom/internal/placement"
	"github.com/headroom-go/headroom/internal/remat"
)

var (
	rematData = flag.String("remat-data", "", "folder with operator logs of DTR's simulator (*.log or *.log.gz)")
	rematSeed = flag.Uint64("remat-seed", 0, "seed of the search")
	rematWork = flag.Int("remat-work", 0, "work of the search; 0: its default")
)

// rematBudgets are parts of the peak without a plan.
var rematBudgets = []float64{.9, .8, .7, .6, .5, .4, .3, .25, .2, .15, .1}

// rematCell is one log at one budget; times are multiples of that without a plan,
// +Inf for none or more than twice.
type rematCell struct{ dtr, plan float64 }

// TestRemat plans operator logs at several budgets and prints, beside the runtime
// of DTR with h_DTR_eq, the time of the plan, its proved bound, the processor time
// of the search and the memory once all values have addresses. Every plan is run
// by the executor and placed within the budget.
func TestRemat(t *testing.T) {
	if *rematData == "" {
		t.Skip("no -remat-data")
	}
	files, err := filepath.Glob(filepath.Join(*rematData, "*.log*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no *.log* (%v)", *rematData, err)
	}
	cells := make([][]rematCell, len(rematBudgets)) // by budget
	for _, f := range files {
		p, err := readDTRLog(f)
		if err != nil {
			t.Fatal(err)
		}
		peak := p.PlainPeak()
		name, _, _ := strings.Cut(filepath.Base(f), ".")
		t.Logf("%s: %d operations, %d values, %.2f GB, %.0f ms", name, len(p.Ops), len(p.Values), float64(peak)/1e9, float64(p.PlainCost())/1e6)
		t.Logf("budget  DTR_eq    plan   bound  seconds  placed÷budget")
		for i, r := range rematBudgets {
			c := rematRow(t, p, r, int64(float64(peak)*r))
			cells[i] = append(cells[i], c)
			if c.plan > c.dtr {
				t.Errorf("%s at %.2f: the plan takes longer than DTR_eq", name, r)
			}
		}
	}
	rematMeans(t, cells)
}

// rematRow plans p within the budget and prints a line.
func rematRow(t *testing.T, p *remat.Program, ratio float64, budget int64) rematCell {
	c := rematCell{math.Inf(1), math.Inf(1)}
	if extra, ok := remat.DTR(p, budget); ok {
		c.dtr = 1 + float64(extra)/float64(p.PlainCost())
	}
	o := remat.Options{Seed: *rematSeed, Work: *rematWork}
	start := userTime(t)
	plan, err := remat.Solve(t.Context(), p, budget, o)
	seconds := userTime(t) - start
	var none *remat.NoPlanError
	if errors.As(err, &none) {
		t.Logf("%.2f   %s       -          %7.2f", ratio, overhead(c.dtr), seconds)
		return c
	}
	if err == nil {
		err = plan.Check(p)
	}
	if err != nil {
		t.Fatal(err)
	}
	if plan.Overhead() <= 2 {
		c.plan = plan.Overhead()
	}
	placed, err := place(t.Context(), p, plan)
	if err != nil {
		t.Fatal(err)
	}
	again := ""
	if placed > budget {
		again = rematPlaced(t, p, budget, o)
	}
	t.Logf("%.2f   %s  %.3f   %.3f  %7.2f  %.4f %s", ratio, overhead(c.dtr), plan.Overhead(),
		1+float64(plan.Lower)/float64(plan.Plain), seconds, float64(placed)/float64(budget), again)
	return c
}

// rematPlaced plans again so that the placed plan fits.
func rematPlaced(t *testing.T, p *remat.Program, budget int64, o remat.Options) string {
	var placed int64
	o.Placed = func(pl *remat.Plan) (int64, error) {
		var err error
		placed, err = place(t.Context(), p, pl)
		return placed, err
	}
	plan, err := remat.Solve(t.Context(), p, budget, o)
	if err == nil {
		err = plan.Check(p)
	}
	if err != nil {
		return fmt.Sprintf("(no room for placement: %v)", err)
	}
	return fmt.Sprintf("(with room for placement: %.3f, %.4f)", plan.Overhead(), float64(placed)/float64(budget))
}

// place returns the least bytes that the plan is found to take up with addresses, in
// up to five seconds.
func place(ctx context.Context, p *remat.Program, plan *remat.Plan) (int64, error) {
	var bs []placement.Buffer
	for _, l := range plan.Lifetimes(p) {
		if l.Bytes > 0 {
			bs = append(bs, placement.Buffer{Lower: l.First, Upper: l.Last + 1, Size: uint64(l.Bytes)})
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	placed, err := placement.Solve(ctx, bs, placement.Options{Capacity: uint64(plan.Budget), Work: 1e8})
	if err != nil && !errors.As(err, new(*placement.ConflictError)) {
		return 0, err
	}
	return int64(placed.Peak), placement.Validate(bs, placed)
}

// rematMeans prints geometric means over the logs that DTR_eq can run at the
// budget, and the extra time of the plans as a part of DTR_eq's over all cells.
func rematMeans(t *testing.T, cells [][]rematCell) {
	var parts, n float64
	for i, r := range rematBudgets {
		var dtr, plan, k float64
		for _, c := range cells[i] {
			if !math.IsInf(c.dtr, 1) {
				dtr, plan, k = dtr+math.Log(c.dtr), plan+math.Log(c.plan), k+1
				if c.dtr > 1 {
					parts, n = parts+(c.plan-1)/(c.dtr-1), n+1
				}
			}
		}
		if k > 0 {
			t.Logf("%.2f: geometric mean over %.0f logs: DTR_eq %.4f, plan %.4f", r, k, math.Exp(dtr/k), math.Exp(plan/k))
		}
	}
	t.Logf("extra time ÷ DTR_eq's over %.0f cells: %.3f", n, parts/n)
}

func overhead(x float64) string {
	if math.IsInf(x, 1) {
		return "  -  "
	}
	return fmt.Sprintf("%.3f", x)
}

// userTime is the processor time spent by the program so far, in seconds.
func userTime(t *testing.T) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return float64(u.Utime.Sec) + float64(u.Utime.Usec)/1e6
}
