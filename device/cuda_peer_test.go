package device

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/internal/cuda"
)

// TestCUDAPeer copies to memory of another GPU and back; the fake driver checks that
// it was created there, and mapped for the GPU that copies.
func TestCUDAPeer(t *testing.T) {
	g, d := openFake(t)
	m, err := OpenPeer(d, 1, 3*fakeGranule-5)
	if err != nil {
		t.Fatal(err)
	}
	if len(g.handles) != 1 || len(g.peers) != 1 || g.retained != 2 {
		t.Errorf("%d handles, %d of them the peer's, %d contexts", len(g.handles), len(g.peers), g.retained)
	}
	at, size := m.Range()
	if size != 3*fakeGranule {
		t.Errorf("%d bytes for %d", size, 3*fakeGranule-5)
	}
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	p, err := d.Alloc(2 * fakeGranule)
	if err != nil {
		t.Fatal(err)
	}
	data, back := bytes.Repeat([]byte("peer to peer "), 2*fakeGranule/13), make([]byte, 2*fakeGranule/13*13)
	s.Upload(p, data)
	s.Copy(at+Ptr(fakeGranule/2), p, uint64(len(data)))
	s.Upload(p, make([]byte, len(data)))
	s.Copy(p, at+Ptr(fakeGranule/2), uint64(len(data)))
	s.Download(back, p)
	if err := s.Sync(); err != nil || !bytes.Equal(data, back) {
		t.Errorf("other bytes came back: %v", err)
	}
	if err := errors.Join(d.Free(p), s.Close(), m.Close(), d.Close()); err != nil || len(g.broken) > 0 || g.left() > 0 {
		t.Errorf("%v; misuse %q, %d things were not given back", err, g.broken, g.left())
	}
}

// openFake opens a GPU of a fake driver that has a second one.
func openFake(t *testing.T) (*fakeGPU, *CUDADevice) {
	t.Helper()
	g := newFakeGPU()
	d, err := OpenCUDA(fakeOptions(t, g, 64<<20))
	if err != nil {
		t.Fatal(err)
	}
	return g, d
}

// TestCUDAPeerRefused: who has no peer is told so.
func TestCUDAPeerRefused(t *testing.T) {
	host, err := OpenHost(HostOptions{Capacity: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	gpu, plain := OpenFakeCUDA(t, 64<<20, false), OpenFakeCUDA(t, 64<<20, true)
	for _, c := range []struct {
		of     Device
		number int
		want   string
	}{
		{host, 0, "only another GPU does"}, {gpu, 0, "does not reach memory of GPU 0"}, {gpu, 2, "does not exist"},
		{gpu, -1, "does not exist"}, {plain, 1, "does not reach"},
	} {
		if _, err := OpenPeer(c.of, c.number, 1); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, GPU %d: %v", c.of.Info().Name, c.number, err)
		}
	}
}

// TestCUDAPeerFailures lets every call of the driver fail once: it shows, and all is
// given back.
func TestCUDAPeerFailures(t *testing.T) {
	for nth, failed := 1, true; failed; nth++ {
		g, d := openFake(t)
		g.fail = g.calls + nth
		m, err := OpenPeer(d, 1, fakeGranule)
		if err == nil {
			err = m.Close()
		}
		err = errors.Join(err, d.Close())
		if failed = g.failed != ""; (err != nil) != failed || len(g.broken) > 0 {
			t.Fatalf("call %d, of %s, fails: the program gets %v; misuse %q", nth, g.failed, err, g.broken)
		}
		if nth > 100 {
			t.Fatal("no end of calls")
		}
	}
}

// TestInbox lets one GPU write into memory of another one and count, for which the other
// one waits; then lets every call of the driver fail once.
func TestInbox(t *testing.T) {
	data := bytes.Repeat([]byte("to whom it may concern"), 1000)
	for nth, failed := 0, true; failed || nth == 1; nth++ { // the first time none fails
		g := newFakeGPU()
		home, err := OpenCUDA(fakeOptions(t, g, 64<<20))
		if err != nil {
			t.Fatal(err)
		}
		options := fakeOptions(t, g, 64<<20)
		options.Number = 1
		from, err := OpenCUDA(options)
		if err != nil {
			t.Fatal(err)
		}
		if nth > 0 {
			g.fail = g.calls + nth
		}
		back := make([]byte, len(data))
		err = passOn(home, from, data, back)
		g.fail = 0
		if nth == 0 && (err != nil || !bytes.Equal(data, back)) {
			t.Fatalf("other bytes came: %v, misuse %q", err, g.broken)
		}
		if failed = g.failed != ""; failed && err == nil || !failed && err != nil || len(g.broken) > 0 {
			t.Fatalf("call %d, of %s, fails: the program gets %v; misuse %q", nth, g.failed, err, g.broken)
		}
		if err := errors.Join(from.Close(), home.Close()); err != nil || len(g.broken) > 0 {
			t.Fatalf("call %d, of %s, failed: %v, misuse %q", nth, g.failed, err, g.broken)
		}
		if nth > 200 {
			t.Fatal("no end of calls")
		}
	}
}

// passOn takes data through an inbox of home.
func passOn(home, from *CUDADevice, data, back []byte) error {
	b, err := home.OpenInbox(uint64(len(data)), 3, []*CUDADevice{from})
	if err != nil {
		return err
	}
	reader, err := home.NewStream()
	if err != nil {
		return errors.Join(err, b.Close())
	}
	writer, err := from.NewStream()
	if err != nil {
		return errors.Join(err, reader.Close(), b.Close())
	}
	at, _ := b.Range()
	call := func(s Stream, f func(c *cuda.Context, q cuda.Stream) error) {
		s.(*cudaStream).queue.Call(func(q cuda.Stream) error { return f(s.(*cudaStream).context, q) })
	}
	call(reader, func(c *cuda.Context, q cuda.Stream) error { return c.WaitCount(q, cuda.Ptr(b.Count(2)), 7, b.Flush) })
	writer.Upload(at, data)
	call(writer, func(c *cuda.Context, q cuda.Stream) error { return c.SetCount(q, cuda.Ptr(b.Count(2)), 7) })
	reader.Download(back, at)
	err = errors.Join(reader.Sync(), writer.Sync())
	b.SetCounts(0)
	return errors.Join(err, reader.Close(), writer.Close(), b.Close())
}

// TestInboxRefused: who does not reach the other one's memory, or has no counts, is told so.
func TestInboxRefused(t *testing.T) {
	gpu := OpenFakeCUDA(t, 64<<20, false)
	if _, err := gpu.OpenInbox(1<<20, 2, []*CUDADevice{gpu}); err == nil || !strings.Contains(err.Error(), "writes no memory of") {
		t.Errorf("a GPU alone: %v", err)
	}
}
