package watch

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headroom-go/headroom/internal/size"
)

// machine is a simulated machine with a clock of its own. It is a Source: each
// scan comes every after the one before.
type machine struct {
	now     time.Time
	every   time.Duration
	gpus    []*gpu
	failure string // of the whole query
}

type gpu struct {
	Device
	left      uint64 // held by nobody
	processes []*program
	failure   string
	hidden    string
}

type program struct {
	Process
	rate uint64 // bytes a minute
}

func newMachine() *machine {
	return &machine{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), every: 10 * time.Second}
}

func (m *machine) Scan(context.Context) (Scan, error) {
	m.now = m.now.Add(m.every)
	s := Scan{Time: m.now, Error: m.failure}
	for _, g := range m.gpus {
		d := g.Device
		d.UsedBytes = g.left
		for _, p := range g.processes {
			if !p.Dead {
				p.Bytes += uint64(float64(p.rate) * m.every.Minutes())
			}
			d.Processes = append(d.Processes, p.Process)
			d.UsedBytes += p.Bytes
		}
		d.UsedBytes = min(d.UsedBytes, d.TotalBytes)
		d.FreeBytes = d.TotalBytes - d.UsedBytes
		d.Error, d.ProcessesError = g.failure, g.hidden
		if m.failure == "" {
			s.Devices = append(s.Devices, d)
		}
	}
	return s, nil
}

func (g *gpu) find(pid int) int {
	return slices.IndexFunc(g.processes, func(p *program) bool { return p.PID == pid })
}

// do carries out a command that changes the machine.
func (m *machine) do(words []string) error {
	bytesAt := func(i int) uint64 {
		n, err := size.Parse(words[i])
		if err != nil {
			panic(err)
		}
		return n
	}
	number := func(i int) int {
		n, err := strconv.Atoi(words[i])
		if err != nil {
			panic(err)
		}
		return n
	}
	instance := 0
	rest := func(i int) string { return strings.Join(words[i:], " ") }
	switch words[0] {
	case "gpu": // gpu INDEX SIZE, or gpu INDEX.INSTANCE SIZE
		g := &gpu{Device: Device{UUID: "GPU-" + words[1], Name: "Simulated", TotalBytes: bytesAt(2), Utilisation: new(0)}}
		if n, _ := fmt.Sscanf(words[1], "%d.%d", &g.Index, &instance); n == 2 {
			g.Instance, g.Utilisation = new(instance), nil
		}
		m.gpus = append(m.gpus, g)
		return nil
	case "every": // every TIME
		var err error
		m.every, err = time.ParseDuration(words[1])
		return err
	case "fail": // fail REASON…: the whole query
		m.failure = rest(1)
		return nil
	}
	i := slices.IndexFunc(m.gpus, func(g *gpu) bool { return g.UUID == "GPU-"+words[1] })
	g := m.gpus[i]
	switch words[0] {
	case "start": // start GPU PID SIZE USER COMMAND…
		g.processes = append(g.processes, &program{Process: Process{PID: number(2), Bytes: bytesAt(3), Owner: Owner{User: words[4], Command: rest(5)}}})
	case "grow": // grow GPU PID SIZE: every minute
		g.processes[g.find(number(2))].rate = bytesAt(3)
	case "mps": // mps GPU PID: it is under MPS
		g.processes[g.find(number(2))].MPS = true
	case "end": // end GPU PID
		g.processes = slices.Delete(g.processes, g.find(number(2)), g.find(number(2))+1)
	case "die": // die GPU PID: it is listed and keeps its memory
		p := g.processes[g.find(number(2))]
		p.Dead, p.Owner = true, Owner{}
	case "vanish": // vanish GPU PID: it is not listed, and its memory stays
		j := g.find(number(2))
		g.left += g.processes[j].Bytes
		g.processes = slices.Delete(g.processes, j, j+1)
	case "left": // left GPU SIZE: held by nobody
		g.left = bytesAt(2)
	case "busy": // busy GPU PERCENT|?
		g.Utilisation = nil
		if words[2] != "?" {
			g.Utilisation = new(number(2))
		}
	case "hot": // hot GPU DEGREES
		g.Temperature = new(number(2))
	case "break": // break GPU REASON…
		g.failure = rest(2)
	case "hide": // hide GPU REASON…: its processes
		g.hidden = rest(2)
	case "remove": // remove GPU
		m.gpus = slices.Delete(m.gpus, i, i+1)
	default:
		return fmt.Errorf("unknown command %q", words[0])
	}
	return nil
}

// scans lets a watcher see n scans.
func (m *machine) scans(w *Watcher, n int, each func(Scan, []Change)) {
	for range n {
		s, _ := m.Scan(context.Background())
		changes := w.Add(s)
		if each != nil {
			each(s, changes)
		}
	}
}

// run carries out commands that must be right.
func (m *machine) run(t testing.TB, commands ...string) {
	t.Helper()
	for _, c := range commands {
		if err := m.do(strings.Fields(c)); err != nil {
			t.Fatal(err)
		}
	}
}
