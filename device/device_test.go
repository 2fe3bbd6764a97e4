package device_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/device/devicetest"
)

const testCapacity = 20<<20 + 512

func openHost(t testing.TB, o device.HostOptions) *device.HostDevice {
	t.Helper()
	d, err := device.OpenHost(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestHost(t *testing.T) {
	devicetest.Run(t, func(t *testing.T) device.Device {
		return openHost(t, device.HostOptions{Capacity: testCapacity, Workers: 3})
	})
}

func TestHostPlain(t *testing.T) {
	devicetest.Run(t, func(t *testing.T) device.Device {
		return openHost(t, device.HostOptions{Capacity: testCapacity, Workers: 1, Plain: true})
	})
}

func TestSharedHost(t *testing.T) {
	devicetest.Run(t, func(t *testing.T) device.Device {
		return openShared(t, device.HostOptions{Capacity: testCapacity, Workers: 2})
	})
}

// openShared skips the test where the system has no memory to share.
func openShared(t testing.TB, o device.HostOptions) *device.SharedHost {
	t.Helper()
	d, err := device.OpenSharedHost(o)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestPinnedHost(t *testing.T) {
	devicetest.Run(t, func(t *testing.T) device.Device {
		d, err := device.OpenPinned(testCapacity)
		if err != nil {
			t.Fatal(err)
		}
		return d
	})
}

func TestNull(t *testing.T) {
	for _, o := range []device.NullOptions{
		{Capacity: testCapacity, Virtual: true},
		{Capacity: testCapacity, Virtual: true, Alias: true},
		{Capacity: testCapacity},
		{Capacity: 1 << 20, Virtual: true, Granularity: 512},
	} {
		devicetest.Run(t, func(t *testing.T) device.Device {
			d, err := device.OpenNull(o)
			if err != nil {
				t.Fatal(err)
			}
			return d
		})
	}
}

func TestFakeCUDA(t *testing.T) {
	devicetest.Run(t, func(t *testing.T) device.Device { return device.OpenFakeCUDA(t, testCapacity+1<<20, false) })
}

func TestFakeSharedCUDA(t *testing.T) {
	devicetest.Run(t, func(t *testing.T) device.Device { return device.OpenFakeSharedCUDA(t, testCapacity+1<<20) })
}

func TestFakeCUDAPlain(t *testing.T) {
	devicetest.Run(t, func(t *testing.T) device.Device { return device.OpenFakeCUDA(t, testCapacity+1<<20, true) })
}

func TestFakeCUDAPinned(t *testing.T) {
	devicetest.Run(t, func(t *testing.T) device.Device {
		d, err := device.OpenFakeCUDA(t, 0, false).OpenPinned(testCapacity)
		if err != nil {
			t.Fatal(err)
		}
		return d
	})
}

// TestChosen tests the device that the flag -device names, whose capacity must
// be as Run wants it: such as cuda:0,64MiB.
func TestChosen(t *testing.T) {
	if devicetest.Chosen() == "" {
		t.Skip("the flag -device names none")
	}
	devicetest.Run(t, func(t *testing.T) device.Device { return devicetest.Open(t, "") })
}

func TestOpen(t *testing.T) {
	for _, c := range []struct {
		spec, name string
		kind       device.Kind
		capacity   uint64
	}{
		{"host:256MiB", "host:256MiB", device.Host, 256 << 20},
		{"host:1000001", "host:1000001", device.Host, 1000001},
		{"null:24GiB", "null:24GiB", device.Null, 24 << 30},
		{"null:8TiB", "null:8TiB", device.Null, 8 << 40},
		{"null:0.5GiB", "null:512MiB", device.Null, 512 << 20},
		{"host:256MiB,shared", "host:256MiB,shared", device.Host, 256 << 20},
	} {
		d, err := device.Open(c.spec)
		if errors.Is(err, errors.ErrUnsupported) {
			continue
		}
		if err != nil {
			t.Errorf("Open(%q): %v", c.spec, err)
			continue
		}
		info := d.Info()
		if alias := c.kind == device.Null || strings.HasSuffix(c.spec, "shared"); info.Alias != alias {
			t.Errorf("Open(%q) gave a device with Alias %v", c.spec, info.Alias)
		}
		if info.Kind != c.kind || info.Name != c.name || info.Capacity != c.capacity {
			t.Errorf("Open(%q) gave %+v", c.spec, info)
		}
		again, err := device.Open(info.Name)
		if err != nil || again.Info() != info {
			t.Errorf("Open(%q), which is a device's name: %v", info.Name, err)
		}
		if err := errors.Join(d.Close(), again.Close()); err != nil {
			t.Error(err)
		}
	}
}

func TestOpenWholeMachine(t *testing.T) {
	for _, spec := range []string{"host", "host,shared"} {
		d, err := device.Open(spec)
		if err != nil {
			t.Skip(err)
		}
		if c := d.Info().Capacity; c < 16<<20 {
			t.Errorf("the machine has %d bytes available", c)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	for spec, want := range map[string]string{
		"":           "unknown device",
		"tpu:0":      `unknown device "tpu:0": use host:SIZE, null:SIZE, cuda:N`,
		"null":       "has no size",
		"null:":      "does not start with a number",
		"host:":      "does not start with a number",
		"host:0":     "has no memory",
		"host:-5MiB": "negative",
		"host:5XB":   "unknown unit",

		"null:1GiB,shared": "no memory to share",
		"host:1GiB,pinned": "unknown unit",
		"host:0,shared":    "has no memory",
		",shared":          "unknown device",

		"cuda":            "unknown device",
		"cuda:":           "no number of a GPU",
		"cuda:-1":         "no number of a GPU",
		"cuda:0,":         "does not start with a number",
		"cuda:0,0":        "has no memory",
		"cuda:0:8GiB":     "no number of a GPU",
		"cuda:,shared":    "no number of a GPU",
		"cuda:0,0,shared": "has no memory",
		"cuda:99,1GiB":    `device "cuda:99,1GiB": `,
	} {
		if d, err := device.Open(spec); d != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Open(%q) = %v, %v; want an error with %q", spec, d, err, want)
		}
	}
	if d, err := device.OpenHost(device.HostOptions{Capacity: 1 << 20, Workers: -1}); d != nil || err == nil {
		t.Error("a host device with -1 workers was opened")
	}
	if d, err := device.OpenNull(device.NullOptions{Capacity: 1 << 20, Alias: true}); d != nil || err == nil {
		t.Error("a null device with aliases without virtual memory was opened")
	}
	if d, err := device.OpenSharedHost(device.HostOptions{Capacity: 1 << 20, Plain: true}); d != nil || err == nil {
		t.Error("a shared host device without virtual memory was opened")
	}
	if d, err := device.OpenPinned(0); d != nil || err == nil {
		t.Error("pinned memory of 0 bytes was opened")
	}
	for _, g := range []uint64{1, 256, 513, 3 << 20} {
		if d, err := device.OpenNull(device.NullOptions{Capacity: 1 << 20, Granularity: g}); d != nil || err == nil {
			t.Errorf("a null device with a granularity of %d was opened", g)
		}
	}
}

// TestNullRecorder compares what the recorder is told with what was queued.
func TestNullRecorder(t *testing.T) {
	var got []string
	d, err := device.OpenNull(device.NullOptions{Capacity: 1 << 40, OnLaunch: func(l *device.Launch) {
		got = append(got, fmt.Sprint(l.Kernel.Name, " ", l.Bytes, " ", l.Flops, " ", l.Ptr[0], " ", l.Ptr[1]))
	}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	s.Launch(&device.Launch{Kernel: &device.Kernel{Name: "gemm"}, Bytes: 5, Flops: 7, Ptr: [device.MaxPtrs]device.Ptr{1, 2}})
	s.Copy(3, 4, 100)
	s.Upload(5, make([]byte, 10))
	s.Download(make([]byte, 20), 6)
	want := []string{"gemm 5 7 1 2", "copy 200 0 3 4", "upload 10 0 5 0", "download 20 0 0 6"}
	if !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
	allocs := testing.AllocsPerRun(10, func() {
		got = got[:0]
		s.Wait(s.Record())
	})
	if allocs != 0 {
		t.Errorf("Record and Wait make %g allocations", allocs)
	}
}

// TestNullIsLarge fills devices beyond all machines.
func TestNullIsLarge(t *testing.T) {
	d, err := device.OpenNull(device.NullOptions{Capacity: 1 << 62, Virtual: true, Granularity: 1 << 50})
	if err != nil {
		t.Fatal(err)
	}
	for range 1 << 11 {
		if _, err := d.Create(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Alloc(1 << 61); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Create(); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("a granule too many: %v", err)
	}
	for range 4 {
		_, err = d.Reserve(1 << 61)
	}
	if err == nil || errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("reservation of more addresses than there are: %v", err)
	}
}
