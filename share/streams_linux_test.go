package share

import (
	"bytes"
	"errors"
	"net"
	"testing"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/device/devicetest"
)

// openByName opens the device that the flag -device names, such as
// cuda:0,64MiB,shared, or one of the host. All is written and read by streams,
// since the processor may not reach its memory.
func openByName(t *testing.T) (device.Device, device.Stream) {
	t.Helper()
	d := devicetest.Open(t, "host:64MiB,shared")
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	return d, s
}

func upload(t *testing.T, s device.Stream, p device.Ptr, data []byte) {
	t.Helper()
	s.Upload(p, data)
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
}

func expectDownload(t *testing.T, s device.Stream, p device.Ptr, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	s.Download(got, p)
	if err := s.Sync(); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes begin with %d, want %d: %v", len(want), got[:8], want[:8], err)
	}
}

// TestDeviceOfOtherProcess lends blocks on several handles to a process that
// has opened the same device, and reads its answers.
func TestDeviceOfOtherProcess(t *testing.T) {
	d, s := openByName(t)
	a, err := alloc.New(d, alloc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o := &owner{a, t, s}
	c, conn := startChild(t, "streams")
	l, err := NewLender(conn, a)
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range []*alloc.Block{o.block(512), o.block(3*page + 12_345), o.block(page)} {
		upload(t, s, b.Ptr(), pattern(b.Size(), byte(i)))
		wait(t, lend(t, l, b))
		expectDownload(t, s, b.Ptr(), pattern(b.Size(), byte(100+i)))
		defer b.Free()
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	c.expect(t, "PASS")
}

// borrowByStreams is the other process.
func borrowByStreams(t *testing.T, c *net.UnixConn) {
	d, s := openByName(t)
	b, err := NewBorrower(c, d)
	if err != nil {
		t.Fatal(err)
	}
	for i := range byte(3) {
		m := receive(t, b)
		expectDownload(t, s, m.Ptr(), pattern(m.Size(), i))
		upload(t, s, m.Ptr(), pattern(m.Size(), 100+i))
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(b.Close(), d.Close()); err != nil {
		t.Fatal(err)
	}
}
