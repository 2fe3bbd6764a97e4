package devicetest

import (
	"flag"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/device"
)

// chosen is the device to run tests on in place of the host, such as cuda:0.
// CUDA's libraries are looked for as the loader does, so LD_LIBRARY_PATH may
// name their folders.
var chosen = flag.String("device", "", "device to run tests on in place of the host, such as cuda:0,1GiB")

// Chosen is the name of the device that the flag -device of the test names, or
// empty.
func Chosen() string { return *chosen }

// GPUs says whether that is a GPU, so that tests of several devices use those of the
// driver, from number 0 on.
func GPUs() bool { return strings.HasPrefix(*chosen, "cuda") }

// Open opens the device of a name, or the one that the flag -device names.
func Open(t testing.TB, name string) device.Device {
	t.Helper()
	if *chosen != "" {
		name = *chosen
	}
	d, err := device.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
