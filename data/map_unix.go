//go:build unix

package data

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sync"

	"golang.org/x/sys/unix"
)

// mapping is a file in memory, for reading. See file.
type mapping struct {
	mu    sync.RWMutex // for writing: Close
	bytes []byte
}

func mapFile(f *os.File, size int64) (*mapping, error) {
	if size == 0 || size > mappedMost {
		return nil, fmt.Errorf("%d bytes are not mapped", size)
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return &mapping{bytes: b}, nil
}

// ReadAt implements io.ReaderAt.
func (m *mapping) ReadAt(dst []byte, offset int64) (n int, err error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	switch {
	case m.bytes == nil:
		return 0, os.ErrClosed
	case offset < 0:
		return 0, fmt.Errorf("negative offset %d", offset)
	case offset >= int64(len(m.bytes)):
		return 0, io.EOF
	}
	n, err = copyMapped(dst, m.bytes[offset:])
	if err == nil && n < len(dst) {
		err = io.EOF
	}
	return n, err
}

// copyMapped copies, and gives an error where the memory of src has no file
// behind it any more, or the disk fails.
func copyMapped(dst, src []byte) (n int, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch p := recover().(type) {
		case nil:
		case interface{ Addr() uintptr }: // a fault
			n, err = 0, fmt.Errorf("the memory of the file at %#x is gone: the file was cut off while it was open, or the disk failed (%w)", p.Addr(), io.ErrUnexpectedEOF)
		default:
			panic(p)
		}
	}()
	return copy(dst, src), nil
}

// Close waits for readers.
func (m *mapping) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.bytes == nil {
		return errors.New("closed twice")
	}
	b := m.bytes
	m.bytes = nil
	return unix.Munmap(b)
}
