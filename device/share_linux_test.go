package device

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func openFile(t testing.TB, granules int) (*SharedHost, *shared) {
	t.Helper()
	d, err := OpenSharedHost(HostOptions{Capacity: uint64(granules) * hugePage, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d, d.shared.(*shared)
}

// createShown creates n handles, maps them and writes its number to each.
func createShown(t testing.TB, d *SharedHost, n int) (p Ptr, handles []Handle) {
	t.Helper()
	p, err := d.Reserve(uint64(n) * hugePage)
	for range n {
		h, createErr := d.Create()
		handles, err = append(handles, h), errors.Join(err, createErr)
	}
	if err := errors.Join(err, d.Map(p, handles)); err != nil {
		t.Fatal(err)
	}
	for i, h := range handles {
		Bytes(p+Ptr(i)*hugePage, 1)[0] = byte(h)
	}
	return p, handles
}

// shown reads what createShown wrote from n granules on; 0 stands for one that
// cannot be read.
func shown(p Ptr, n int) []byte {
	var all []byte
	for i := range Ptr(n) {
		b, _ := touch(p + i*hugePage)
		all = append(all, b)
	}
	return all
}

// TestSharedMapRollsBack lets each system call of a Map of three parts fail,
// also the fence that takes the parts back. Every time the book is right and a
// second Map works; where the fence worked, no address can be read.
func TestSharedMapRollsBack(t *testing.T) {
	for failing := 1; failing <= 3; failing++ {
		for _, fenceFails := range []bool{false, true} {
			d, s := openFile(t, 8)
			_, h := createShown(t, d, 4)
			p, err := d.Reserve(6 * hugePage)
			if err != nil {
				t.Fatal(err)
			}
			calls := 0
			s.mapFile = func(p Ptr, size uint64, x extent) error {
				if calls++; calls == failing {
					return unix.ENOMEM
				}
				return mapFile(p, size, x)
			}
			s.fence = func(p Ptr, size uint64) error {
				if fenceFails {
					return unix.EPERM
				}
				return fence(p, size)
			}
			parts := []Handle{h[0], h[1], h[3], h[2], h[3]}
			err = d.Map(p, parts)
			if !errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EPERM) != fenceFails || calls != failing {
				t.Fatalf("call %d fails: Map made %d calls and returned %v", failing, calls, err)
			}
			if got := shown(p, 6); !fenceFails && !bytes.Equal(got, make([]byte, 6)) {
				t.Fatalf("call %d fails: the addresses show %v", failing, got)
			}
			checkMappable(t, d, s, p, parts)
		}
	}
}

// checkMappable expects that nothing is mapped from p on and that the handles
// can be.
func checkMappable(t *testing.T, d *SharedHost, s *shared, p Ptr, handles []Handle) {
	t.Helper()
	s.mapFile, s.fence = mapFile, fence
	want := []byte{}
	for _, h := range handles {
		want = append(want, byte(h))
	}
	if err := errors.Join(d.book.check(), d.Map(p, handles)); err != nil {
		t.Fatal(err)
	}
	if got := shown(p, len(handles)); !bytes.Equal(got, want) {
		t.Fatalf("the addresses show %v, want %v", got, want)
	}
	if err := errors.Join(d.Unmap(p, len(handles)), d.Release(p), d.book.check()); err != nil {
		t.Fatal(err)
	}
}

// TestSharedUnmapFails expects all memory to be there still.
func TestSharedUnmapFails(t *testing.T) {
	d, s := openFile(t, 4)
	p, h := createShown(t, d, 3)
	s.fence = func(Ptr, uint64) error { return unix.ENOMEM }
	if err := d.Unmap(p, 3); !errors.Is(err, unix.ENOMEM) {
		t.Fatalf("Unmap returned %v", err)
	}
	if got := shown(p, 3); !bytes.Equal(got, []byte{1, 2, 3}) || d.Destroy(h[0]) == nil {
		t.Fatalf("after the failure the addresses show %v", got)
	}
	s.fence = fence
	if err := d.Unmap(p, 3); err != nil {
		t.Fatal(err)
	}
	s.punch = func(extent, uint64) error { return unix.EINTR }
	if err := d.Destroy(h[0]); !errors.Is(err, unix.EINTR) {
		t.Fatalf("Destroy returned %v", err)
	}
	checkMappable(t, d, s, p, h)
	s.punch = punch
	if err := errors.Join(d.Destroy(h[0]), d.book.check()); err != nil {
		t.Fatal(err)
	}
}

// TestSharedRuns maps neighbours in one call. What lies side by side by the
// offsets but in two files is no neighbour.
func TestSharedRuns(t *testing.T) {
	d, s := openFile(t, 8)
	q, h := createShown(t, d, 5)
	p, err := d.Reserve(8 * hugePage)
	if err != nil {
		t.Fatal(err)
	}
	var sizes []uint64
	s.mapFile = func(p Ptr, size uint64, x extent) error {
		sizes = append(sizes, size/hugePage)
		return mapFile(p, size, x)
	}
	if err := d.Map(p, append(h, h[1], h[0], h[1])); err != nil {
		t.Fatal(err)
	}
	if want := []uint64{5, 1, 2}; !slices.Equal(sizes, want) {
		t.Errorf("parts of %v granules were mapped, want %v", sizes, want)
	}
	other, _ := openFile(t, 2)
	_, theirs := createShown(t, other, 2)
	f, offset, err := other.Export(theirs[1])
	if err != nil {
		t.Fatal(err)
	}
	imported, err := d.Import(f, offset)
	if err := errors.Join(err, f.Close(), d.Unmap(p, 8)); err != nil {
		t.Fatal(err)
	}
	if err := d.Map(p, []Handle{h[0], imported}); err != nil {
		t.Fatal(err)
	}
	copy(Bytes(p+hugePage, 1), "x")
	if got := shown(q, 5); !bytes.Equal(got, []byte{1, 2, 3, 4, 5}) {
		t.Errorf("writing to the other device's memory made ours %v", got)
	}
}

// TestSharedMemoryComesAndGoes counts the memory of the file: none before the
// first touch, none after Destroy.
func TestSharedMemoryComesAndGoes(t *testing.T) {
	d, s := openFile(t, 8)
	bytes := func() int64 {
		var stat unix.Stat_t
		if err := unix.Fstat(s.fd, &stat); err != nil {
			t.Fatal(err)
		}
		return stat.Blocks * 512
	}
	if n := bytes(); n != 0 {
		t.Errorf("a new device takes %d bytes", n)
	}
	p, h := createShown(t, d, 2)
	clear(Bytes(p, 2*hugePage))
	if n := bytes(); n != 2*hugePage {
		t.Errorf("two granules take %d bytes", n)
	}
	if err := errors.Join(d.Unmap(p, 2), d.Destroy(h[1])); err != nil {
		t.Fatal(err)
	}
	if n := bytes(); n != hugePage {
		t.Errorf("one granule takes %d bytes", n)
	}
}

// TestAliasLimit holds a device at its greatest number of mappings.
func TestAliasLimit(t *testing.T) {
	d, _ := openFile(t, 8)
	_, h := createShown(t, d, 3)
	p, err := d.Reserve(8 * hugePage)
	if err != nil {
		t.Fatal(err)
	}
	d.book.limit = 5
	for _, many := range [][]Handle{{h[0], h[1], h[2]}, {h[0], h[0], h[0]}} {
		if err := d.Map(p, many); !errors.Is(err, ErrOutOfMemory) || !strings.Contains(err.Error(), "vm.max_map_count") {
			t.Fatalf("three further mappings where two are allowed: %v", err)
		}
	}
	if err := d.Map(p, h[:2]); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Create(); !errors.Is(err, ErrOutOfMemory) {
		t.Fatalf("a handle too many: %v", err)
	}
	if err := d.Unmap(p, 1); err != nil {
		t.Fatal(err)
	}
	fresh, err := d.Create()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Map(p, []Handle{fresh}); err != nil {
		t.Fatalf("the first mapping of a handle: %v", err)
	}
}

// memoryFile makes a file in memory with a size and seals.
func memoryFile(t *testing.T, size int64, seals int) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err == nil {
		err = unix.Ftruncate(fd, size)
	}
	if err == nil && seals != 0 {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "test")
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// hugeFile makes a sealed file of reserved huge pages. Touching it where none
// is left is a fatal signal.
func hugeFile(t *testing.T) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("huge", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
	if err != nil {
		return nil // this kernel has none, so nobody can offer one
	}
	f := os.NewFile(uintptr(fd), "huge")
	t.Cleanup(func() { _ = f.Close() })
	_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	if err := errors.Join(f.Truncate(2*hugePage), err); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestImportDistrusts offers files with which somebody could do harm.
func TestImportDistrusts(t *testing.T) {
	d, s := openFile(t, 4)
	good := memoryFile(t, 2*hugePage, unix.F_SEAL_SHRINK)
	readOnly, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", good.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	folder, err := os.Open(".")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _, _, _ = readOnly.Close(), reader.Close(), writer.Close(), folder.Close() })
	for _, c := range []struct {
		f      *os.File
		offset int64
		words  string
	}{
		{memoryFile(t, 2*hugePage, 0), 0, "not sealed against shrinking"},
		{memoryFile(t, 2*hugePage, unix.F_SEAL_GROW), 0, "not sealed against shrinking"},
		{memoryFile(t, 2*hugePage, unix.F_SEAL_SHRINK|unix.F_SEAL_WRITE), 0, "sealed against writing"},
		{memoryFile(t, 2*hugePage, unix.F_SEAL_SHRINK|unix.F_SEAL_FUTURE_WRITE), 0, "sealed against writing"},
		{memoryFile(t, 0, unix.F_SEAL_SHRINK), 0, "has 0 bytes"},
		{memoryFile(t, hugePage-1, unix.F_SEAL_SHRINK), 0, "too few"},
		{good, hugePage + 4096, "no multiple"},
		{good, -hugePage, "no multiple"},
		{good, 2 * hugePage, "too few"},
		{good, 1<<62 + hugePage, "too few"},
		{good, math.MaxInt64 - hugePage + 1, "too few"},
		{readOnly, 0, "not open for reading and writing"},
		{reader, 0, "does not lie in memory"},
		{folder, 0, "does not lie in memory"},
		{hugeFile(t), 0, "does not lie in memory"},
	} {
		files := openFiles(t)
		h, err := d.Import(c.f, c.offset)
		if h != 0 || err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("import of %s at %d gave %d and %v, want an error with %q", c.f.Name(), c.offset, h, err, c.words)
		}
		if now := openFiles(t); now != files {
			t.Errorf("%d files are open after the refused import, %d before", now, files)
		}
	}
	if len(s.imports)+len(s.peers)+len(d.book.imports) != 0 {
		t.Error("refused imports have left something")
	}
	if _, err := d.Import(good, hugePage); err != nil {
		t.Error(err)
	}
}

// TestOwnFileIsSealed tries what a peer could do to an exported file.
func TestOwnFileIsSealed(t *testing.T) {
	d, _ := openFile(t, 2)
	p, h := createShown(t, d, 1)
	f, _, err := d.Export(h[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, sealErr := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE)
	for what, err := range map[string]error{"shrink": f.Truncate(0), "grow": f.Truncate(1 << 40), "seal": sealErr} {
		if !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got := shown(p, 1); got[0] != byte(h[0]) {
		t.Errorf("the memory shows %v", got)
	}
}

// TestImportsShareFiles imports many handles of one device: their file is open
// once, and no more when the last of them is destroyed.
func TestImportsShareFiles(t *testing.T) {
	from, _ := openFile(t, 4)
	to, s := openFile(t, 1)
	_, h := createShown(t, from, 4)
	p, err := to.Reserve(4 * hugePage)
	if err != nil {
		t.Fatal(err)
	}
	before := openFiles(t)
	var imported []Handle
	for _, h := range h {
		f, offset, err := from.Export(h)
		if err != nil {
			t.Fatal(err)
		}
		i, err := to.Import(f, offset)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		imported = append(imported, i)
	}
	if n := openFiles(t); n != before+1 {
		t.Errorf("four imports hold %d files", n-before)
	}
	parts := 0
	s.mapFile = func(p Ptr, size uint64, x extent) error { parts++; return mapFile(p, size, x) }
	if err := to.Map(p, imported); err != nil || parts != 1 {
		t.Errorf("neighbours were mapped in %d parts: %v", parts, err)
	}
	if got := shown(p, 4); !bytes.Equal(got, []byte{1, 2, 3, 4}) || to.book.used != 0 {
		t.Errorf("the importing device shows %v and counts %d bytes", got, to.book.used)
	}
	if err := to.Unmap(p, 4); err != nil {
		t.Fatal(err)
	}
	for i, h := range imported {
		if n := openFiles(t); n != before+1 {
			t.Errorf("after %d of 4 were destroyed, %d files are held", i, n-before)
		}
		if err := errors.Join(to.Destroy(h), to.book.check()); err != nil {
			t.Fatal(err)
		}
	}
	if n := openFiles(t); n != before {
		t.Errorf("%d files are open, %d were before", n, before)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// childVariable holds the offset of the handle, in the environment of the
// process that imports it.
const childVariable = "DEVICE_TEST_IMPORT"

// TestShareWithProcess exports a handle to another process, which reads it and
// answers in the same memory.
func TestShareWithProcess(t *testing.T) {
	if offset, ok := os.LookupEnv(childVariable); ok {
		childImports(t, offset)
		return
	}
	d, _ := openFile(t, 4)
	p, h := createShown(t, d, 3)
	copy(Bytes(p+hugePage, 100), "question")
	f, offset, err := d.Export(h[1])
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(os.Args[0], "-test.run=^TestShareWithProcess$", "-test.v")
	child.Env = append(os.Environ(), fmt.Sprint(childVariable, "=", offset))
	child.ExtraFiles = []*os.File{f}
	out, err := child.CombinedOutput()
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := Bytes(p+2*hugePage-6, 6); string(got) != "answer" {
		t.Errorf("the other process answered %q\n%s", got, out)
	}
	if got := shown(p, 3); !bytes.Equal(got, []byte{1, 'q', 3}) {
		t.Errorf("the granules around show %v", got)
	}
}

// childImports is the other process: its file 3 is the exported one.
func childImports(t *testing.T, text string) {
	var offset int64
	if _, err := fmt.Sscan(text, &offset); err != nil {
		t.Fatal(err)
	}
	d, _ := openFile(t, 1)
	f := os.NewFile(3, "exported")
	h, err := d.Import(f, offset)
	if err != nil {
		t.Fatal(err)
	}
	p, err := d.Reserve(hugePage)
	if err := errors.Join(err, f.Close(), d.Map(p, []Handle{h})); err != nil {
		t.Fatal(err)
	}
	if got := string(Bytes(p, 8)); got != "question" {
		t.Fatalf("read %q", got)
	}
	copy(Bytes(p+hugePage-6, 6), "answer")
	if err := errors.Join(d.Unmap(p, 1), d.Release(p), d.Destroy(h), d.Close()); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkSharedMapUnmap is BenchmarkMapUnmap on shared memory; scattered
// granules take a system call each.
func BenchmarkSharedMapUnmap(b *testing.B) {
	for _, scattered := range []bool{false, true} {
		b.Run(fmt.Sprintf("scattered=%v", scattered), func(b *testing.B) {
			const n = 16
			d, _ := openFile(b, n)
			p, handles := createShown(b, d, n)
			if err := d.Unmap(p, n); err != nil {
				b.Fatal(err)
			}
			if scattered {
				slices.Reverse(handles)
			}
			for b.Loop() {
				if err := errors.Join(d.Map(p, handles), d.Unmap(p, n)); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/granule")
		})
	}
}
