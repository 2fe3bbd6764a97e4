//go:build linux && !race

package device

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func openVirtual(t testing.TB, granules int) (*HostDevice, *staging) {
	t.Helper()
	d, err := OpenHost(HostOptions{Capacity: uint64(granules) * hugePage, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	s, ok := d.virtual.(*staging)
	if !ok {
		t.Skip("this kernel has no virtual memory to offer")
	}
	return d, s
}

// createStamped creates n handles, each with its number in its memory.
func createStamped(t testing.TB, d *HostDevice, n int) []Handle {
	t.Helper()
	p, err := d.Reserve(uint64(n) * hugePage)
	if err != nil {
		t.Fatal(err)
	}
	handles := make([]Handle, n)
	for i := range handles {
		if handles[i], err = d.Create(); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Map(p, handles); err != nil {
		t.Fatal(err)
	}
	for i := range handles {
		Bytes(p+Ptr(i)*hugePage, 1)[0] = byte(handles[i])
	}
	if err := errors.Join(d.Unmap(p, n), d.Release(p)); err != nil {
		t.Fatal(err)
	}
	return handles
}

// TestMapRollsBack lets each system call of a Map of four granules fail. Every
// time the addresses must be inaccessible as before, the books be right, and a
// second Map find the handles with their content.
func TestMapRollsBack(t *testing.T) {
	d, s := openVirtual(t, 8)
	handles := createStamped(t, d, 4)
	p, err := d.Reserve(6 * hugePage)
	if err != nil {
		t.Fatal(err)
	}
	for failing := range handles {
		calls := 0
		s.move = func(from, to Ptr, size uint64) error {
			if calls++; calls == failing+1 {
				return unix.ENOMEM
			}
			return move(from, to, size)
		}
		err := d.Map(p+hugePage, handles)
		if !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), "mapping of 4 granules") {
			t.Fatalf("Map with move %d failing returned %v", failing, err)
		}
		if want := 2*failing + 1; calls != want {
			t.Fatalf("%d moves, want %d: the failing one after %d that are taken back", calls, want, failing)
		}
		s.move = move
		checkMapAgain(t, d, p, handles)
	}
}

// checkMapAgain expects the handles to be mapped nowhere, and maps and unmaps
// them.
func checkMapAgain(t *testing.T, d *HostDevice, p Ptr, handles []Handle) {
	t.Helper()
	for i := range Ptr(6) {
		if _, ok := touch(p + i*hugePage); ok {
			t.Fatalf("granule %d of a reserved range can be read", i)
		}
	}
	if err := d.book.check(); err != nil {
		t.Fatal(err)
	}
	if err := d.Map(p+hugePage, handles); err != nil {
		t.Fatal(err)
	}
	checkStamps(t, p+hugePage, handles)
	if err := d.Unmap(p+hugePage, len(handles)); err != nil {
		t.Fatal(err)
	}
}

func checkStamps(t *testing.T, p Ptr, handles []Handle) {
	t.Helper()
	for i, h := range handles {
		if got := Bytes(p+Ptr(i)*hugePage, 1)[0]; got != byte(h) {
			t.Fatalf("handle %d holds %d", h, got)
		}
	}
}

// TestUnmapRollsBack lets each system call of an Unmap fail, the fence last.
// Every time the memory must still be there.
func TestUnmapRollsBack(t *testing.T) {
	d, s := openVirtual(t, 8)
	handles := createStamped(t, d, 4)
	p, err := d.Reserve(6 * hugePage)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Map(p+hugePage, handles); err != nil {
		t.Fatal(err)
	}
	for failing := range len(handles) + 1 {
		calls := 0
		fail := func() error {
			if calls++; calls == failing+1 {
				return unix.ENOMEM
			}
			return nil
		}
		s.move = func(from, to Ptr, size uint64) error {
			if err := fail(); err != nil {
				return err
			}
			return move(from, to, size)
		}
		s.fence = func(p Ptr, size uint64) error { return fail() }
		if err := d.Unmap(p+hugePage, 4); !errors.Is(err, unix.ENOMEM) {
			t.Fatalf("Unmap with call %d failing returned %v", failing, err)
		}
		checkStamps(t, p+hugePage, handles)
		if err := d.book.check(); err != nil {
			t.Fatal(err)
		}
	}
	s.move, s.fence = move, fence
	if err := d.Unmap(p+hugePage, 4); err != nil {
		t.Fatal(err)
	}
	checkMapAgain(t, d, p, handles)
}

// TestLostMemory expects a panic when a move can neither be made nor taken back.
func TestLostMemory(t *testing.T) {
	d, s := openVirtual(t, 4)
	handles := createStamped(t, d, 2)
	p, err := d.Reserve(2 * hugePage)
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	s.move = func(from, to Ptr, size uint64) error {
		if calls++; calls > 1 {
			return unix.ENOMEM
		}
		return move(from, to, size)
	}
	defer func() {
		s.move = move
		if v := recover(); v == nil || !strings.Contains(v.(string), "cannot be moved back") {
			t.Fatalf("recovered %v", v)
		}
	}()
	_ = d.Map(p, handles)
}

// TestPieceLimit holds a device at its greatest number of mappings.
func TestPieceLimit(t *testing.T) {
	d, _ := openVirtual(t, 64)
	d.book.limit = 5
	for range 3 {
		if _, err := d.Create(); err != nil {
			t.Fatal(err)
		}
	}
	p, err := d.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Alloc(1); err != nil {
		t.Fatal(err)
	}
	_, err1 := d.Create()
	_, err2 := d.Alloc(1)
	for _, err := range []error{err1, err2} {
		if !errors.Is(err, ErrOutOfMemory) || !strings.Contains(err.Error(), "vm.max_map_count") {
			t.Fatalf("a piece too many: %v", err)
		}
	}
	if err := d.Free(p); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Create(); err != nil {
		t.Fatal(err)
	}
}

// TestMappingRecords maps every other handle of a shuffled order with a hole
// after each, the worst case, and counts the records that the kernel keeps.
func TestMappingRecords(t *testing.T) {
	const n = 64
	d, _ := openVirtual(t, n)
	handles := createStamped(t, d, n)
	p, err := d.Reserve(2 * n * hugePage)
	if err != nil {
		t.Fatal(err)
	}
	before := records(t)
	for i := range n / 2 {
		h := handles[i*37%n]
		if err := d.Map(p+Ptr(2*i)*hugePage, []Handle{h}); err != nil {
			t.Fatal(err)
		}
	}
	if more := records(t) - before; more > 4*n/2 {
		t.Fatalf("%d mapped granules take %d mapping records, more than 4 each", n/2, more)
	}
}

func records(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "\n")
}

// TestGranularityGrows keeps the number of granules of a large device under
// the limit on mappings.
func TestGranularityGrows(t *testing.T) {
	for _, capacity := range []uint64{1, 1 << 30, 1 << 40, 1 << 45} {
		_, virtual, granularity, limit := systemMemory(capacity, false)
		if capacity/granularity > uint64(limit) || (granularity > hugePage && capacity/(granularity/2) <= uint64(limit)) {
			t.Errorf("capacity %d: granules of %d bytes, limit %d", capacity, granularity, limit)
		}
		if virtual != nil {
			if err := virtual.close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestIllegalAccess reads where nothing is mapped: the stream fails, the
// program lives.
func TestIllegalAccess(t *testing.T) {
	d, err := OpenHost(HostOptions{Capacity: 8 * hugePage, Workers: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	p, err := d.Reserve(4 * hugePage)
	if err != nil {
		t.Skip(err)
	}
	wild := &Kernel{Name: "wild", Host: func(l *Launch, w *Workers) {
		w.For(1000, 1, func(lo, hi int) { Float32s(p, 1000)[lo] = 1 })
	}}
	for _, queue := range []func(s Stream){
		func(s Stream) { s.Launch(&Launch{Kernel: wild}) },
		func(s Stream) { s.Upload(p, make([]byte, 100)) },
		func(s Stream) { s.Download(make([]byte, 4<<20), p) },
		func(s Stream) { s.Copy(p+hugePage, p, 100) },
		func(s Stream) { s.Copy(0, p, 100) },
	} {
		s, err := d.NewStream()
		if err != nil {
			t.Fatal(err)
		}
		queue(s)
		if err := s.Close(); err == nil || !strings.Contains(err.Error(), "panic: ") {
			t.Fatalf("an access to reserved addresses ended with %v", err)
		}
	}
	if err := d.Release(p); err != nil {
		t.Fatal(err)
	}
}

func TestMemAvailable(t *testing.T) {
	n, err := memAvailable("MemTotal:       24683620 kB\nMemAvailable:   24255692 kB\n")
	if err != nil || n != 24255692<<10 {
		t.Errorf("got %d, %v", n, err)
	}
	for _, text := range []string{"", "MemAvailable: x kB\n", "MemAvailable: 5\n"} {
		if n, err := memAvailable(text); err == nil {
			t.Errorf("memAvailable(%q) = %d", text, n)
		}
	}
}

func BenchmarkMapUnmap(b *testing.B) {
	for _, n := range []int{1, 16} {
		b.Run(fmt.Sprintf("granules=%d", n), func(b *testing.B) {
			d, _ := openVirtual(b, n)
			handles := createStamped(b, d, n)
			p, err := d.Reserve(uint64(n) * hugePage)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if err := d.Map(p, handles); err != nil {
					b.Fatal(err)
				}
				if err := d.Unmap(p, n); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/granule")
		})
	}
}

// BenchmarkFirstTouch compares what it takes to get memory behind a fresh
// handle: when a kernel first touches it, or all at once beforehand.
func BenchmarkFirstTouch(b *testing.B) {
	const n = 64
	for name, touch := range map[string]func(p Ptr) error{
		"in kernel": func(p Ptr) error { clear(Bytes(p, n*hugePage)); return nil },
		"populate and kernel": func(p Ptr) error {
			err := unix.Madvise(Bytes(p, n*hugePage), unix.MADV_POPULATE_WRITE)
			clear(Bytes(p, n*hugePage))
			return err
		},
	} {
		b.Run(name, func(b *testing.B) {
			d, s := openVirtual(b, n)
			for b.Loop() {
				if err := touch(s.base); err != nil {
					b.Skip(err)
				}
				for h := range Handle(n) {
					if err := s.discard(h + 1); err != nil {
						b.Fatal(err)
					}
				}
			}
			_ = d
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/granule")
		})
	}
}
