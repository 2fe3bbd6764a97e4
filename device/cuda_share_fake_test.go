package device

import (
	"os"
	"syscall"
)

// memory is that of a handle. What can be exported lies in a file that has no
// name any more, which every driver in Go memory knows again by that.
func (g *fakeGPU) memory(h, size uintptr, exportable int32) []byte {
	if exportable == 0 {
		return make([]byte, size)
	}
	f, err := os.CreateTemp("", "fake")
	if err != nil {
		panic(err)
	}
	if err := os.Remove(f.Name()); err != nil {
		panic(err)
	}
	if err := f.Truncate(int64(size)); err != nil {
		panic(err)
	}
	return g.show(h, f, size)
}

// show puts a file behind a handle.
func (g *fakeGPU) show(h uintptr, f *os.File, size uintptr) []byte {
	b, err := syscall.Mmap(int(f.Fd()), 0, int(size), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	g.files[h] = f
	return b
}

// forget ends a handle.
func (g *fakeGPU) forget(h uintptr) {
	if f := g.files[h]; f != nil {
		_, _ = syscall.Munmap(g.handles[h]), f.Close()
		delete(g.files, h)
		delete(g.imports, h)
	}
	delete(g.handles, h)
}

func (g *fakeGPU) export(a []uintptr) uintptr {
	f := g.files[a[1]]
	if f == nil || g.imports[a[1]] || a[2] != 1 || a[3] != 0 {
		return g.wrong("export of what was not created for it here")
	}
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		panic(err)
	}
	return put(a[0], int32(fd))
}

func (g *fakeGPU) admit(a []uintptr) uintptr {
	var stat syscall.Stat_t
	if a[2] != 1 || syscall.Fstat(int(a[1]), &stat) != nil || stat.Nlink != 0 || stat.Size == 0 {
		return 1 // as a driver refuses a file that is none of its
	}
	fd, err := syscall.Dup(int(a[1]))
	if err != nil {
		panic(err)
	}
	h := g.take(1)
	g.imports[h] = true
	g.handles[h] = g.show(h, os.NewFile(uintptr(fd), "imported"), uintptr(stat.Size))
	return put(a[0], h)
}
