package spill

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

func allocate(f *os.File, offset, size int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, offset, size)
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.ENOSYS) {
		return zeros(f, offset, size)
	}
	return err
}
