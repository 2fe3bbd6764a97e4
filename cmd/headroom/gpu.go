package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/trace"
)

// gpuFlag says which device of a snapshot a command is about: the one that the
// user names or, without a name, the one that ran out of memory or has the
// highest peak.
type gpuFlag struct {
	gpu   int
	given func() bool
	note  string // which one it was, where there are several
}

func (g *gpuFlag) add(fl *pflag.FlagSet) {
	fl.IntVar(&g.gpu, "gpu", 0, "number of the device to look at (default: the one that ran out of memory, or else has the highest peak)")
	g.given = func() bool { return fl.Changed("gpu") }
}

// choose gives the device's history.
func (g *gpuFlag) choose(s *trace.Snapshot) (*inspect.History, error) {
	all := inspect.Devices(s)
	if g.given() && !slices.Contains(all, g.gpu) {
		return nil, usagef("--gpu %d is not in the snapshot, which tells of %s", g.gpu, list(all))
	}
	var h *inspect.History
	var err error
	if g.given() {
		h = inspect.NewHistory(s, g.gpu)
	} else if h, err = inspect.Worst(s); err != nil {
		return nil, err
	}
	if len(all) > 1 {
		g.note = fmt.Sprintf("GPU %d (the file tells of %s; --gpu picks another)", h.Device(), list(all))
	}
	return h, nil
}

// say prints which device it was, where there are several, after a text.
func (g *gpuFlag) say(p *page, of string) {
	if g.note != "" {
		p.line(plain, "%s%s", of, g.note)
	}
}

// list names devices, as long as they are few.
func list(devices []int) string {
	const few = 16
	switch n := len(devices); {
	case n == 0:
		return "none"
	case n > few:
		return fmt.Sprintf("%d devices", n)
	}
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(devices), "[]"), " ", ", ")
}
