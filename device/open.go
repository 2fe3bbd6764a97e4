package device

import (
	"fmt"
	"runtime"
	"strconv"
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
//	cuda:0        a GPU by its number, with all memory that is free on it now
//	cuda:0,8GiB   the same with at most 8 GiB of its memory
//	cuda:0,8GiB,shared
//	              the same with handles that other processes can map; also cuda:0,shared
//	null:24GiB    a device of 24 GiB with virtual memory and aliases that computes nothing
//
// folders are patterns of where to look for CUDA's libraries after the loader
// did; OpenHost, OpenSharedHost, OpenNull, OpenCUDA and OpenSharedCUDA have
// more options.
func Open(spec string, folders ...string) (Device, error) { return OpenShare(spec, 1, folders...) }

// OpenShare is Open for one of so many users of this machine that compute at the
// same time: of its processors, a host device takes that part.
func OpenShare(spec string, users int, folders ...string) (Device, error) {
	if gpu, ok := strings.CutPrefix(spec, "cuda:"); ok {
		return openCUDA(spec, gpu, folders)
	}
	plain, shared := strings.CutSuffix(spec, ",shared")
	kind, amount, sized := strings.Cut(plain, ":")
	if kind != "host" && kind != "null" {
		return nil, fmt.Errorf("unknown device %q: use host:SIZE, null:SIZE, cuda:N or host, such as host:256MiB", spec)
	}
	if shared && kind == "null" {
		return nil, fmt.Errorf("device %q has no memory to share: only host:SIZE,shared and cuda:N,SIZE,shared have", spec)
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
	d, err := openHost(HostOptions{Capacity: capacity, Workers: max(1, runtime.GOMAXPROCS(0)/max(1, users))}, shared)
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

// openCUDA opens a GPU by what follows "cuda:".
func openCUDA(spec, gpu string, folders []string) (Device, error) {
	plain, shared := strings.CutSuffix(gpu, ",shared")
	number, amount, sized := strings.Cut(plain, ",")
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 {
		return nil, fmt.Errorf("device %q: %q is no number of a GPU: write it like cuda:0 or cuda:0,8GiB", spec, number)
	}
	o := CUDAOptions{Number: n, Folders: folders}
	if sized {
		if o.Budget, err = size.Parse(amount); err != nil {
			return nil, fmt.Errorf("device %q: %w", spec, err)
		}
		if o.Budget == 0 {
			return nil, fmt.Errorf("device %q has no memory: write its size like cuda:0,8GiB", spec)
		}
	}
	d, err := openGPU(o, shared)
	if err != nil {
		return nil, fmt.Errorf("device %q: %w", spec, err)
	}
	return d, nil
}

func openGPU(o CUDAOptions, shared bool) (Device, error) {
	if shared {
		return OpenSharedCUDA(o)
	}
	return OpenCUDA(o)
}
