package main

import (
	"runtime"
	"strings"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/internal/spill"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/train"
)

// awayFlag is memory outside the device: SIZE of the host's memory, or
// SIZE,DIR of a file there. It is empty by default.
type awayFlag struct {
	bytes uint64
	dir   string
	as    string // --away-as
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

// options are a search's for a device. Rates of copies to its memory are those
// of one core of a server, or beside a GPU of sixteen lanes of PCI Express 3, the
// slowest that serve one; those to a file are a local disk's.
func (a *awayFlag) options(device string) plan.Options {
	if a.bytes == 0 {
		return plan.Options{}
	}
	away := plan.Away{Bytes: a.bytes, OutBytesPerSecond: 5e9, BackBytesPerSecond: 5e9, As: tensor.AwayForm(a.as), Workers: runtime.GOMAXPROCS(0)}
	switch {
	case a.dir != "":
		away.OutBytesPerSecond, away.BackBytesPerSecond = 1e9, 2e9
	case strings.HasPrefix(device, "cuda"):
		away.OutBytesPerSecond, away.BackBytesPerSecond = 12e9, 12e9
	}
	return plan.Options{Away: away}
}

// check says what is wrong with the flags, if anything.
func (a *awayFlag) check() error {
	if err := tensor.AwayForm(a.as).Validate(); err != nil {
		return usagef("--away-as: %v", err)
	}
	if a.as != "" && a.bytes == 0 {
		return usagef("--away-as %s: give --away SIZE, too", a.as)
	}
	return nil
}

// use gives a trainer the memory, and a device that computes there. They end
// with done, which comes after the trainer's Close.
func (a *awayFlag) use(t *train.Trainer) (done func(), err error) {
	place, err := a.open(t.Memory().Device())
	if err != nil {
		return func() {}, err
	}
	host := t.Memory().Device()
	done = func() { place.Close() }
	if host.Info().Kind == device.CUDA {
		beside, err := device.OpenHost(device.HostOptions{Capacity: a.bytes})
		if err != nil {
			return done, err
		}
		host, done = beside, func() { beside.Close(); place.Close() }
	}
	return done, t.UseStore(place, host)
}

// open gives the memory, for copies to and from a device.
func (a *awayFlag) open(beside device.Device) (*spill.Place, error) {
	if a.dir == "" {
		return spill.Memory(beside, a.bytes)
	}
	return spill.File(a.dir, a.bytes)
}
