package cuda

import (
	"fmt"
	"strings"

	"github.com/headroom-go/headroom/internal/library"
)

// Error is the failure of a call into a library.
type Error struct {
	Library string // "libcuda.so.1"
	Call    string // the symbol
	Code    int    // as the library returned it
	Name    string // the code's name, where the library knows one
	Text    string // what it means
	Advice  string // what to do, where there is a known answer
}

// Error says all that is known.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s returned %d", e.Library, e.Call, e.Code)
	if e.Name != "" {
		fmt.Fprintf(&b, " (%s)", e.Name)
	}
	for _, s := range []string{e.Text, e.Advice} {
		if s != "" {
			b.WriteString(": " + s)
		}
	}
	return b.String()
}

// Codes of the driver that callers ask for.
const (
	OutOfMemory  = 2
	NoDevice     = 100
	NotReady     = 600
	NotSupported = 801
)

// advice says what to do about codes of the driver.
var advice = map[int]string{
	library.NotFound: "the library is older than this call: install a newer driver",
	OutOfMemory:      "other programs may hold the memory: nvidia-smi lists them; or give the device a budget, such as cuda:0,8GiB",
	3:                "the driver is shutting down: the program called it after its end",
	34:               "the library is the toolkit's stub: take the folder with stubs out of LD_LIBRARY_PATH",
	46:               "another process has the device for itself: wait for it, or choose another device",
	NoDevice:         "no GPU is visible: look at nvidia-smi, at CUDA_VISIBLE_DEVICES, and, in a container, at whether it was started with --gpus",
	101:              "there is no device of that number: nvidia-smi -L lists them",
	209:              "the kernels have no version for this GPU: a GPU of compute capability 7.0 or newer is needed",
	218:              "the driver could not compile the kernels: install a newer driver",
	222:              "the driver is older than the kernels' PTX: install a newer driver",
	700:              "a kernel used an address without memory: the context is lost, and the program must start anew",
	716:              "a kernel used a misaligned address: the context is lost, and the program must start anew",
	719:              "a kernel failed: the context is lost, and the program must start anew",
	802:              "the system is not ready: on machines with NVSwitch, start the fabric manager",
	803:              "the driver's library and its kernel module have different versions: restart the machine after an update of the driver",
	804:              "the compatibility library does not work with this GPU: take it out of LD_LIBRARY_PATH",
	999:              "the driver gives no reason: dmesg may have one (Xid)",
}
