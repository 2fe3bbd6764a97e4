//go:build unix

package spill

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// File gives a Place in a file that is made in dir and has no name, so that
// nothing is left of it whatever happens. Its room on the disk is taken when
// it is first asked for, not when it is written to.
func File(dir string, capacity uint64) (*Place, error) {
	f, err := os.CreateTemp(dir, ".headroom-*.tmp")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return newPlace(&mapped{file: f, allocate: allocate}, capacity), nil
}

// mapped is a source in a file.
type mapped struct {
	file     *os.File
	allocate func(f *os.File, offset, size int64) error // tests replace it
	end      int64
	pieces   [][]byte
}

func (m *mapped) take(size uint64) ([]byte, error) {
	if err := m.allocate(m.file, m.end, int64(size)); err != nil {
		return nil, fmt.Errorf("no room on the disk for %d bytes more: %w", size, err)
	}
	buf, err := unix.Mmap(int(m.file.Fd()), m.end, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes of a file: %w", size, err)
	}
	m.end += int64(size)
	m.pieces = append(m.pieces, buf)
	return buf[:size:size], nil
}

func (m *mapped) close() error {
	var errs []error
	for _, p := range m.pieces {
		errs = append(errs, unix.Munmap(p))
	}
	return errors.Join(append(errs, m.file.Close())...)
}

// zeros are written where the system has no call for taking room. A hole in
// the file would end the program when the disk is full.
func zeros(f *os.File, offset, size int64) error {
	block := make([]byte, 1<<20)
	for size > 0 {
		n, err := f.WriteAt(block[:min(size, int64(len(block)))], offset)
		if err != nil {
			return err
		}
		offset, size = offset+int64(n), size-int64(n)
	}
	return nil
}
