package alloc

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/device/devicetest"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/trace"
)

// scenario makes an allocator take every kind of driver call: reserve, create,
// map, move pages between holes, give memory back. Calls may fail; after each
// failure the state must be that of before. It says how many calls failed.
type scenario struct {
	t      *testing.T
	a      *Allocator
	dev    *lagging
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
	if c.a.page > 0 {
		c.stitch()
	}
}

// stitch makes blocks of half pages, whole ones and new ones where the device
// maps a page twice, uses them again, and moves their pages.
func (c *scenario) stitch() {
	walls := []*Block{c.alloc(mib / 2)}
	holes := []*Block{c.alloc(mib / 2), c.alloc(mib / 2)}
	walls = append(walls, c.alloc(mib/2), c.alloc(mib))
	for _, b := range holes {
		c.free(b)
	}
	x := c.alloc(5 * mib) // with new pages
	gap := c.alloc(3*mib + 512)
	walls = append(walls, c.alloc(mib/4))
	c.free(x)
	x = c.alloc(5 * mib) // again
	c.free(x)
	c.free(gap)
	y := c.alloc(9 * mib) // with free pages
	c.free(y)
	z := c.alloc(10 * mib) // takes pages that views show
	x = c.alloc(2 * mib)
	c.trim()
	for _, b := range append(walls, x, z) {
		c.free(b)
	}
	c.trim()
}

func (c *scenario) alloc(n uint64) *Block {
	before, handles, mapped := c.a.Segments(), len(c.dev.handles), len(c.dev.behind)
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
	if c.exact && (len(c.dev.handles) != handles || len(c.dev.behind) != mapped) {
		c.t.Fatalf("after %v: %d handles, %d pages mapped; were %d and %d", err, len(c.dev.handles), len(c.dev.behind), handles, mapped)
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
func faultDevice(t *testing.T, alias bool) *lagging {
	return newLagging(t, device.NullOptions{Capacity: 16 * mib, Virtual: true, Alias: alias, Granularity: mib})
}

// playFaults runs the scenario on d, which is inner with failures, and gives
// the figures and the number of operations that failed.
func playFaults(t *testing.T, inner *lagging, d device.Device, o Options, exact bool, want error) (Stats, int) {
	a, err := New(d, o)
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	c := &scenario{t: t, a: a, dev: inner, s: s, exact: exact, err: want}
	c.run()
	err = a.Close()
	if err == nil {
		err = inner.Close() // nothing is left
	} else if errors.Is(err, want) {
		err = nil
	}
	if err := errors.Join(err, inner.err); err != nil {
		t.Fatal(err)
	}
	return a.Stats(), c.failed
}

// TestScenario checks that the scenario goes everywhere.
func TestScenario(t *testing.T) {
	d := faultDevice(t, true)
	st, failed := playFaults(t, d, devicetest.Fail(d, devicetest.Any, 0, nil), Options{}, true, errInjected)
	if failed > 0 || st.Stitches < 3 || st.Reuses == 0 || st.Unmaps == 0 || st.ViewUnmaps == 0 || st.Destroys == 0 {
		t.Errorf("%d operations failed, figures %+v", failed, st)
	}
}

var virtualCalls = []devicetest.Method{devicetest.Reserve, devicetest.Create, devicetest.Map, devicetest.Unmap, devicetest.Destroy, devicetest.Release}

// TestFailureAtEveryCall lets every single driver call fail once.
func TestFailureAtEveryCall(t *testing.T) {
	for _, c := range []struct {
		name    string
		alias   bool
		options Options
		methods []devicetest.Method
	}{
		{"alias", true, Options{}, virtualCalls},
		{"virtual", false, Options{}, virtualCalls[:5]},
		{"plain", false, Options{NoVirtual: true}, []devicetest.Method{devicetest.Alloc, devicetest.Free}},
	} {
		for _, method := range c.methods {
			for _, injected := range []error{errInjected, errShort} {
				t.Run(fmt.Sprintf("%s/%v/oom=%v", c.name, method, injected != errInjected), func(t *testing.T) {
					want := injected
					if c.options.NoVirtual && injected != errInjected {
						want = device.ErrOutOfMemory // after the failure memory may be missing indeed
					}
					n, failures := 1, 0
					for ; ; n++ {
						inner := faultDevice(t, c.alias)
						d := devicetest.Fail(inner, method, n, injected)
						_, failed := playFaults(t, inner, d, c.options, !c.options.NoVirtual, want)
						failures += failed
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
	step := 1
	if invariant.Slow { // which takes its time
		step = 7
	}
	for _, first := range virtualCalls {
		for _, second := range virtualCalls {
			t.Run(fmt.Sprintf("%v-%v", first, second), func(t *testing.T) {
				for i, more := 1, true; more; i += step {
					more = false
					for j := 1; ; j++ {
						dev := faultDevice(t, true)
						inner := devicetest.Fail(dev, first, i, errInjected)
						outer := devicetest.Fail(inner, second, j, errInjected)
						playFaults(t, dev, outer, Options{}, false, errInjected)
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

// TestCloseTakesStitchesBack closes an allocator with stitched blocks that are
// live, pending and free.
func TestCloseTakesStitchesBack(t *testing.T) {
	a, _, x := stitched(t, Options{})
	err := a.Close()
	if err == nil || !strings.Contains(err.Error(), "activation 4MiB") {
		t.Errorf("Close: %v, want it to tell of 4 MiB", err)
	}
	mustPanic(t, "allocator closed", x.Free)
	if err := a.Device().Close(); err != nil {
		t.Error(err)
	}
	a, _, x = stitched(t, Options{})
	other, _ := a.Device().NewStream()
	x.Use(other)
	x.Free()
	_ = a.Close()
	if err := a.Device().Close(); err != nil {
		t.Error(err)
	}
}

// TestFewAddresses opens an allocator where addresses are scarce.
func TestFewAddresses(t *testing.T) {
	for most, ok := range map[uint64]bool{1 << 40: true, 20 * mib: true, 7 * mib: true, 2 * mib: false} {
		a, err := New(fewAddresses{faultDevice(t, false), most}, Options{})
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
