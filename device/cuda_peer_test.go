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
	driver, err := cuda.FakeDriver(g.call)
	if err != nil {
		t.Fatal(err)
	}
	d, err := OpenCUDA(CUDAOptions{Budget: 64 << 20, Workspace: 1 << 20, driver: driver})
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
