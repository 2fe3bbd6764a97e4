package tensor_test

import (
	"testing"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/device/devicetest"
	"github.com/headroom-go/headroom/tensor"
)

// runtime gives a runtime on a host device for the duration of the test, at
// whose end every handle must be released and every byte given back.
func runtime(t testing.TB) *tensor.Runtime {
	t.Helper()
	return on(t, devicetest.Open(t, "host:64MiB"))
}

// runtimeOn is runtime on the device of a name, whatever the flag -device says.
func runtimeOn(t testing.TB, spec string) *tensor.Runtime {
	t.Helper()
	dev, err := device.Open(spec)
	if err != nil {
		t.Fatal(err)
	}
	return on(t, dev)
}

func on(t testing.TB, dev device.Device) *tensor.Runtime {
	t.Helper()
	mem, err := alloc.New(dev, alloc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	rt := tensor.New(mem, stream)
	t.Cleanup(func() {
		if n := rt.Live(); n != 0 && !t.Failed() {
			t.Errorf("%d handles were not released", n)
		}
		if t.Failed() {
			rt.Rewind(0)
		}
		for _, close := range []func() error{rt.Sync, mem.Close, stream.Close, dev.Close} {
			if err := close(); err != nil {
				t.Error(err)
			}
		}
	})
	return rt
}
