package alloc

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/headroom-go/headroom/device"
)

var soak = flag.Int("soak", 20_000, "operations of TestSoak")

// errInjected is what a failing device call returns.
var errInjected = errors.New("injected failure")

// errShort is the same as want of memory.
var errShort = fmt.Errorf("%w: %w", errInjected, device.ErrOutOfMemory)

// flaky is a device of which every nth call fails; 0: none.
type flaky struct {
	device.Device
	nth    int
	err    error
	calls  int
	faults int // calls that failed
}

// fail counts a call and gives its error, if it is one to fail.
func (f *flaky) fail() error {
	f.calls++
	if f.nth == 0 || f.calls%f.nth > 0 {
		return nil
	}
	f.faults++
	return f.err
}

func (f *flaky) Alloc(n uint64) (device.Ptr, error) {
	if err := f.fail(); err != nil {
		return 0, err
	}
	return f.Device.Alloc(n)
}

func (f *flaky) Free(p device.Ptr) error {
	return either(f.fail(), func() error { return f.Device.Free(p) })
}

func (f *flaky) Reserve(n uint64) (device.Ptr, error) {
	if err := f.fail(); err != nil {
		return 0, err
	}
	return f.Device.Reserve(n)
}

func (f *flaky) Release(p device.Ptr) error {
	return either(f.fail(), func() error { return f.Device.Release(p) })
}

func (f *flaky) Create() (device.Handle, error) {
	if err := f.fail(); err != nil {
		return 0, err
	}
	return f.Device.Create()
}

func (f *flaky) Destroy(h device.Handle) error {
	return either(f.fail(), func() error { return f.Device.Destroy(h) })
}

func (f *flaky) Map(p device.Ptr, handles []device.Handle) error {
	return either(f.fail(), func() error { return f.Device.Map(p, handles) })
}

func (f *flaky) Unmap(p device.Ptr, n int) error {
	return either(f.fail(), func() error { return f.Device.Unmap(p, n) })
}

// either gives err, or what call gives if there is none.
func either(err error, call func() error) error {
	if err != nil {
		return err
	}
	return call()
}

// TestSoak plays random programs on devices of every kind while every nth
// driver call fails, and looks after the model's equations now and then. In
// the end, when no more call fails, every byte is there. For long runs:
//
//	go test ./alloc -run Soak -soak 1000000
func TestSoak(t *testing.T) {
	const most, every = 64, 8
	total, faults := tally{}, 0
	for nth := 1; nth <= most; nth++ {
		r := rand.New(rand.NewPCG(uint64(nth), 7))
		for left := *soak / most; left > 0; {
			data := randomOperations(r.Uint64(), min(left, 1000))
			left -= len(data) / 2
			m := newModel(t, data, nth)
			for i := 2; i < len(data); i += 2 {
				m.flaky.err = [2]error{errInjected, errShort}[i/2%2]
				m.step(data[i], int(data[i+1]))
				if i/2%every == 0 {
					m.check()
				}
				if t.Failed() {
					t.Fatalf("every call no. %d failing, operation %d", nth, i/2)
				}
			}
			faults += m.flaky.faults
			m.flaky.nth = 0
			m.end()
			total.add(m)
		}
	}
	t.Logf("%d driver calls failed, %v", faults, total)
	if faults < *soak/50 {
		t.Errorf("only %d driver calls failed in %d operations", faults, *soak)
	}
	total.least(t, uint64(*soak)/10_000, "stitches_total", "stitch_reuses_total", "unmaps_total", "view_unmaps_total", "compacted")
}
