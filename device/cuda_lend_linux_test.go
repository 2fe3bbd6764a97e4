package device_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/share"
	"github.com/headroom-go/headroom/trace"
)

// TestLendFakeCUDA lends a block on several handles from one GPU's driver to
// another's, and has an answer in the same memory.
func TestLendFakeCUDA(t *testing.T) {
	from, to := device.OpenFakeSharedCUDA(t, testCapacity), device.OpenFakeSharedCUDA(t, testCapacity)
	a, err := alloc.New(from, alloc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, r := stream(t, from), stream(t, to)
	wall, err1 := a.Alloc(1<<20, trace.Other, s)
	b, err2 := a.Alloc(5<<20+512, trace.Other, s)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	x, y := sockets(t)
	lender, err1 := share.NewLender(x, a)
	borrower, err2 := share.NewBorrower(y, to)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	question, answer := bytes.Repeat([]byte("question"), int(b.Size())/8), bytes.Repeat([]byte("answers "), int(b.Size())/8)
	got := make([]byte, len(question))
	s.Upload(b.Ptr(), question)
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	loan, err := lender.Lend(b)
	if err != nil {
		t.Fatal(err)
	}
	m, err := borrower.Receive()
	if err != nil {
		t.Fatal(err)
	}
	r.Download(got, m.Ptr())
	r.Upload(m.Ptr(), answer)
	if err := errors.Join(r.Sync(), m.Close(), loan.Wait(context.Background())); err != nil || !bytes.Equal(got, question) {
		t.Fatalf("the borrower read %.20q: %v", got, err)
	}
	s.Download(got, b.Ptr())
	if err := s.Sync(); err != nil || !bytes.Equal(got, answer) {
		t.Errorf("the owner read %.20q: %v", got, err)
	}
	b.Free()
	wall.Free()
	if err := errors.Join(borrower.Close(), lender.Close(), a.Close(), from.Close(), to.Close()); err != nil {
		t.Error(err)
	}
}

func stream(t *testing.T, d device.Device) device.Stream {
	t.Helper()
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// sockets gives both ends of a connection.
func sockets(t *testing.T) (x, y *net.UnixConn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
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
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1]
}
