package device

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/internal/cuda"
)

// TestSharedCUDAName: the name says that the memory can be shared.
func TestSharedCUDAName(t *testing.T) {
	d := OpenFakeSharedCUDA(t, 64<<20)
	if i := d.Info(); i.Name != "cuda:0,64MiB,shared" || !i.Virtual || !i.Alias || i.Kind != CUDA || CUDAOf(d) != d.CUDADevice {
		t.Errorf("a shared GPU says %+v", i)
	}
	if name := OpenFakeSharedCUDA(t, 0).Info().Name; name != "cuda:0,shared" {
		t.Errorf("a shared GPU without a budget is called %q", name)
	}
}

// TestSharedCUDARefused: who cannot share is told so, and holds nothing.
func TestSharedCUDARefused(t *testing.T) {
	for _, noVMM := range []bool{false, true} {
		g := newFakeGPU()
		g.noVMM, g.noFiles = noVMM, !noVMM
		d, err := OpenSharedCUDA(fakeOptions(t, g, 64<<20))
		if d != nil || !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), `without "shared"`) {
			t.Errorf("virtual memory %v, files %v: %v", !g.noVMM, !g.noFiles, err)
		}
		if g.left() > 0 {
			t.Errorf("%d things were not given back", g.left())
		}
	}
	o := fakeOptions(t, newFakeGPU(), 64<<20)
	o.Plain = true
	if d, err := OpenSharedCUDA(o); d != nil || err == nil {
		t.Error("a shared GPU without virtual memory was opened")
	}
	if _, ok := Device(OpenFakeCUDA(t, 64<<20, false)).(Sharer); ok {
		t.Error("a GPU that was not opened for it shares memory")
	}
}

// TestSharedCUDAFailures lets every call to the driver fail once while memory is
// shared. The failure shows, and no file stays open but that of a handle which
// the driver did not take back.
func TestSharedCUDAFailures(t *testing.T) {
	calls := map[string]int{}
	for nth, failed := 1, true; failed; nth++ {
		g := newFakeGPU()
		g.fail = nth
		err := shareCUDA(t, g)
		failed = g.failed != ""
		calls[g.failed]++
		if (err != nil) != failed || len(g.broken) > 0 {
			t.Fatalf("call %d, of %s, fails: the program gets %v; misuse %q", nth, g.failed, err, g.broken)
		}
		if failed && !strings.Contains(err.Error(), g.failed) && !harmless[g.failed] {
			t.Fatalf("call %d, of %s, fails: the error does not say so: %v", nth, g.failed, err)
		}
		for h := range g.files {
			g.forget(h)
		}
	}
	if calls["cuMemExportToShareableHandle"] != 1 || calls["cuMemImportFromShareableHandle"] != 1 {
		t.Errorf("failed calls were %v", calls)
	}
}

// shareCUDA exports a handle, imports it, passes that on, and reads it where it
// is mapped then.
func shareCUDA(t *testing.T, g *fakeGPU) error {
	driver, err := cuda.FakeDriver(g.call)
	if err != nil {
		return err
	}
	d, err := OpenSharedCUDA(CUDAOptions{Budget: 64 << 20, Workspace: 1 << 20, driver: driver})
	if err != nil {
		return err
	}
	return errors.Join(shareOpenCUDA(t, d), d.Close())
}

func shareOpenCUDA(t *testing.T, d *SharedCUDA) error {
	h, err := d.Create()
	if err != nil {
		return err
	}
	f, offset, err := d.Export(h)
	if err != nil {
		return errors.Join(err, d.Destroy(h))
	}
	again, err := d.Import(f, offset)
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, d.Destroy(h))
	}
	on, _, err := d.Export(again)
	if err == nil {
		err = errors.Join(on.Close(), copyThrough(t, d, []Handle{h, again}))
	}
	return errors.Join(err, d.book.check(), d.Destroy(again), d.Destroy(h))
}

// copyThrough writes by the first handle and expects to read it by the second.
func copyThrough(t *testing.T, d *SharedCUDA, handles []Handle) error {
	p, err := d.Reserve(2 * fakeGranule)
	if err != nil {
		return err
	}
	if err := d.Map(p, handles); err != nil {
		return errors.Join(err, d.Release(p))
	}
	s, err := d.NewStream()
	if err == nil {
		want, got := []byte("question"), make([]byte, 8)
		s.Upload(p, want)
		s.Download(got, p+fakeGranule)
		if err = s.Sync(); err == nil && !bytes.Equal(got, want) {
			t.Errorf("read %q", got)
		}
	}
	return errors.Join(err, d.Unmap(p, 2), d.Release(p))
}
