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
//	null:24GiB    a device of 24 GiB with virtual memory that computes nothing
//
// OpenHost and OpenNull have more options.
func Open(spec string) (Device, error) {
	kind, amount, sized := strings.Cut(spec, ":")
	if kind != "host" && kind != "null" {
		return nil, fmt.Errorf("unknown device %q: use host:SIZE, null:SIZE or host, such as host:256MiB", spec)
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
		return OpenNull(NullOptions{Capacity: capacity, Virtual: true})
	}
	d, err := OpenHost(HostOptions{Capacity: capacity})
	if err != nil {
		return nil, fmt.Errorf("device %q: %w", spec, err)
	}
	return d, nil
}
