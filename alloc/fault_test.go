package alloc

import (
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/device/devicetest"
	"github.com/headroom-go/headroom/trace"
)

// errInjected is what a failing device call returns.
var errInjected = errors.New("injected failure")

// scenario makes an allocator take every kind of driver call: reserve, create,
// map, move pages between holes, give memory back. Calls may fail; after each
// failure the state must be that of before. It says how many calls failed.
type scenario struct {
	t      *testing.T
	a      *Allocator
	s      device.Stream
	exact  bool // a failure leaves exactly what was before
	failed int
	err    error // the injected one
}

const mib = 1 << 20

func (c *scenario) run() {
	var keep []*Block
	for range 3 { // holes of one and a half pages between live blocks
		gone := c.alloc(3*mib + 512)
		keep = append(keep, c.alloc(mib/2))
		c.free(gone)
	}
	small := c.alloc(512)
	big := c.alloc(5 * mib) // takes pages from the holes
	c.free(small)
	c.trim()
	c.free(big)
	huge := c.alloc(10 * mib)
	c.free(huge)
	for _, b := range keep {
		c.free(b)
	}
	c.trim()
}

func (c *scenario) alloc(n uint64) *Block {
	before := c.a.Segments()
	stats := c.a.Stats()
	b, err := c.a.Alloc(n, trace.Activation, c.s)
	c.check("Alloc", err)
	if err == nil {
		return b
	}
	if after := c.a.Stats(); after.Live != stats.Live || after.PeakLive != stats.PeakLive || after.PeakReserved != stats.PeakReserved {
		c.t.Fatalf("figures after the failure %+v, before %+v", after, stats)
	}
	if c.exact && (!reflect.DeepEqual(c.a.Segments(), before) || c.a.Stats().Reserved != stats.Reserved) {
		c.t.Fatalf("after %v: %d bytes reserved, segments\n%v\nwere %d\n%v", err, c.a.Stats().Reserved, c.a.Segments(), stats.Reserved, before)
	}
	b, err = c.a.Alloc(n, trace.Activation, c.s) // the program tries again
	c.check("second Alloc", err)
	return b
}

func (c *scenario) free(b *Block) {
	if b != nil {
		b.Free()
	}
}

func (c *scenario) trim() {
	if _, err := c.a.Trim(0); err != nil {
		c.check("Trim", err)
		_, err = c.a.Trim(0)
		c.check("second Trim", err)
	}
}

func (c *scenario) check(what string, err error) {
	c.t.Helper()
	if err != nil {
		c.failed++
		if !errors.Is(err, c.err) {
			c.t.Fatalf("%s: %v, want it to wrap %v", what, err, c.err)
		}
	}
	if err := c.a.Check(); err != nil {
		c.t.Fatalf("after %s: %v", what, err)
	}
}

// faultDevice is a device for scenario on which memory is short: the large
// block does not fit without taking pages from holes.
func faultDevice(t *testing.T) device.Device {
	d, err := device.OpenNull(device.NullOptions{Capacity: 16 * mib, Virtual: true, Granularity: mib})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// playFaults runs the scenario on d and says how many operations failed.
func playFaults(t *testing.T, d device.Device, o Options, exact bool, want error) int {
	a, err := New(d, o)
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	c := &scenario{t: t, a: a, s: s, exact: exact, err: want}
	c.run()
	if err := a.Close(); err != nil && !errors.Is(err, want) {
		t.Fatal(err)
	}
	return c.failed
}

// TestFailureAtEveryCall lets every single driver call fail once.
func TestFailureAtEveryCall(t *testing.T) {
	virtual := []devicetest.Method{devicetest.Reserve, devicetest.Create, devicetest.Map, devicetest.Unmap, devicetest.Destroy, devicetest.Release}
	for _, c := range []struct {
		options Options
		methods []devicetest.Method
	}{{Options{}, virtual}, {Options{NoVirtual: true}, []devicetest.Method{devicetest.Alloc, devicetest.Free}}} {
		for _, method := range c.methods {
			for _, injected := range []error{errInjected, fmt.Errorf("no more: %w", device.ErrOutOfMemory)} {
				t.Run(fmt.Sprintf("%v/oom=%v", method, injected != errInjected), func(t *testing.T) {
					want := injected
					if c.options.NoVirtual && injected != errInjected {
						want = device.ErrOutOfMemory // after the failure memory may be missing indeed
					}
					n, failures := 1, 0
					for ; ; n++ {
						d := devicetest.Fail(faultDevice(t), method, n, injected)
						failures += playFaults(t, d, c.options, !c.options.NoVirtual, want)
						if !d.Failed() {
							break
						}
					}
					if n == 1 {
						t.Error("the scenario makes no such call")
					}
					t.Logf("%d calls, of which %d made an operation fail", n-1, failures)
				})
			}
		}
	}
}

// TestFailureWhileUndoing lets two calls fail: the second one often meets the
// allocator while it takes back what it did before the first.
func TestFailureWhileUndoing(t *testing.T) {
	methods := []devicetest.Method{devicetest.Create, devicetest.Map, devicetest.Unmap, devicetest.Destroy}
	for _, first := range methods {
		for _, second := range methods {
			t.Run(fmt.Sprintf("%v-%v", first, second), func(t *testing.T) {
				for i, more := 1, true; more; i++ {
					more = false
					for j := 1; ; j++ {
						inner := devicetest.Fail(faultDevice(t), first, i, errInjected)
						outer := devicetest.Fail(inner, second, j, errInjected)
						playFaults(t, outer, Options{}, false, errInjected)
						more = more || inner.Failed()
						if !outer.Failed() {
							break
						}
					}
				}
			})
		}
	}
}

// TestFewAddresses opens an allocator where addresses are scarce.
func TestFewAddresses(t *testing.T) {
	for most, ok := range map[uint64]bool{1 << 40: true, 20 * mib: true, 7 * mib: true, 2 * mib: false} {
		a, err := New(fewAddresses{faultDevice(t), most}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		s, _ := a.Device().NewStream()
		for range 2 {
			b, err := a.Alloc(3*mib, trace.Other, s)
			if (err == nil) != ok || !ok && !errors.Is(err, errInjected) {
				t.Errorf("ranges of at most %d bytes: %v", most, err)
			}
			if err == nil && (b.seg.size > most || b.seg.size < min(most, 64*mib)/2) {
				t.Errorf("a segment has %d bytes of addresses, %d are allowed", b.seg.size, most)
			}
		}
	}
}

// fewAddresses refuses ranges of more than most bytes.
type fewAddresses struct {
	device.Device
	most uint64
}

func (d fewAddresses) Reserve(n uint64) (device.Ptr, error) {
	if n > d.most {
		return 0, errInjected
	}
	return d.Device.Reserve(n)
}
