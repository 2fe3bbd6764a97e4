package devicetest_test

import (
	"errors"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/device/devicetest"
)

func openNull(t *testing.T) device.Device {
	t.Helper()
	d, err := device.Open("null:64MiB")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestFailPassesAll runs the suite on a device that is wrapped and never fails.
func TestFailPassesAll(t *testing.T) {
	devicetest.Run(t, func(t *testing.T) device.Device {
		return devicetest.Fail(openNull(t), devicetest.Alloc, 0, nil)
	})
}

// use calls every method twice and returns the name of the first that failed.
func use(d device.Device) (string, error) {
	for range 2 {
		_, err := d.NewStream()
		p, err1 := d.Alloc(512)
		q, err2 := d.Reserve(d.Info().Granularity)
		h, err3 := d.Create()
		for _, step := range []struct {
			method devicetest.Method
			err    error
		}{
			{devicetest.NewStream, err}, {devicetest.Alloc, err1}, {devicetest.Reserve, err2}, {devicetest.Create, err3},
			{devicetest.Map, d.Map(q, []device.Handle{h})}, {devicetest.Unmap, d.Unmap(q, 1)},
			{devicetest.Destroy, d.Destroy(h)}, {devicetest.Release, d.Release(q)}, {devicetest.Free, d.Free(p)},
		} {
			if step.err != nil {
				return step.method.String(), step.err
			}
		}
	}
	return "", nil
}

func TestFail(t *testing.T) {
	failure := errors.New("injected")
	for m := devicetest.Alloc; m <= devicetest.NewStream; m++ {
		for nth := 0; nth <= 3; nth++ {
			d := devicetest.Fail(openNull(t), m, nth, failure)
			name, err := use(d)
			fails := nth == 1 || nth == 2
			if fails != d.Failed() || fails != errors.Is(err, failure) || (fails && name != m.String()) {
				t.Errorf("%v %d: %q failed with %v; Failed says %v", m, nth, name, err, d.Failed())
			}
			if !fails && d.Calls(m) != 2 {
				t.Errorf("%v was called %d times, want 2", m, d.Calls(m))
			}
		}
	}
}

// TestFailAny lets each call fail once, and expects every method to be met.
func TestFailAny(t *testing.T) {
	failure := errors.New("injected")
	met := map[string]int{}
	for nth := 1; ; nth++ {
		d := devicetest.Fail(openNull(t), devicetest.Any, nth, failure)
		name, err := use(d)
		if !d.Failed() {
			if nth != 2*9+1 || d.Calls(devicetest.Any) != 2*9 || err != nil {
				t.Errorf("call %d of %d did not fail; %v", nth, d.Calls(devicetest.Any), err)
			}
			break
		}
		if !errors.Is(err, failure) {
			t.Errorf("call %d: %v", nth, err)
		}
		met[name]++
	}
	if len(met) != 9 {
		t.Errorf("failures by method: %v", met)
	}
}

// TestGranules counts the granules of calls, done and failed.
func TestGranules(t *testing.T) {
	d := devicetest.Fail(openNull(t), devicetest.Map, 2, errors.New("injected"))
	p, err1 := d.Reserve(4 * d.Info().Granularity)
	h, err2 := d.Create()
	err3 := d.Map(p, []device.Handle{h, h, h})
	if err := errors.Join(err1, err2, err3, d.Unmap(p, 3)); err != nil {
		t.Fatal(err)
	}
	if d.Map(p, []device.Handle{h}) == nil {
		t.Error("the second Map did not fail")
	}
	if m, u, all := d.Granules(devicetest.Map), d.Granules(devicetest.Unmap), d.Granules(devicetest.Any); m != 4 || u != 3 || all != 7 {
		t.Errorf("%d granules mapped, %d unmapped, %d together; want 4, 3, 7", m, u, all)
	}
}
