package cuda

import (
	"runtime"
	"unsafe"

	"github.com/headroom-go/headroom/internal/library"
)

const (
	ltCreate = iota
	ltDestroy
	ltGetVersion
	ltGetStatusString
	ltDescCreate
	ltDescDestroy
	ltDescSet
	ltLayoutCreate
	ltLayoutDestroy
	ltLayoutSet
	ltPreferenceCreate
	ltPreferenceDestroy
	ltPreferenceSet
	ltHeuristic
	ltMatmul
)

var blasSymbols = []string{
	ltCreate:            "cublasLtCreate",
	ltDestroy:           "cublasLtDestroy",
	ltGetVersion:        "cublasLtGetVersion",
	ltGetStatusString:   "cublasLtGetStatusString",
	ltDescCreate:        "cublasLtMatmulDescCreate",
	ltDescDestroy:       "cublasLtMatmulDescDestroy",
	ltDescSet:           "cublasLtMatmulDescSetAttribute",
	ltLayoutCreate:      "cublasLtMatrixLayoutCreate",
	ltLayoutDestroy:     "cublasLtMatrixLayoutDestroy",
	ltLayoutSet:         "cublasLtMatrixLayoutSetAttribute",
	ltPreferenceCreate:  "cublasLtMatmulPreferenceCreate",
	ltPreferenceDestroy: "cublasLtMatmulPreferenceDestroy",
	ltPreferenceSet:     "cublasLtMatmulPreferenceSetAttribute",
	ltHeuristic:         "cublasLtMatmulAlgoGetHeuristic",
	ltMatmul:            "cublasLtMatmul",
}

// BLAS multiplies matrices by cuBLASLt in one context. Its methods may be
// called from several goroutines at once, those of one Product from one.
type BLAS struct {
	*library.Library
	context *Context
	handle  uintptr
}

// OpenBLAS loads cuBLASLt and starts it in a context. Close it.
func OpenBLAS(c *Context, folders []string) (*BLAS, error) {
	l, err := library.Open([]string{"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"}, folders, blasSymbols)
	if err != nil {
		return nil, err
	}
	return startBLAS(c, l)
}

// FakeBLAS is cuBLASLt whose calls go to f, for tests.
func FakeBLAS(c *Context, f library.Caller) (*BLAS, error) {
	return startBLAS(c, library.Fake("fake", blasSymbols, f))
}

func startBLAS(c *Context, l *library.Library) (*BLAS, error) {
	b := &BLAS{Library: l, context: c}
	return b, b.do(ltCreate, uintptr(unsafe.Pointer(&b.handle)))
}

// Close ends cuBLASLt.
func (b *BLAS) Close() error { return b.do(ltDestroy, b.handle) }

// Version is the library's version, such as 130200.
func (b *BLAS) Version() int { return b.Call(ltGetVersion) }

// do calls a function of the library in the context.
//
//go:uintptrescapes
func (b *BLAS) do(symbol int, args ...uintptr) error { return b.plainDo(symbol, args...) }

// plainDo is do with arguments as for Library.plain.
func (b *BLAS) plainDo(symbol int, args ...uintptr) error {
	defer runtime.UnlockOSThread()
	if code := b.context.enter(); code != 0 {
		return b.context.failure(cuCtxSetCurrent, code)
	}
	return b.check(symbol, b.Plain(symbol, args...))
}

func (b *BLAS) check(symbol, code int) error {
	if code == 0 {
		return nil
	}
	return &Error{Library: b.Name, Call: b.Symbol(symbol), Code: code, Text: blasTexts[code]}
}

var blasTexts = map[int]string{
	library.NotFound: "the library does not have it: install cuBLAS of CUDA 11 or newer",
	1:                "not initialised: the driver is missing or too old for this library",
	3:                "the library could not allocate what it needs on the host or the device",
	7:                "a value that it does not take",
	8:                "this GPU lacks what it needs",
	13:               "the product failed to run",
	14:               "internal error",
	15:               "no algorithm for this product",
}

// Number kinds of matrices: cudaDataType.
const (
	Float32  = 0
	Float16  = 2
	BFloat16 = 14
)

// Product describes D = op(A)·op(B) + bias + beta·D for a batch of matrices in
// the order of columns, as BLAS has it: D is M×N, op(A) M×K, op(B) K×N.
type Product struct {
	M, N, K, Batch            int
	TransA, TransB, Bias      bool // bias: M elements, added to each column
	TypeA, TypeB, TypeD       int
	LDA, LDB, LDD             int
	StrideA, StrideB, StrideD int
	AlignA, AlignB, AlignD    int // bytes of which the addresses are multiples, up to 256
}

// Plan is a product with the algorithms that the library thinks fastest, the
// fastest first.
type Plan struct {
	blas       *BLAS
	desc       uintptr
	a, b, d    uintptr // layouts
	one, zero  float32
	bias       Ptr
	algorithms []heuristic
	chosen     *heuristic
}

// heuristic is cublasLtMatmulHeuristicResult_t.
type heuristic struct {
	algo      [8]uint64
	workspace uint64
	state     int32
	waves     float32
	_         [4]int32
}

// Attributes of descriptors by their numbers in the library's interface.
const (
	descTransA, descTransB, descEpilogue, descBias = 3, 4, 7, 8
	layoutBatch, layoutStride                      = 5, 6
	preferWorkspace, preferAlignA                  = 1, 5
	computeFloat32, epilogueBias                   = 68, 4
)

// Plan finds at most so many algorithms, each of which needs at most workspace
// bytes, and chooses the first. Arithmetic is float32: TF32 is not used. Close
// the plan.
func (b *BLAS) Plan(p *Product, workspace, most int) (*Plan, error) {
	plan := &Plan{blas: b, one: 1}
	if err := plan.describe(p); err != nil {
		return nil, closing(err, plan)
	}
	if err := plan.find(p, workspace, most); err != nil {
		return nil, closing(err, plan)
	}
	return plan, nil
}

func closing(err error, plan *Plan) error {
	_ = plan.Close() // the error that led here says more
	return err
}

// describe makes the descriptors.
func (plan *Plan) describe(p *Product) error {
	b := plan.blas
	if err := b.do(ltDescCreate, uintptr(unsafe.Pointer(&plan.desc)), computeFloat32, Float32); err != nil {
		return err
	}
	epilogue := uint64(1) // none
	if p.Bias {
		epilogue = epilogueBias
	}
	for _, a := range []struct {
		attribute int
		value     uint64
	}{{descTransA, bit(p.TransA)}, {descTransB, bit(p.TransB)}, {descEpilogue, epilogue}} {
		if err := b.set(ltDescSet, plan.desc, a.attribute, a.value, 4); err != nil {
			return err
		}
	}
	rowsA, colsA, rowsB, colsB := p.M, p.K, p.K, p.N
	if p.TransA {
		rowsA, colsA = colsA, rowsA
	}
	if p.TransB {
		rowsB, colsB = colsB, rowsB
	}
	for _, m := range []struct {
		layout                     *uintptr
		kind, rows, cols, ld, step int
	}{
		{&plan.a, p.TypeA, rowsA, colsA, p.LDA, p.StrideA},
		{&plan.b, p.TypeB, rowsB, colsB, p.LDB, p.StrideB},
		{&plan.d, p.TypeD, p.M, p.N, p.LDD, p.StrideD},
	} {
		if err := b.layout(m.layout, m.kind, m.rows, m.cols, m.ld, p.Batch, m.step); err != nil {
			return err
		}
	}
	return nil
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// set sets an attribute of size bytes.
func (b *BLAS) set(symbol int, object uintptr, attribute int, value uint64, size uintptr) error {
	return b.do(symbol, object, uintptr(attribute), uintptr(unsafe.Pointer(&value)), size)
}

func (b *BLAS) layout(layout *uintptr, kind, rows, cols, ld, batch, step int) error {
	if err := b.do(ltLayoutCreate, uintptr(unsafe.Pointer(layout)), uintptr(kind), uintptr(rows), uintptr(cols), uintptr(ld)); err != nil {
		return err
	}
	if batch == 1 {
		return nil
	}
	if err := b.set(ltLayoutSet, *layout, layoutBatch, uint64(batch), 4); err != nil {
		return err
	}
	return b.set(ltLayoutSet, *layout, layoutStride, uint64(step), 8)
}

// find asks for the algorithms.
func (plan *Plan) find(p *Product, workspace, most int) error {
	b := plan.blas
	var preference uintptr
	if err := b.do(ltPreferenceCreate, uintptr(unsafe.Pointer(&preference))); err != nil {
		return err
	}
	defer b.do(ltPreferenceDestroy, preference)
	if err := b.set(ltPreferenceSet, preference, preferWorkspace, uint64(workspace), 8); err != nil {
		return err
	}
	for i, align := range []int{p.AlignA, p.AlignB, p.AlignD, p.AlignD} {
		if err := b.set(ltPreferenceSet, preference, preferAlignA+i, uint64(align), 4); err != nil {
			return err
		}
	}
	var found int32
	list := make([]heuristic, most)
	err := b.do(ltHeuristic, b.handle, plan.desc, plan.a, plan.b, plan.d, plan.d, preference, uintptr(most),
		uintptr(unsafe.Pointer(&list[0])), uintptr(unsafe.Pointer(&found)))
	if err != nil {
		return err
	}
	if found == 0 {
		return b.check(ltHeuristic, 15)
	}
	plan.algorithms = list[:found]
	plan.Choose(0)
	return nil
}

// Algorithms is how many were found, one or more.
func (plan *Plan) Algorithms() int { return len(plan.algorithms) }

// Choose has Run take an algorithm by its number, from 0 on.
func (plan *Plan) Choose(i int) { plan.chosen = &plan.algorithms[i] }

// Workspace is the number of bytes that Run needs for its intermediate results.
func (plan *Plan) Workspace() int { return int(plan.chosen.workspace) }

// Run queues the product. bias is used where the product has one.
func (plan *Plan) Run(s Stream, d, a, b, bias Ptr, accumulate bool, workspace Ptr) error {
	lt := plan.blas
	if bias != 0 && bias != plan.bias {
		plan.bias = bias
		if err := lt.plainDo(ltDescSet, plan.desc, descBias, uintptr(unsafe.Pointer(&plan.bias)), 8); err != nil {
			plan.bias = 0
			return err
		}
	}
	beta := &plan.zero
	if accumulate {
		beta = &plan.one
	}
	return lt.plainDo(ltMatmul, lt.handle, plan.desc, uintptr(unsafe.Pointer(&plan.one)), uintptr(a), plan.a, uintptr(b), plan.b,
		uintptr(unsafe.Pointer(beta)), uintptr(d), plan.d, uintptr(d), plan.d,
		uintptr(unsafe.Pointer(plan.chosen)), uintptr(workspace), uintptr(plan.Workspace()), uintptr(s))
}

// Close gives the descriptors back.
func (plan *Plan) Close() error {
	var first error
	for _, object := range []struct {
		destroy int
		handle  uintptr
	}{{ltLayoutDestroy, plan.a}, {ltLayoutDestroy, plan.b}, {ltLayoutDestroy, plan.d}, {ltDescDestroy, plan.desc}} {
		if object.handle == 0 {
			continue
		}
		if err := plan.blas.do(object.destroy, object.handle); first == nil {
			first = err
		}
	}
	return first
}
