package bench

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/train"
)

var (
	layoutModels = flag.String("layouts", "", "models for TestLayouts: some of those of -budgets")
	layoutRanks  = flag.Int("layouts-ranks", 2, "ranks of TestLayouts, in this process, with one worker each")
)

// TestLayouts asks whether the planner knows which layout is faster. For every
// layout of some ranks it prints the time that rates measured before on one device
// foretell, and the median of steps that all layouts take in turn. Ranks must have
// a processor each.
func TestLayouts(t *testing.T) {
	if *layoutModels == "" {
		t.Skip("no -layouts")
	}
	for name := range strings.SplitSeq(*layoutModels, ",") {
		t.Run(name, func(t *testing.T) { testLayouts(t, budgetConfig(t, name)) })
	}
}

func testLayouts(t *testing.T, c train.Config) {
	dev := oneWorker(t)
	defer dev.Close()
	info, o := dev.Info(), plan.Options{Rates: calibrate(t, wallTime, dev, c)}
	alone, err := plan.Try(info, info.Capacity, c, c.Plain(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("load %s; one rank: %.1f ms by the estimate", loadAverage(), 1e3*alone.Seconds)
	layouts, err := plan.Layouts(c, *layoutRanks, train.Parallel{})
	if err != nil {
		t.Fatal(err)
	}
	g := group{t: t}
	var teams []*team
	for _, l := range layouts {
		m, e := openTeam(t, c, l, info, o)
		defer m.close()
		teams, g.entries = append(teams, m), append(g.entries, e)
	}
	random := rand.New(rand.NewPCG(7, 0))
	for range 1 + *budgetRounds {
		for i, m := range teams {
			g.entries[i].took = append(g.entries[i].took, m.step(random).Seconds())
		}
	}
	for _, e := range g.entries {
		e.took = e.took[1:]
	}
	g.order()
}

func oneWorker(t *testing.T) device.Device {
	t.Helper()
	dev, err := device.OpenHost(device.HostOptions{Capacity: 4 << 30, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

// team is the ranks of a layout.
type team struct {
	t        *testing.T
	c        train.Config // of a place
	mesh     train.Mesh
	groups   []dist.Group
	devices  []device.Device
	trainers []*train.Trainer
}

// openTeam makes the ranks of l, and foretells their time. A pipeline computes
// micro-batches of an eighth, all others the whole batch at once.
func openTeam(t *testing.T, c train.Config, l plan.Layout, info device.Info, o plan.Options) (*team, *entry) {
	t.Helper()
	m := &team{t: t, mesh: l.Mesh, groups: dist.Local(*layoutRanks, dist.Options{})}
	var err error
	if m.c, err = c.Share(l.Data * l.Mesh.Expert); err != nil {
		t.Fatal(err)
	}
	s, p := m.c.Plain(), train.Parallel{Mesh: l.Mesh, Shard: l.Shard}
	if l.Mesh.Pipeline > 1 {
		s.MicroBatch = max(1, m.c.Batch/8)
	}
	e := &entry{name: fmt.Sprintf("pipeline %d, data %d, expert %d, tensor %d, ZeRO stage %d", l.Mesh.Pipeline, l.Data, l.Mesh.Expert, l.Mesh.Tensor, l.Shard)}
	m.trainers = make([]*train.Trainer, len(m.groups))
	for i := range m.groups {
		m.devices = append(m.devices, oneWorker(t))
		o.Parallel = p
		o.Parallel.Group = dist.Null(i, len(m.groups))
		trial, err := plan.Try(info, info.Capacity, m.c, s, o)
		if err != nil {
			t.Fatal(err)
		}
		if trial.Seconds *= p.Stretch(m.c.Batch / s.MicroBatch); trial.Seconds >= e.trial.Seconds {
			e.trial = trial
		}
	}
	m.together(func(i int) (err error) {
		p := p
		p.Group = m.groups[i]
		m.trainers[i], err = train.NewParallel(m.devices[i], m.c, s, p)
		return err
	})
	return m, e
}

// together calls f for every rank at the same time.
func (m *team) together(f func(i int) error) {
	m.t.Helper()
	var ended sync.WaitGroup
	for i := range m.groups {
		ended.Go(func() {
			if err := f(i); err != nil {
				m.groups[i].Fail(err)
				m.t.Errorf("rank %d: %v", i, err)
			}
		})
	}
	if ended.Wait(); m.t.Failed() {
		m.t.FailNow()
	}
}

// step is how long all ranks take for one. Those that are no places have the samples
// of their neighbours; here all have the same.
func (m *team) step(random *rand.Rand) time.Duration {
	batch, start := numbers(m.c, random), time.Now()
	m.together(func(i int) error {
		_, err := m.trainers[i].Step(batch...)
		return err
	})
	return time.Since(start)
}

func (m *team) close() {
	m.together(func(i int) error {
		return errors.Join(m.trainers[i].Close(), m.groups[i].Close(), m.devices[i].Close())
	})
}
