package cuda

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/headroom-go/headroom/internal/library"
)

// recorder is a driver that keeps the last call and returns a code.
type recorder struct {
	symbol string
	args   []uintptr
	code   uintptr
}

func (r *recorder) call(symbol string, args []uintptr) uintptr {
	if symbol == "cuCtxSetCurrent" || strings.HasPrefix(symbol, "cuGetError") {
		return 0
	}
	r.symbol, r.args = symbol, append(r.args[:0], args...)
	return r.code
}

func fakeContext(t testing.TB) (*Context, *recorder) {
	r := &recorder{}
	d, err := FakeDriver(r.call)
	if err != nil {
		t.Fatal(err)
	}
	c, err := d.Retain(3)
	if err != nil {
		t.Fatal(err)
	}
	return c, r
}

// TestArguments compares what calls give to the driver with its interface.
func TestArguments(t *testing.T) {
	c, r := fakeContext(t)
	launch := &Call{Function: 1, Grid: [3]int{2, 3, 4}, Block: 5, Shared: 6}
	params := NewParams(unsafe.Pointer(new([4]uint64)), 32)
	for _, test := range []struct {
		call   func() error
		symbol string
		args   []uintptr
	}{
		{func() error { return c.Map(10, 20, 30) }, "cuMemMap", []uintptr{10, 20, 0, 30, 0}},
		{func() error { return c.Unmap(10, 20) }, "cuMemUnmap", []uintptr{10, 20}},
		{func() error { _, err := c.Export(30); return err }, "cuMemExportToShareableHandle", []uintptr{0, 30, 1, 0}},
		{func() error { _, err := c.Import(40); return err }, "cuMemImportFromShareableHandle", []uintptr{0, 40, 1}},
		{func() error { return c.Copy(1, 2, 3, 4) }, "cuMemcpyDtoDAsync_v2", []uintptr{2, 3, 4, 1}},
		{func() error { return c.WaitEvent(1, 2) }, "cuStreamWaitEvent", []uintptr{1, 2, 0}},
		{func() error { return c.RecordEvent(1, 2) }, "cuEventRecord", []uintptr{1, 2}},
		{func() error { return c.AllowShared(1, 2) }, "cuFuncSetAttribute", []uintptr{1, 8, 2}},
		{func() error { return c.Release() }, "cuDevicePrimaryCtxRelease_v2", []uintptr{3}},
		{func() error { return c.Launch(9, launch, params) }, "cuLaunchKernel",
			[]uintptr{1, 2, 3, 4, 5, 1, 1, 6, 9, 0, uintptr(unsafe.Pointer(&params.extra))}},
	} {
		if err := test.call(); err != nil {
			t.Fatal(err)
		}
		if test.args[0] == 0 {
			r.args[0] = 0 // where the result goes
		}
		if r.symbol != test.symbol || !slices.Equal(r.args, test.args) {
			t.Errorf("called %s%v, want %s%v", r.symbol, r.args, test.symbol, test.args)
		}
	}
	if params.extra[0] != 1 || params.extra[2] != 2 || *(*uintptr)(unsafe.Pointer(&params.size)) != 32 {
		t.Errorf("parameters are given as %v", params.extra)
	}
}

// TestStructs compares the structs with the sizes that the C compiler gives.
func TestStructs(t *testing.T) {
	for _, s := range []struct {
		name      string
		got, want uintptr
	}{
		{"CUmemAllocationProp", unsafe.Sizeof(allocationProp{}), 32},
		{"CUmemAccessDesc", unsafe.Sizeof(accessDesc{}), 12},
		{"cublasLtMatmulHeuristicResult_t", unsafe.Sizeof(heuristic{}), 96},
		{"nvmlProcessInfo_t", unsafe.Sizeof(processInfo{}), 24},
	} {
		if s.got != s.want {
			t.Errorf("%s has %d bytes, want %d", s.name, s.got, s.want)
		}
	}
}

func TestErrors(t *testing.T) {
	c, r := fakeContext(t)
	r.code = OutOfMemory
	_, err := c.MemAlloc(1)
	var e *Error
	if !errors.As(err, &e) || e.Code != OutOfMemory || e.Call != "cuMemAlloc_v2" || !strings.Contains(err.Error(), "nvidia-smi") {
		t.Errorf("MemAlloc returned %v", err)
	}
	r.code = NotReady
	if done, err := c.EventDone(1); done || err != nil {
		t.Errorf("an event that is not done: %v, %v", done, err)
	}
	r.code = 700
	if done, err := c.EventDone(1); done || err == nil {
		t.Errorf("an event of a lost context: %v, %v", done, err)
	}
}

// TestMissingSymbol: a library without a symbol fails that call alone.
func TestMissingSymbol(t *testing.T) {
	d := &Driver{library.New("libold.so", driverSymbols)}
	c := &Context{Driver: d}
	err := d.check(cuMemCreate, d.Call(cuMemCreate, 0, 0, 0, 0))
	var e *Error
	if !errors.As(err, &e) || e.Code != library.NotFound || d.Has("cuMemCreate") || len(d.Missing()) != len(driverSymbols) {
		t.Errorf("a call without its symbol: %v", err)
	}
	if _, err := c.NewStream(); err == nil {
		t.Error("a context without a driver gives a stream")
	}
}

func TestSymbolTables(t *testing.T) {
	for name, table := range map[string][]string{"driver": driverSymbols, "nvml": nvmlSymbols, "cublaslt": blasSymbols, "cudnn": dnnSymbols} {
		seen := map[string]bool{}
		for _, s := range table {
			if s == "" || seen[s] {
				t.Errorf("%s: symbol %q is empty or there twice", name, s)
			}
			seen[s] = true
		}
	}
}

// TestSystem opens what the machine has. Without a driver, or with a driver
// and no GPU, the error says so.
func TestSystem(t *testing.T) {
	d, err := OpenDriver(Folders())
	var e *Error
	switch {
	case errors.Is(err, library.ErrUnavailable):
		t.Skip("no driver: ", err)
	case errors.As(err, &e) && e.Code == NoDevice:
		t.Log("a driver without a GPU: ", err)
		if v, err := d.Version(); err != nil || v < 9000 {
			t.Errorf("version %d, %v", v, err)
		}
	case err != nil:
		t.Fatal(err)
	default:
		n, err := d.Devices()
		t.Log(n, " devices ", err, " missing ", d.Missing())
	}
}

// BenchmarkLaunch is a launch on a driver that does nothing.
func BenchmarkLaunch(b *testing.B) {
	c, _ := fakeContext(b)
	call, params := &Call{Grid: [3]int{1, 1, 1}, Block: 32}, NewParams(unsafe.Pointer(new([48]uint64)), 384)
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Launch(1, call, params); err != nil {
			b.Fatal(err)
		}
	}
}
