package share

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/trace"
)

// socketPair gives both ends of a connection.
func socketPair(t testing.TB, kind int) (x, y *net.UnixConn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, kind|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ends := [2]*net.UnixConn{}
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1]
}

// openDevice opens a device that must have nothing left when the test ends.
func openDevice(t testing.TB, granules int) *device.SharedHost {
	t.Helper()
	d, err := device.OpenSharedHost(device.HostOptions{Capacity: uint64(granules) * page, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	if g := d.Info().Granularity; g != page {
		t.Fatalf("the granularity is %d", g)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// owner is a device with an allocator.
type owner struct {
	*alloc.Allocator
	t      testing.TB
	stream device.Stream
}

// newOwner gives an owner whose blocks must all be free when the test ends.
func newOwner(t testing.TB, granules int) *owner {
	t.Helper()
	d := openDevice(t, granules)
	a, err := alloc.New(d, alloc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	return &owner{a, t, s}
}

func (o *owner) block(size uint64) *alloc.Block {
	o.t.Helper()
	b, err := o.Alloc(size, trace.Parameter, o.stream)
	if err != nil {
		o.t.Fatal(err)
	}
	return b
}

// stitchedBlock gives a block on parts of pages that were two holes, and the
// blocks around it.
func (o *owner) stitchedBlock() (b *alloc.Block, walls []*alloc.Block) {
	o.t.Helper()
	tail := o.block(page / 2)
	walls = append(walls, o.block(page/2), o.block(page/2))
	head := o.block(page / 2)
	whole := o.block(page)
	walls = append(walls, o.block(page))
	tail.Free()
	head.Free()
	whole.Free()
	b = o.block(2 * page)
	if handles, offset := b.Handles(); o.Stats().Stitches != 1 || len(handles) != 3 || offset != page/2 {
		o.t.Fatalf("handles %v, offset %d: no stitch of a head, a page and a tail", handles, offset)
	}
	return b, walls
}

// connect gives a lender of the owner's and a borrower for the device.
func connect(t testing.TB, o *owner, d device.Device) (*Lender, *Borrower) {
	t.Helper()
	x, y := socketPair(t, syscall.SOCK_STREAM)
	l, err := NewLender(x, o.Allocator)
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewBorrower(y, d)
	if err != nil {
		t.Fatal(err)
	}
	return l, b
}

func lend(t testing.TB, l *Lender, b *alloc.Block) *Loan {
	t.Helper()
	loan, err := l.Lend(b)
	if err != nil {
		t.Fatal(err)
	}
	return loan
}

func receive(t testing.TB, b *Borrower) *Mapping {
	t.Helper()
	m, err := b.Receive()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// wait waits for the loan's end, which must come.
func wait(t testing.TB, l *Loan) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := l.Wait(ctx); err != nil {
		t.Fatal(err)
	}
}

func isLent(l *Loan) bool {
	select {
	case <-l.Done():
		return false
	default:
		return true
	}
}

// pattern is n bytes that differ by seed.
func pattern(n uint64, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7+i>>9) + seed
	}
	return b
}

func content(p device.Ptr, n uint64) []byte { return device.Bytes(p, int(n)) }

func expectContent(t testing.TB, what string, p device.Ptr, want []byte) {
	t.Helper()
	got := content(p, uint64(len(want)))
	if bytes.Equal(got, want) {
		return
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("%s: byte %d of %d is %d, want %d", what, i, len(want), got[i], want[i])
		}
	}
}

// openFiles counts the files that the process has open.
func openFiles(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// expectFiles expects that as many files are open as before. Files in a socket
// that was closed go a moment later.
func expectFiles(t testing.TB, what string, before int) {
	t.Helper()
	for range 1000 {
		if openFiles(t) == before {
			return
		}
		runtime.Gosched()
	}
	t.Errorf("%s: %d files are open, %d were before", what, openFiles(t), before)
}
