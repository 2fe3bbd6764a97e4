//go:build unix

package train

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// lock keeps other processes from running in f's folder until f is closed.
func lock(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return fmt.Errorf("another run is writing %s: wait for it, stop it, or choose another folder", f.Name())
	}
	if err != nil && !errors.Is(err, syscall.ENOTSUP) && !errors.Is(err, syscall.ENOLCK) { // some network folders have no locks
		return fmt.Errorf("locking %s: %w", f.Name(), err)
	}
	return nil
}
