package cuda

import (
	"bytes"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"unsafe"

	"github.com/headroom-go/headroom/internal/library"
)

// cuDNN is used through its backend interface: programs describe a graph of
// operations on tensors by descriptors, ask for engines that compute it, make
// a plan of one of them, and run the plan on addresses. A descriptor has a
// kind and attributes, each a number with values of some type; it is made,
// filled, finalized, and read from then on. All the descriptors that are used
// here are made by DNN.make from tables of their attributes.

const (
	dnnCreate = iota
	dnnDestroy
	dnnGetVersion
	dnnSetStream
	dnnGetLastErrorString
	dnnMake
	dnnUnmake
	dnnSet
	dnnGet
	dnnFinalize
	dnnExecute
)

var dnnSymbols = []string{
	dnnCreate:             "cudnnCreate",
	dnnDestroy:            "cudnnDestroy",
	dnnGetVersion:         "cudnnGetVersion",
	dnnSetStream:          "cudnnSetStream",
	dnnGetLastErrorString: "cudnnGetLastErrorString",
	dnnMake:               "cudnnBackendCreateDescriptor",
	dnnUnmake:             "cudnnBackendDestroyDescriptor",
	dnnSet:                "cudnnBackendSetAttribute",
	dnnGet:                "cudnnBackendGetAttribute",
	dnnFinalize:           "cudnnBackendFinalize",
	dnnExecute:            "cudnnBackendExecute",
}

// DNN computes convolutions and attention by cuDNN in one context. Its methods
// may be called from several goroutines at once, but plans are made and run by
// one at a time.
type DNN struct {
	*library.Library
	context *Context
	handle  uintptr
}

// OpenDNN loads cuDNN and starts it in a context. Folders come before the
// loader's choice here, but for the system's: an environment's own library is
// often newer than that, and much was put right from version to version. Close
// it.
func OpenDNN(c *Context, folders []string) (*DNN, error) {
	// Some engines are compiled when they are first used, by a library that
	// cuDNN itself looks for in the loader's folders alone.
	_, _ = library.Open([]string{"libnvrtc.so.13", "libnvrtc.so.12"}, folders, nil)
	const name = "libcudnn.so.9"
	var found []string
	for _, candidate := range library.Candidates([]string{name}, folders)[1:] {
		if !slices.Contains(systemFolders(), filepath.Dir(candidate.Path)) {
			found = append(found, candidate.Path)
		}
	}
	l, err := library.Open(append(found, name), nil, dnnSymbols)
	if err != nil {
		return nil, err
	}
	if l.Name != name {
		l.Name, l.Path = name, l.Name
	}
	return startDNN(c, l)
}

// FakeDNN is cuDNN whose calls go to f, for tests.
func FakeDNN(c *Context, f library.Caller) (*DNN, error) {
	return startDNN(c, library.Fake("fake", dnnSymbols, f))
}

func startDNN(c *Context, l *library.Library) (*DNN, error) {
	d := &DNN{Library: l, context: c}
	return d, d.do(dnnCreate, uintptr(unsafe.Pointer(&d.handle)))
}

// Close ends cuDNN.
func (d *DNN) Close() error { return d.do(dnnDestroy, d.handle) }

// Version is the library's version, such as 91900 for 9.19.0.
func (d *DNN) Version() int { return d.Call(dnnGetVersion) }

// do calls a function of the library in the context.
//
//go:uintptrescapes
func (d *DNN) do(symbol int, args ...uintptr) error { return d.plainDo(symbol, args...) }

// plainDo is do with arguments as for Library.plain. What the library says of
// a failure belongs to the thread.
func (d *DNN) plainDo(symbol int, args ...uintptr) error {
	defer runtime.UnlockOSThread()
	if code := d.context.enter(); code != 0 {
		return d.context.failure(cuCtxSetCurrent, code)
	}
	code := d.Plain(symbol, args...)
	if code == 0 {
		return nil
	}
	e := &Error{Library: d.Name, Call: d.Symbol(symbol), Code: code, Text: d.lastError()}
	if code == library.NotFound {
		e.Text = "the library does not have it: install cuDNN 9"
	}
	return e
}

// lastError is what the library says of the thread's last failure.
func (d *DNN) lastError() string {
	var text [512]byte
	d.Call(dnnGetLastErrorString, uintptr(unsafe.Pointer(&text)), uintptr(len(text)))
	message, _, _ := bytes.Cut(text[:], []byte{0})
	return string(message)
}

// Kinds of descriptors.
const (
	pointwiseKind      = 0
	convolutionKind    = 1
	engineKind         = 2
	configKind         = 3
	heuristicKind      = 4
	planKind           = 5
	pointwiseOpKind    = 13
	graphKind          = 15
	packKind           = 16
	tensorKind         = 17
	matmulKind         = 18
	matmulOpKind       = 19
	reductionKind      = 21
	reductionOpKind    = 22
	reshapeOpKind      = 31
	convForwardKind    = 10
	convGradWeightKind = 11
	convGradInputKind  = 12
)

// Types of attributes.
const (
	handleType     = 0
	dataType       = 1
	booleanType    = 2
	int64Type      = 3
	floatType      = 4
	pointerType    = 6
	convModeType   = 7
	heuristicType  = 8
	noteType       = 11
	pointwiseType  = 14
	descriptorType = 15
	reductionType  = 18
)

// descriptor is an object of the library's.
type descriptor uint64

// attribute is one of a descriptor. A value that is less than eight bytes long
// is alone, in the first bytes.
type attribute struct {
	number, kind int
	values       []uint64
}

func ints(number int, values ...int) attribute {
	a := attribute{number, int64Type, make([]uint64, len(values))}
	for i, v := range values {
		a.values[i] = uint64(v)
	}
	return a
}

// one is an attribute with one value of a type.
func one(number, kind, value int) attribute {
	return attribute{number, kind, []uint64{uint64(value)}}
}

func float(number int, value float32) attribute {
	return attribute{number, floatType, []uint64{uint64(math.Float32bits(value))}}
}

func refs(number int, d ...descriptor) attribute {
	a := attribute{number, descriptorType, make([]uint64, len(d))}
	for i, v := range d {
		a.values[i] = uint64(v)
	}
	return a
}

// make makes a descriptor.
func (d *DNN) make(kind int, attributes ...attribute) (descriptor, error) {
	x, err := d.begin(kind)
	if err != nil {
		return 0, err
	}
	for i := range attributes {
		if err == nil {
			err = d.set(x, &attributes[i])
		}
	}
	if err == nil {
		err = d.do(dnnFinalize, uintptr(x))
	}
	if err != nil {
		_ = d.unmake(x) // the error that led here says more
		return 0, err
	}
	return x, nil
}

// begin makes a descriptor without attributes.
func (d *DNN) begin(kind int) (x descriptor, err error) {
	err = d.do(dnnMake, uintptr(kind), uintptr(unsafe.Pointer(&x)))
	return x, err
}

func (d *DNN) set(x descriptor, a *attribute) error {
	return d.do(dnnSet, uintptr(x), uintptr(a.number), uintptr(a.kind), uintptr(len(a.values)), uintptr(unsafe.Pointer(&a.values[0])))
}

func (d *DNN) unmake(x descriptor) error { return d.do(dnnUnmake, uintptr(x)) }

// get reads up to n values, of which it gives the number, to p.
//
//go:uintptrescapes
func (d *DNN) get(x descriptor, number, kind, n int, p uintptr) (int, error) {
	var found int64
	err := d.do(dnnGet, uintptr(x), uintptr(number), uintptr(kind), uintptr(n), uintptr(unsafe.Pointer(&found)), p)
	return int(found), err
}

// DNNPlan is a graph with the engine that computes it.
type DNNPlan struct {
	dnn       *DNN
	plan      descriptor
	workspace int
	pack      [3]attribute // of the variant pack: names of tensors, their addresses, the workspace
	scalars   []*float32   // to which some of the addresses point
	variant   descriptor
}

// Workspace is the number of bytes that Run needs for its intermediate results.
func (p *DNNPlan) Workspace() int { return p.workspace }

// Run queues the plan on the operands, in the order of the graph's.
func (p *DNNPlan) Run(s Stream, workspace Ptr, operands ...Ptr) error {
	d := p.dnn
	addresses := p.pack[1].values
	for i, x := range operands {
		addresses[i] = uint64(x)
	}
	p.pack[2].values[0] = uint64(workspace)
	if err := d.plainDo(dnnSetStream, d.handle, uintptr(s)); err != nil {
		return err
	}
	if err := d.plainDo(dnnMake, packKind, uintptr(unsafe.Pointer(&p.variant))); err != nil {
		return err
	}
	err := p.execute()
	if e := d.plainDo(dnnUnmake, uintptr(p.variant)); err == nil {
		err = e
	}
	return err
}

// execute fills the variant pack and runs the plan on it.
func (p *DNNPlan) execute() error {
	d := p.dnn
	for i := range p.pack {
		if a := &p.pack[i]; i < 2 || p.workspace > 0 {
			if err := d.plainDo(dnnSet, uintptr(p.variant), uintptr(a.number), uintptr(a.kind), uintptr(len(a.values)), uintptr(unsafe.Pointer(&a.values[0]))); err != nil {
				return err
			}
		}
	}
	if err := d.plainDo(dnnFinalize, uintptr(p.variant)); err != nil {
		return err
	}
	return d.plainDo(dnnExecute, d.handle, uintptr(p.plan), uintptr(p.variant))
}

// Close gives the plan back.
func (p *DNNPlan) Close() error { return p.dnn.unmake(p.plan) }
