//go:build !linux

package device

import "errors"

func newSharedMemory(uint64) (shared sharedMemory, granularity uint64, limit int, err error) {
	return nil, 0, 0, errors.ErrUnsupported
}

func closeOnExec(int) {} // there are no GPUs
