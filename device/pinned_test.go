package device

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// TestPinnedRefused lets the system refuse every second lock.
func TestPinnedRefused(t *testing.T) {
	d, err := OpenPinned(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	d.pinned.lock = func(p Ptr, size uint64) error {
		if calls++; calls%2 == 0 {
			return errors.ErrUnsupported
		}
		return nil
	}
	var pieces []Ptr
	for i, want := range []uint64{0, 1024, 1024, 3072} {
		p, err := d.Alloc(uint64(i+1) * 500)
		if err != nil {
			t.Fatal(err)
		}
		if pieces = append(pieces, p); d.Unlocked() != want {
			t.Errorf("after %d allocations %d bytes are unlocked, want %d", i+1, d.Unlocked(), want)
		}
		clear(Bytes(p, (i+1)*500))
	}
	for i, want := range []uint64{3072, 2048, 2048, 0} {
		if err := d.Free(pieces[i]); err != nil {
			t.Fatal(err)
		}
		if d.Unlocked() != want {
			t.Errorf("after %d were freed %d bytes are unlocked, want %d", i+1, d.Unlocked(), want)
		}
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestPinnedFailures lets the plain memory fail: nothing may be entered as
// unlocked or lost.
func TestPinnedFailures(t *testing.T) {
	f := &faulty{addressSpace: addressSpace{next: firstAddress, granularity: 4096}, nth: 1}
	refuse := func(Ptr, uint64) error { return errors.ErrUnsupported }
	d := &PinnedHost{pinned: &pinned{plainMemory: f, lock: refuse, unlocked: map[Ptr]uint64{}}}
	d.start(Info{Name: "test", Capacity: 1 << 20, Granularity: 4096, Workers: 1}, 0, d.pinned, nil)
	if _, err := d.Alloc(512); !errors.Is(err, errSystem) || d.Unlocked() != 0 {
		t.Fatalf("Alloc returned %v; %d bytes are unlocked", err, d.Unlocked())
	}
	p, err := d.Alloc(512)
	if err != nil {
		t.Fatal(err)
	}
	f.nth = f.calls + 1
	if err := d.Free(p); !errors.Is(err, errSystem) || d.Unlocked() != 512 {
		t.Fatalf("Free returned %v; %d bytes are unlocked", err, d.Unlocked())
	}
	if err := errors.Join(d.Free(p), d.Close()); err != nil || d.Unlocked() != 0 {
		t.Fatalf("%v; %d bytes are unlocked", err, d.Unlocked())
	}
}

// TestPinnedIsLocked compares what the system says is locked with what was
// allocated: pages, and nothing beyond.
func TestPinnedIsLocked(t *testing.T) {
	d, err := OpenPinned(64 << 20)
	if err != nil {
		t.Fatal(err)
	}
	before := lockedKiB(t)
	var want int
	var pieces []Ptr
	for _, pages := range []int{1, 3, 513, 700} {
		page := os.Getpagesize()
		p, err := d.Alloc(uint64(pages*page - 1000))
		if err != nil {
			t.Fatal(err)
		}
		if d.Unlocked() > 0 {
			t.Skip("this system locks no memory")
		}
		pieces = append(pieces, p)
		want += pages * page >> 10
	}
	if got := lockedKiB(t) - before; got != want {
		t.Errorf("%d KiB are locked, want %d", got, want)
	}
	for _, p := range pieces {
		if err := d.Free(p); err != nil {
			t.Fatal(err)
		}
	}
	if got := lockedKiB(t) - before; got != 0 {
		t.Errorf("%d KiB are locked after all was freed", got)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// lockedKiB reads the line "VmLck:       12 kB".
func lockedKiB(t *testing.T) (n int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmLck:"); ok {
			for _, c := range strings.Fields(rest)[0] {
				n = 10*n + int(c-'0')
			}
		}
	}
	return n
}
