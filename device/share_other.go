//go:build !linux

package device

import (
	"errors"
	"os"
)

func newSharedMemory(uint64) (shared sharedMemory, granularity uint64, limit int, err error) {
	return nil, 0, 0, errors.ErrUnsupported
}

// There are no GPUs.

func closeOnExec(int) {}

func duplicateFile(*os.File) (fd int, err error) { return -1, errors.ErrUnsupported }
