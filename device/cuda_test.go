package device

import (
	"errors"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/internal/cuda"
)

// OpenFakeCUDA opens a CUDA device on a driver in Go memory for the tests of
// package device_test. At the test's end the driver must have been used well
// and have everything back.
func OpenFakeCUDA(t *testing.T, budget uint64, plain bool) *CUDADevice {
	g := newFakeGPU()
	g.noVMM = plain
	d, err := OpenCUDA(fakeOptions(t, g, budget))
	if err != nil {
		t.Fatal(err)
	}
	checkAtEnd(t, g, d)
	return d
}

// OpenFakeSharedCUDA is OpenFakeCUDA for a GPU whose memory can be shared, also
// with those of other drivers.
func OpenFakeSharedCUDA(t *testing.T, budget uint64) *SharedCUDA {
	g := newFakeGPU()
	d, err := OpenSharedCUDA(fakeOptions(t, g, budget))
	if err != nil {
		t.Fatal(err)
	}
	checkAtEnd(t, g, d)
	return d
}

func fakeOptions(t *testing.T, g *fakeGPU, budget uint64) CUDAOptions {
	driver, err := cuda.FakeDriver(g.call)
	if err != nil {
		t.Fatal(err)
	}
	return CUDAOptions{Budget: budget, Workspace: 1 << 20, driver: driver}
}

func checkAtEnd(t *testing.T, g *fakeGPU, d Device) {
	t.Cleanup(func() {
		_ = d.Close()
		if len(g.broken) > 0 || g.left() > 0 {
			t.Errorf("the driver was misused: %q; %d things were not given back", g.broken, g.left())
		}
	})
}

// TestCUDAFailures lets every call to the driver fail once, in a use of all
// that the device offers. The failure must show, by the step or by the stream,
// and the device must close without misuse of the driver.
func TestCUDAFailures(t *testing.T) {
	for nth, failed := 1, true; failed; nth++ {
		g := newFakeGPU()
		g.fail = nth
		err := useCUDA(g)
		failed = g.failed != ""
		if (err != nil) != failed || len(g.broken) > 0 {
			t.Fatalf("call %d, of %s, fails: the program gets %v; misuse %q", nth, g.failed, err, g.broken)
		}
		if failed && !strings.Contains(err.Error(), g.failed) && !harmless[g.failed] {
			t.Fatalf("call %d, of %s, fails: the error does not say so: %v", nth, g.failed, err)
		}
		if nth > 500 {
			t.Fatal("no end of calls")
		}
	}
}

// harmless are calls whose failure the error names otherwise.
var harmless = map[string]bool{"cuCtxSetCurrent": true}

// useCUDA uses a device on the GPU and gives the first thing that went wrong.
func useCUDA(g *fakeGPU) error {
	driver, err := cuda.FakeDriver(g.call)
	if err != nil {
		return err
	}
	d, err := OpenCUDA(CUDAOptions{Budget: 64 << 20, Workspace: 1 << 20, driver: driver})
	if err != nil {
		return err
	}
	err = useOpenCUDA(d)
	return errors.Join(err, d.Close())
}

func useOpenCUDA(d *CUDADevice) error {
	s, err := d.NewStream()
	if err != nil {
		return err
	}
	other, err := d.NewStream()
	if err != nil {
		return err
	}
	p, err := d.Alloc(1000)
	if err != nil {
		return err
	}
	q, err := d.Reserve(2 * fakeGranule)
	if err != nil {
		return errors.Join(err, d.Free(p))
	}
	h, err := d.Create()
	if err == nil {
		if err = d.Map(q, []Handle{h, h}); err == nil {
			s.Upload(q, make([]byte, 1000))
			s.Copy(p, q+500, 500)
			for range directLaunches + 2 {
				fakeLaunch(s, q+8, 1)
			}
			e := s.Record()
			other.Wait(e)
			other.Download(make([]byte, 10), p)
			err = errors.Join(other.Sync(), s.Sync())
			e.Sync()
			err = errors.Join(err, d.Unmap(q, 2))
		}
		err = errors.Join(err, d.Destroy(h))
	}
	return errors.Join(err, d.Release(q), d.Free(p))
}

// TestCUDAEvents records more events than are ever pending: the driver's are
// used again, and old ones stay done.
func TestCUDAEvents(t *testing.T) {
	d := OpenFakeCUDA(t, 0, false)
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	p, err := d.Alloc(512)
	if err != nil {
		t.Fatal(err)
	}
	var events []Event
	for range 1000 {
		s.Upload(p, []byte{1})
		events = append(events, s.Record())
	}
	events[500].Sync()
	for i, e := range events[:501] {
		if !e.Done() {
			t.Fatalf("event %d is not done, though 500 is", i)
		}
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	if !events[999].Done() {
		t.Error("the last event is not done after Sync")
	}
	if n := len(s.(*cudaStream).host.held); n != 0 {
		t.Errorf("%d pieces of host memory are held after Sync", n)
	}
	if err := errors.Join(d.Free(p), s.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestCUDABudget: the workspace is part of the budget.
func TestCUDABudget(t *testing.T) {
	d := OpenFakeCUDA(t, 64<<20, false)
	if i := d.Info(); i.Capacity != 63<<20 || i.Name != "cuda:0,64MiB" || i.Model != "fake" || !i.Virtual || !i.Alias || i.Kind != CUDA {
		t.Errorf("a budget of 64 MiB with 1 MiB of workspace gives %+v", i)
	}
	driver, err := cuda.FakeDriver(newFakeGPU().call)
	if err != nil {
		t.Fatal(err)
	}
	if d, err := OpenCUDA(CUDAOptions{Budget: 1 << 20, driver: driver}); err == nil {
		t.Errorf("a budget less than the workspace gives %+v", d.Info())
	}
	if d, err := OpenCUDA(CUDAOptions{Number: 2, driver: driver}); err == nil {
		t.Errorf("GPU 2 of two gives %+v", d.Info())
	}
}

// TestCUDALaunchWithoutVersion: a kernel for the host alone ends the stream.
func TestCUDALaunchWithoutVersion(t *testing.T) {
	d := OpenFakeCUDA(t, 0, false)
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	s.Launch(&Launch{Kernel: &Kernel{Name: "hostly"}})
	if err := s.Sync(); err == nil || !strings.Contains(err.Error(), "hostly has no version for CUDA") {
		t.Errorf("Sync returned %v", err)
	}
	if err := s.Close(); err == nil {
		t.Error("Close hides the error")
	}
}

// TestCUDAWorkspaceOfAnEndedStream: the workspace of a stream that has ended is
// free, with nothing to wait for.
func TestCUDAWorkspaceOfAnEndedStream(t *testing.T) {
	d := OpenFakeCUDA(t, 0, false)
	use := &Kernel{Name: "test", CUDA: func(_ *Launch, q *CUDAQueue) { q.Workspace(1) }}
	for range 2 {
		s, err := d.NewStream()
		if err != nil {
			t.Fatal(err)
		}
		s.Launch(&Launch{Kernel: use})
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
