package cuda

import (
	"bytes"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/headroom-go/headroom/internal/library"
)

// Places of the driver's functions in driverSymbols.
const (
	cuInit = iota
	cuDriverGetVersion
	cuGetErrorName
	cuGetErrorString
	cuDeviceGetCount
	cuDeviceGet
	cuDeviceGetName
	cuDeviceGetAttribute
	cuDeviceGetPCIBusID
	cuDeviceCanAccessPeer
	cuDevicePrimaryCtxRetain
	cuDevicePrimaryCtxRelease
	cuCtxSetCurrent
	cuMemGetInfo
	cuMemAlloc
	cuMemFree
	cuMemHostAlloc
	cuMemFreeHost
	cuMemGetAllocationGranularity
	cuMemAddressReserve
	cuMemAddressFree
	cuMemCreate
	cuMemRelease
	cuMemMap
	cuMemUnmap
	cuMemSetAccess
	cuMemExportToShareableHandle
	cuMemImportFromShareableHandle
	cuMemcpyDtoDAsync
	cuMemcpyHtoDAsync
	cuMemcpyDtoHAsync
	cuStreamCreate
	cuStreamDestroy
	cuStreamSynchronize
	cuStreamWaitEvent
	cuStreamWaitValue64
	cuStreamWriteValue64
	cuEventCreate
	cuEventDestroy
	cuEventRecord
	cuEventQuery
	cuEventSynchronize
	cuEventElapsedTime
	cuModuleLoadDataEx
	cuModuleUnload
	cuModuleGetFunction
	cuFuncSetAttribute
	cuLaunchKernel
	cuLaunchKernelEx
	cuStreamBeginCapture
	cuStreamEndCapture
	cuGraphInstantiateWithFlags
	cuGraphExecUpdate
	cuGraphExecDestroy
	cuGraphDestroy
	cuGraphLaunch
)

// driverSymbols are the driver's functions as the library names them. Those
// with a version lack the first one's limit of 32 bits.
var driverSymbols = []string{
	cuInit:                         "cuInit",
	cuDriverGetVersion:             "cuDriverGetVersion",
	cuGetErrorName:                 "cuGetErrorName",
	cuGetErrorString:               "cuGetErrorString",
	cuDeviceGetCount:               "cuDeviceGetCount",
	cuDeviceGet:                    "cuDeviceGet",
	cuDeviceGetName:                "cuDeviceGetName",
	cuDeviceGetAttribute:           "cuDeviceGetAttribute",
	cuDeviceGetPCIBusID:            "cuDeviceGetPCIBusId",
	cuDeviceCanAccessPeer:          "cuDeviceCanAccessPeer",
	cuDevicePrimaryCtxRetain:       "cuDevicePrimaryCtxRetain",
	cuDevicePrimaryCtxRelease:      "cuDevicePrimaryCtxRelease_v2",
	cuCtxSetCurrent:                "cuCtxSetCurrent",
	cuMemGetInfo:                   "cuMemGetInfo_v2",
	cuMemAlloc:                     "cuMemAlloc_v2",
	cuMemFree:                      "cuMemFree_v2",
	cuMemHostAlloc:                 "cuMemHostAlloc",
	cuMemFreeHost:                  "cuMemFreeHost",
	cuMemGetAllocationGranularity:  "cuMemGetAllocationGranularity",
	cuMemAddressReserve:            "cuMemAddressReserve",
	cuMemAddressFree:               "cuMemAddressFree",
	cuMemCreate:                    "cuMemCreate",
	cuMemRelease:                   "cuMemRelease",
	cuMemMap:                       "cuMemMap",
	cuMemUnmap:                     "cuMemUnmap",
	cuMemSetAccess:                 "cuMemSetAccess",
	cuMemExportToShareableHandle:   "cuMemExportToShareableHandle",
	cuMemImportFromShareableHandle: "cuMemImportFromShareableHandle",
	cuMemcpyDtoDAsync:              "cuMemcpyDtoDAsync_v2",
	cuMemcpyHtoDAsync:              "cuMemcpyHtoDAsync_v2",
	cuMemcpyDtoHAsync:              "cuMemcpyDtoHAsync_v2",
	cuStreamCreate:                 "cuStreamCreate",
	cuStreamDestroy:                "cuStreamDestroy_v2",
	cuStreamSynchronize:            "cuStreamSynchronize",
	cuStreamWaitEvent:              "cuStreamWaitEvent",
	cuStreamWaitValue64:            "cuStreamWaitValue64_v2",
	cuStreamWriteValue64:           "cuStreamWriteValue64_v2",
	cuEventCreate:                  "cuEventCreate",
	cuEventDestroy:                 "cuEventDestroy_v2",
	cuEventRecord:                  "cuEventRecord",
	cuEventQuery:                   "cuEventQuery",
	cuEventSynchronize:             "cuEventSynchronize",
	cuEventElapsedTime:             "cuEventElapsedTime",
	cuModuleLoadDataEx:             "cuModuleLoadDataEx",
	cuModuleUnload:                 "cuModuleUnload",
	cuModuleGetFunction:            "cuModuleGetFunction",
	cuFuncSetAttribute:             "cuFuncSetAttribute",
	cuLaunchKernel:                 "cuLaunchKernel",
	cuLaunchKernelEx:               "cuLaunchKernelEx",
	cuStreamBeginCapture:           "cuStreamBeginCapture_v2",
	cuStreamEndCapture:             "cuStreamEndCapture",
	cuGraphInstantiateWithFlags:    "cuGraphInstantiateWithFlags",
	cuGraphExecUpdate:              "cuGraphExecUpdate_v2",
	cuGraphExecDestroy:             "cuGraphExecDestroy",
	cuGraphDestroy:                 "cuGraphDestroy",
	cuGraphLaunch:                  "cuGraphLaunch",
}

// Driver is the CUDA driver. Its methods may be called from several goroutines
// at once.
type Driver struct{ *library.Library }

// OpenDriver loads and starts the driver. folders are patterns of where to
// look for it after the loader did. It fails with library.ErrUnavailable where there is
// no driver, and with an *Error of code NoDevice where there is no GPU.
func OpenDriver(folders []string) (*Driver, error) {
	l, err := library.Open([]string{"libcuda.so.1", "libcuda.so"}, folders, driverSymbols)
	if err != nil {
		return nil, err
	}
	return startDriver(l)
}

// FakeDriver is a driver whose calls go to f, for tests.
func FakeDriver(f library.Caller) (*Driver, error) {
	return startDriver(library.Fake("fake", driverSymbols, f))
}

func startDriver(l *library.Library) (*Driver, error) {
	d := &Driver{l}
	return d, d.check(cuInit, d.Call(cuInit, 0))
}

// check turns the code of a call into an error, or nil for 0.
func (d *Driver) check(symbol, code int) error {
	if code == 0 {
		return nil
	}
	return d.failure(symbol, code)
}

// failure asks the driver what a code means.
func (d *Driver) failure(symbol, code int) error {
	e := &Error{Library: d.Name, Call: d.Symbol(symbol), Code: code, Advice: advice[code]}
	if code == library.NotFound {
		e.Text = "the library does not have it"
		return e
	}
	var name, text *byte
	if d.Call(cuGetErrorName, uintptr(code), uintptr(unsafe.Pointer(&name))) == 0 {
		e.Name = goString(name)
	}
	if d.Call(cuGetErrorString, uintptr(code), uintptr(unsafe.Pointer(&text))) == 0 {
		e.Text = goString(text)
	}
	return e
}

// goString copies a C string, which ends with a zero.
func goString(p *byte) string {
	if p == nil {
		return ""
	}
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}

// Version is the newest CUDA that the driver knows, such as 13000 for 13.0.
func (d *Driver) Version() (int, error) {
	var v int32
	err := d.check(cuDriverGetVersion, d.Call(cuDriverGetVersion, uintptr(unsafe.Pointer(&v))))
	return int(v), err
}

// Devices is the number of GPUs that the program can see.
func (d *Driver) Devices() (int, error) {
	var n int32
	err := d.check(cuDeviceGetCount, d.Call(cuDeviceGetCount, uintptr(unsafe.Pointer(&n))))
	return int(n), err
}

// Device is a GPU's number to the driver.
type Device int32

// Device gives GPU number i, from 0 on.
func (d *Driver) Device(i int) (Device, error) {
	var dev Device
	err := d.check(cuDeviceGet, d.Call(cuDeviceGet, uintptr(unsafe.Pointer(&dev)), uintptr(i)))
	return dev, err
}

// DeviceName is the name that the maker gave the GPU.
func (d *Driver) DeviceName(dev Device) (string, error) {
	return d.text(cuDeviceGetName, dev)
}

// DeviceBus is where the GPU is on the PCI bus, as NVML takes it.
func (d *Driver) DeviceBus(dev Device) (string, error) {
	return d.text(cuDeviceGetPCIBusID, dev)
}

func (d *Driver) text(symbol int, dev Device) (string, error) {
	var buf [128]byte
	err := d.check(symbol, d.Call(symbol, uintptr(unsafe.Pointer(&buf)), uintptr(len(buf)), uintptr(dev)))
	text, _, _ := bytes.Cut(buf[:], []byte{0})
	return string(text), err
}

// Attribute is a property of a device by its number in the driver's interface.
type Attribute int

// The attributes that callers ask for.
const (
	Processors      Attribute = 16
	CapabilityMajor Attribute = 75
	CapabilityMinor Attribute = 76
	SharedMemory    Attribute = 81 // bytes of a multiprocessor, for all of its blocks
	RemoteFlush     Attribute = 98 // WaitCount can flush
	VirtualMemory   Attribute = 102
	FileHandles     Attribute = 103 // memory can be exported as a file descriptor
	StreamCounts    Attribute = 122 // WaitCount and SetCount, of 64 bits
)

// Attribute gives a property of a device.
func (d *Driver) Attribute(dev Device, a Attribute) (int, error) {
	var v int32
	err := d.check(cuDeviceGetAttribute, d.Call(cuDeviceGetAttribute, uintptr(unsafe.Pointer(&v)), uintptr(a), uintptr(dev)))
	return int(v), err
}

// CanReach says whether the context's device can have memory of another one mapped.
func (c *Context) CanReach(other Device) (bool, error) {
	var can int32
	err := c.check(cuDeviceCanAccessPeer, c.Call(cuDeviceCanAccessPeer, uintptr(unsafe.Pointer(&can)), uintptr(c.Device), uintptr(other)))
	return can != 0, err
}

// Context is a device's primary context: its address space, and what was
// loaded and created there. It may be used from several goroutines at once.
type Context struct {
	*Driver
	Device     Device
	Exportable bool // Create gives memory that Export takes; set before the context is used
	handle     uintptr
}

// Retain gives the primary context of a device, which other libraries in the
// program share. Release it.
func (d *Driver) Retain(dev Device) (*Context, error) {
	c := &Context{Driver: d, Device: dev}
	err := d.check(cuDevicePrimaryCtxRetain, d.Call(cuDevicePrimaryCtxRetain, uintptr(unsafe.Pointer(&c.handle)), uintptr(dev)))
	return c, err
}

// Release ends this use of the context; the last one frees what is in it.
func (c *Context) Release() error {
	return c.check(cuDevicePrimaryCtxRelease, c.Call(cuDevicePrimaryCtxRelease, uintptr(c.Device)))
}

// enter binds the goroutine to its thread and the thread to the context.
// runtime.UnlockOSThread is the way out.
func (c *Context) enter() int {
	runtime.LockOSThread()
	return c.Plain(cuCtxSetCurrent, c.handle)
}

// in calls a function of the driver in the context. Pointers are as for
// Library.call.
//
//go:uintptrescapes
func (c *Context) in(symbol int, args ...uintptr) error { return c.plainIn(symbol, args...) }

// plainIn is in with arguments as for Library.plain.
func (c *Context) plainIn(symbol int, args ...uintptr) error {
	code := c.code(symbol, args...)
	if code == 0 {
		return nil
	}
	return c.failure(symbol, code)
}

// code is plainIn with the code instead of an error.
func (c *Context) code(symbol int, args ...uintptr) int {
	code := c.enter()
	if code == 0 {
		code = c.Plain(symbol, args...)
	}
	runtime.UnlockOSThread()
	return code
}

// Do calls f on a thread that is bound to the context, for libraries that
// expect that.
func (c *Context) Do(f func() error) error {
	defer runtime.UnlockOSThread()
	if code := c.enter(); code != 0 {
		return c.failure(cuCtxSetCurrent, code)
	}
	return f()
}

// Capability is the compute capability of the device, such as 90 for 9.0.
func (c *Context) Capability() (int, error) {
	major, err := c.Attribute(c.Device, CapabilityMajor)
	if err != nil {
		return 0, err
	}
	minor, err := c.Attribute(c.Device, CapabilityMinor)
	if minor > 9 {
		return 0, fmt.Errorf("compute capability %d.%d", major, minor)
	}
	return 10*major + minor, err
}
