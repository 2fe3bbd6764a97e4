package main

import (
	"strings"

	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/internal/spill"
	"github.com/headroom-go/headroom/plan"
)

// awayFlag is memory outside the device: SIZE of the host's memory, or
// SIZE,DIR of a file there. It is empty by default.
type awayFlag struct {
	bytes uint64
	dir   string
}

func (a *awayFlag) String() string {
	switch {
	case a.bytes == 0:
		return ""
	case a.dir == "":
		return size.Exact(a.bytes)
	}
	return size.Exact(a.bytes) + "," + a.dir
}

func (a *awayFlag) Set(text string) (err error) {
	bytes, dir, _ := strings.Cut(text, ",")
	a.dir = dir
	a.bytes, err = size.Parse(bytes)
	return err
}

func (a *awayFlag) Type() string { return "SIZE[,DIR]" }

// options are a search's: rates of copies are those of one core of a server,
// to memory and to a file on a local disk.
func (a *awayFlag) options() plan.Options {
	switch {
	case a.bytes == 0:
		return plan.Options{}
	case a.dir == "":
		return plan.Options{Away: plan.Away{Bytes: a.bytes, OutBytesPerSecond: 5e9, BackBytesPerSecond: 5e9}}
	}
	return plan.Options{Away: plan.Away{Bytes: a.bytes, OutBytesPerSecond: 1e9, BackBytesPerSecond: 2e9}}
}

// open gives the memory.
func (a *awayFlag) open() (*spill.Place, error) {
	if a.dir == "" {
		return spill.Memory(a.bytes)
	}
	return spill.File(a.dir, a.bytes)
}
