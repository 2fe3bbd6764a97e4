package device

import (
	"fmt"
	"strings"

	"github.com/headroom-go/headroom/internal/size"
)

// Open opens a device by its name:
//
//	host:256MiB   this machine's processors, with at most 256 MiB of its memory
//	host          the same with all memory that the machine has available now
//	host:256MiB,shared
//	              the same with handles that can be mapped at several places and
//	              by other processes; also host,shared
//	null:24GiB    a device of 24 GiB with virtual memory and aliases that computes nothing
//
// OpenHost, OpenSharedHost and OpenNull have more options.
func Open(spec string) (Device, error) {
	plain, shared := strings.CutSuffix(spec, ",shared")
	kind, amount, sized := strings.Cut(plain, ":")
	if kind != "host" && kind != "null" {
		return nil, fmt.Errorf("unknown device %q: use host:SIZE, null:SIZE or host, such as host:256MiB", spec)
	}
	if shared && kind == "null" {
		return nil, fmt.Errorf("device %q has no memory to share: only host:SIZE,shared has", spec)
	}
	if !sized && kind == "null" {
		return nil, fmt.Errorf("device %q has no size: write it like null:24GiB", spec)
	}
	var capacity uint64
	if sized {
		var err error
		if capacity, err = size.Parse(amount); err != nil {
			return nil, fmt.Errorf("device %q: %w", spec, err)
		}
		if capacity == 0 {
			return nil, fmt.Errorf("device %q has no memory: write its size like %s:256MiB", spec, kind)
		}
	}
	if kind == "null" {
		return OpenNull(NullOptions{Capacity: capacity, Virtual: true, Alias: true})
	}
	d, err := openHost(HostOptions{Capacity: capacity}, shared)
	if err != nil {
		return nil, fmt.Errorf("device %q: %w", spec, err)
	}
	return d, nil
}

func openHost(o HostOptions, shared bool) (Device, error) {
	if shared {
		return OpenSharedHost(o)
	}
	return OpenHost(o)
}
