// Host memory that can be mapped twice and shared, on Linux.
//
// All handles of a device are granules of one file that lies in memory
// (memfd_create): handle h is the granule at granularity · (h − 1). The file
// has its full size from the start and is sparse, so that a granule takes
// memory when it is first touched. Map maps parts of the file over reserved
// addresses, Unmap puts a fence over them again, and Destroy punches the
// granule out of the file.
//
//	file     [ h1 | h2 |    | h4 ]
//	range    [ h2 | no access | h4 | h2 ]
//
// Each of these is one system call that takes place or does not. So an Unmap
// is all or none by itself, and a Map of several parts that fails is undone
// with one fence over the whole span.
//
// # Trust
//
// A process that has the file can write to all of it, which nothing prevents.
// It must not be able to kill us: touching a mapping behind the end of its
// file is a fatal signal (SIGBUS). Files are therefore sealed against
// shrinking for good, and no file that is not is imported. Seals exist for
// files in memory alone, where nothing else makes pages fail.

package device

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// shared is virtual memory in files. The fields mapFile, fence and punch are
// system calls that tests replace.
type shared struct {
	fd          int // of the device's own file
	id          fileID
	granularity uint64
	imports     map[Handle]extent
	peers       map[fileID]*peer // by whom the imported handles were exported
	mapFile     func(p Ptr, size uint64, x extent) error
	fence       func(p Ptr, size uint64) error
	punch       func(x extent, size uint64) error
}

// extent is a place in a file.
type extent struct {
	fd     int
	offset int64
}

// fileID tells files apart. Inode numbers may come back, so that it holds what
// imports rely on, too.
type fileID struct {
	device, inode uint64
	size          int64
}

// peer is the file of another device, open as long as a handle of it is
// imported.
type peer struct{ fd, handles int }

// newSharedMemory gives shared memory for a device of the capacity, its
// granularity and the greatest number of its pieces.
func newSharedMemory(capacity uint64) (m sharedMemory, granularity uint64, limit int, err error) {
	granularity, limit = granules(capacity)
	fd, err := newSealedFile(max(capacity&^(granularity-1), granularity))
	if err != nil {
		return nil, 0, 0, err
	}
	id, err := identify(fd)
	if err != nil {
		return nil, 0, 0, errors.Join(err, unix.Close(fd))
	}
	return &shared{
		fd: fd, id: id, granularity: granularity, imports: map[Handle]extent{}, peers: map[fileID]*peer{},
		mapFile: mapFile, fence: fence, punch: punch,
	}, granularity, limit, nil
}

// newSealedFile makes a file in memory whose size nobody can change any more.
func newSealedFile(size uint64) (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("headroom", flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("headroom", flags)
	}
	if err != nil {
		return -1, os.NewSyscallError("memfd_create", err)
	}
	err = os.NewSyscallError("ftruncate", unix.Ftruncate(fd, int64(size)))
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
		err = os.NewSyscallError("fcntl", err)
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

func identify(fd int) (fileID, error) {
	var stat unix.Stat_t
	err := unix.Fstat(fd, &stat)
	return fileID{uint64(stat.Dev), stat.Ino, stat.Size}, os.NewSyscallError("fstat", err)
}

// extent gives the place of h.
func (s *shared) extent(h Handle) extent {
	if h >= firstImport {
		return s.imports[h]
	}
	return extent{s.fd, int64(uint64(h-1) * s.granularity)}
}

func (s *shared) reserve(size uint64) (Ptr, error) {
	return mmapAligned(size, s.granularity, unix.PROT_NONE)
}

func (s *shared) release(p Ptr, size uint64) error { return munmap(p, size) }

func (s *shared) attach(p Ptr, handles []Handle) error {
	for i := 0; i < len(handles); {
		n := s.run(handles[i:])
		at := p + Ptr(uint64(i)*s.granularity)
		if err := s.mapFile(at, uint64(n)*s.granularity, s.extent(handles[i])); err != nil {
			return errors.Join(err, s.detach(p, handles))
		}
		i += n
	}
	return nil
}

// run counts the handles at the beginning that lie side by side in one file.
func (s *shared) run(handles []Handle) int {
	next := s.extent(handles[0])
	for i, h := range handles {
		if s.extent(h) != next {
			return i
		}
		next.offset += int64(s.granularity)
	}
	return len(handles)
}

func (s *shared) detach(p Ptr, handles []Handle) error {
	return s.fence(p, uint64(len(handles))*s.granularity)
}

// create leaves it to the first touch to take memory.
func (s *shared) create(Handle) error { return nil }

func (s *shared) discard(h Handle) error {
	if h >= firstImport {
		s.dismiss(h)
		return nil
	}
	return s.punch(s.extent(h), s.granularity)
}

// close gives the device's file back; the memory lives on where others have
// it mapped or open.
func (s *shared) close() error {
	err := os.NewSyscallError("close", unix.Close(s.fd))
	for _, peer := range s.peers {
		err = errors.Join(err, os.NewSyscallError("close", unix.Close(peer.fd)))
	}
	return err
}

func (s *shared) export(h Handle) (*os.File, int64, error) {
	x := s.extent(h)
	fd, err := duplicate(uintptr(x.fd))
	if err != nil {
		return nil, 0, err
	}
	return os.NewFile(uintptr(fd), "headroom"), x.offset, nil
}

func (s *shared) admit(h Handle, f *os.File, offset int64) error {
	fd, err := duplicateFile(f)
	if err != nil {
		return err
	}
	id, err := s.inspect(fd, offset)
	if err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	known := s.peers[id]
	if known == nil {
		known = &peer{fd: fd}
		s.peers[id] = known
	} else {
		_ = unix.Close(fd) // a file in memory has nothing left to write
	}
	known.handles++
	s.imports[h] = extent{known.fd, offset}
	return nil
}

// dismiss forgets an imported handle, and its file with the last one.
func (s *shared) dismiss(h Handle) {
	x := s.imports[h]
	delete(s.imports, h)
	for id, peer := range s.peers {
		if peer.fd != x.fd {
			continue
		}
		if peer.handles--; peer.handles == 0 {
			delete(s.peers, id)
			_ = unix.Close(x.fd)
		}
	}
}

// inspect says whether the granule at offset of a file that somebody else made
// can be mapped and never vanish.
func (s *shared) inspect(fd int, offset int64) (fileID, error) {
	if err := checkSealed(fd); err != nil {
		return fileID{}, err
	}
	id, err := identify(fd) // after the seals, so that the size stays
	granularity := int64(s.granularity)
	switch {
	case err != nil:
		return id, err
	case id == s.id:
		return id, errors.New("the file is this device's own: use the handle that was exported")
	case offset < 0 || offset%granularity != 0:
		return id, fmt.Errorf("the offset is no multiple of the granularity of %d", granularity)
	case id.size < granularity || offset > id.size-granularity:
		return id, fmt.Errorf("the file has %d bytes, too few for a granule of %d there", id.size, granularity)
	}
	return id, nil
}

// checkSealed says whether a file lies in memory, is open for writing and can
// be mapped so for good.
func checkSealed(fd int) error {
	var system unix.Statfs_t
	if err := unix.Fstatfs(fd, &system); err != nil {
		return os.NewSyscallError("fstatfs", err)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || int64(system.Type) != unix.TMPFS_MAGIC {
		return errors.New("the file is none that a device exported: it does not lie in memory")
	}
	access, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	switch {
	case err != nil:
		return os.NewSyscallError("fcntl", err)
	case seals&unix.F_SEAL_SHRINK == 0:
		return errors.New("the file is none that a device exported: it is not sealed against shrinking")
	case seals&(unix.F_SEAL_WRITE|unix.F_SEAL_FUTURE_WRITE) != 0:
		return errors.New("the file is sealed against writing")
	case access&unix.O_ACCMODE != unix.O_RDWR:
		return errors.New("the file is not open for reading and writing")
	}
	return nil
}

// duplicateFile gives a file descriptor of f that is ours.
func duplicateFile(f *os.File) (fd int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	if closed := raw.Control(func(old uintptr) { fd, err = duplicate(old) }); closed != nil {
		return -1, closed
	}
	return fd, err
}

// closeOnExec keeps a file from programs that this one starts.
func closeOnExec(fd int) { unix.CloseOnExec(fd) }

func duplicate(fd uintptr) (int, error) {
	fresh, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	return fresh, os.NewSyscallError("fcntl", err)
}

// mapFile puts a part of a file at addresses of the process.
func mapFile(p Ptr, size uint64, x extent) error {
	_, err := unix.MmapPtr(x.fd, x.offset, p.pointer(), uintptr(size), readWrite, unix.MAP_SHARED|unix.MAP_NORESERVE|unix.MAP_FIXED)
	return os.NewSyscallError("mmap", err)
}

// punch gives the memory of a part of a file back to the system.
func punch(x extent, size uint64) error {
	const mode = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	return os.NewSyscallError("fallocate", unix.Fallocate(x.fd, mode, x.offset, int64(size)))
}
