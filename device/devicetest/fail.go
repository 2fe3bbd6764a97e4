package devicetest

import (
	"sync"

	"github.com/headroom-go/headroom/device"
)

// Method names a method of a device that Fail can make fail.
type Method int

// The methods of a device that return errors, but for Close.
const (
	Alloc Method = iota
	Free
	Reserve
	Release
	Create
	Destroy
	Map
	Unmap
	NewStream
	Any            // any of these
	numMethods int = iota
)

// String gives the method's name.
func (m Method) String() string {
	return [numMethods]string{"Alloc", "Free", "Reserve", "Release", "Create", "Destroy", "Map", "Unmap", "NewStream", "Any"}[m]
}

// Failing is a device that fails once, on demand, and otherwise does what the
// device inside does. It may be used from several goroutines at once.
type Failing struct {
	device.Device
	method Method
	nth    int
	err    error

	mu       sync.Mutex
	calls    [numMethods]int
	granules [numMethods]int
}

// Fail wraps d so that the nth call of the method, counted from 1, returns err
// and never reaches d. The calls of Any are those of all methods together.
// With nth 0 no call fails. A test walks through all
// places where a program can fail by raising nth until Failed says no:
//
//	for nth, failed := 1, true; failed; nth++ {
//		d := devicetest.Fail(open(t), devicetest.Any, nth, device.ErrOutOfMemory)
//		… use d and check the state that the program is left in …
//		failed = d.Failed()
//	}
func Fail(d device.Device, method Method, nth int, err error) *Failing {
	return &Failing{Device: d, method: method, nth: nth, err: err}
}

// Failed says whether the call that should fail has happened.
func (f *Failing) Failed() bool { return f.nth > 0 && f.Calls(f.method) >= f.nth }

// Calls is the number of calls of the method so far.
func (f *Failing) Calls(m Method) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[m]
}

// Granules is the number of granules that the calls of Map or Unmap were about
// so far, failed ones included.
func (f *Failing) Granules(m Method) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.granules[m]
}

// call counts a call about so many granules, and gives the error if it is the
// one to fail.
func (f *Failing) call(m Method, granules int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, counted := range []Method{m, Any} {
		f.calls[counted]++
		f.granules[counted] += granules
	}
	if (f.method == m || f.method == Any) && f.calls[f.method] == f.nth {
		return f.err
	}
	return nil
}

// Alloc implements device.Device.
func (f *Failing) Alloc(size uint64) (device.Ptr, error) {
	if err := f.call(Alloc, 0); err != nil {
		return 0, err
	}
	return f.Device.Alloc(size)
}

// Free implements device.Device.
func (f *Failing) Free(p device.Ptr) error {
	if err := f.call(Free, 0); err != nil {
		return err
	}
	return f.Device.Free(p)
}

// Reserve implements device.Device.
func (f *Failing) Reserve(size uint64) (device.Ptr, error) {
	if err := f.call(Reserve, 0); err != nil {
		return 0, err
	}
	return f.Device.Reserve(size)
}

// Release implements device.Device.
func (f *Failing) Release(p device.Ptr) error {
	if err := f.call(Release, 0); err != nil {
		return err
	}
	return f.Device.Release(p)
}

// Create implements device.Device.
func (f *Failing) Create() (device.Handle, error) {
	if err := f.call(Create, 0); err != nil {
		return 0, err
	}
	return f.Device.Create()
}

// Destroy implements device.Device.
func (f *Failing) Destroy(h device.Handle) error {
	if err := f.call(Destroy, 0); err != nil {
		return err
	}
	return f.Device.Destroy(h)
}

// Map implements device.Device.
func (f *Failing) Map(p device.Ptr, handles []device.Handle) error {
	if err := f.call(Map, len(handles)); err != nil {
		return err
	}
	return f.Device.Map(p, handles)
}

// Unmap implements device.Device.
func (f *Failing) Unmap(p device.Ptr, n int) error {
	if err := f.call(Unmap, n); err != nil {
		return err
	}
	return f.Device.Unmap(p, n)
}

// NewStream implements device.Device.
func (f *Failing) NewStream() (device.Stream, error) {
	if err := f.call(NewStream, 0); err != nil {
		return nil, err
	}
	return f.Device.NewStream()
}
