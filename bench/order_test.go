package bench

import (
	"cmp"
	"flag"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/plan"
)

var (
	orderModels = flag.String("order", "", "models for TestOrder: all, or some of those of -budgets")
	orderParts  = flag.String("order-parts", "80,60,40,30,20", "budgets of TestOrder's plans, in percent of the plain step's peak")
)

// TestOrder asks whether the planner knows which strategy is faster, and by how
// much. It runs the plain step, what was planned for several budgets, and fixed
// recipes turn by turn, and prints the time that rates measured before foretell,
// the median measured, and how many pairs have the order foretold.
//
// The device has one worker and time is the process's on processors, which
// other work on the machine lengthens less than it does the wall's.
func TestOrder(t *testing.T) {
	if *orderModels == "" {
		t.Skip("no -order")
	}
	names := strings.Split(*orderModels, ",")
	if *orderModels == "all" {
		names = []string{"gpt2-mini", "bert", "resnet", "moe"}
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) { testOrder(t, name) })
	}
}

func testOrder(t *testing.T, name string) {
	dev, err := device.OpenHost(device.HostOptions{Capacity: 4 << 30, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	clock := func() time.Duration { return time.Duration(1e9 * processorTime()) }
	g := group{t: t, c: budgetConfig(t, name), info: dev.Info(), clock: clock, workers: 1}
	g.o = plan.Options{Rates: calibrate(t, clock, dev, g.c), Work: 300_000}
	plain, err := plan.Try(g.info, g.info.Capacity, g.c, g.c.Plain(), g.o)
	if err != nil {
		t.Fatal(err)
	}
	g.add(plain, "plain", g.info.Capacity)
	g.recipe("every block", everyBlock)
	g.recipe("√N segments", segments)
	for _, percent := range percents(t, *orderParts) {
		g.percent, g.info = percent, withBudget(dev.Info(), percent, plain)
		g.plan(fmt.Sprintf("planned, %g %%", percent), g.o)
	}
	g.measure()
	g.order()
}

// order prints a line for each entry, and how the orders agree.
func (g *group) order() {
	for _, e := range g.entries {
		g.t.Logf("| %s | %s | %.1f ms | %.1f ms | %+.1f %% |", e.name, e.trial.Description, 1e3*e.trial.Seconds, 1e3*e.seconds(), 100*(e.trial.Seconds/e.seconds()-1))
	}
	tau, wrong := g.agreement()
	g.t.Logf("load %s; Kendall's tau %.2f; pairs surely in the wrong order: %d", loadAverage(), tau, wrong)
}

// agreement compares all pairs: Kendall's rank correlation between estimates
// and medians, and how many pairs are in the wrong order in so many of the
// rounds that it is no noise.
func (g *group) agreement() (tau float64, wrong int) {
	sum, pairs := 0, 0
	for i, a := range g.entries {
		for _, b := range g.entries[:i] {
			pairs++
			foretold := cmp.Compare(a.trial.Seconds, b.trial.Seconds)
			sum += foretold * cmp.Compare(a.seconds(), b.seconds())
			if foretold*a.slower(b) <= -surely(len(a.took)) {
				wrong++
				g.t.Logf("%s and %s are in the wrong order: %.3f foretold, %.3f measured", a.name, b.name, a.trial.Seconds/b.trial.Seconds, a.seconds()/b.seconds())
			}
		}
	}
	return float64(sum) / float64(pairs), wrong
}

// slower is in how many more rounds e took longer than o than it took less.
func (e *entry) slower(o *entry) (n int) {
	for i, seconds := range e.took {
		n += cmp.Compare(seconds, o.took[i])
	}
	return n
}

// surely is the majority among so many rounds that comes about by chance in one
// of 25 cases (nine rounds: eight against one).
func surely(rounds int) int { return int(math.Ceil(2 * math.Sqrt(float64(rounds)))) }
