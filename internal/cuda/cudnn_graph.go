package cuda

import (
	"fmt"
	"slices"
	"unsafe"
)

// Types of the elements of cuDNN's tensors.
const (
	DNNFloat32  = 0
	DNNFloat16  = 2
	DNNBFloat16 = 9
	dnnInt32    = 4
	dnnBoolean  = 11
)

// graph collects operations. Its first error is kept, after which nothing is
// done.
type graph struct {
	dnn     *DNN
	made    []descriptor
	ops     []descriptor
	names   []uint64 // of the tensors with memory, operands first
	scalars []*float32
	last    int // the last tensor's name
	err     error
}

// tensor is a value in a graph: an operand, a number, or one that is never in
// memory.
type tensor struct {
	made descriptor
	kind int
	size []int
}

// add makes a descriptor of the graph's.
func (g *graph) add(kind int, attributes ...attribute) descriptor {
	if g.err != nil {
		return 0
	}
	x, err := g.dnn.make(kind, attributes...)
	if err != nil {
		g.err = err
		return 0
	}
	g.made = append(g.made, x)
	return x
}

func (g *graph) op(kind int, attributes ...attribute) {
	g.ops = append(g.ops, g.add(kind, attributes...))
}

// tensor adds a tensor. flags are attributes beside the usual ones.
func (g *graph) tensor(kind int, size, stride []int, align int, flags ...attribute) tensor {
	g.last++
	attributes := append([]attribute{ints(906, g.last), one(901, dataType, kind), ints(902, size...), ints(903, stride...), ints(900, align)}, flags...)
	return tensor{g.add(tensorKind, attributes...), kind, size}
}

// operand adds a tensor whose address Run is given. All operands come before
// the first scalar.
func (g *graph) operand(kind int, size, stride []int, align int) tensor {
	t := g.tensor(kind, size, stride, align)
	g.names = append(g.names, uint64(g.last))
	return t
}

// scalar adds a number.
func (g *graph) scalar(value float32) tensor {
	t := g.tensor(DNNFloat32, []int{1, 1, 1, 1}, []int{1, 1, 1, 1}, 16, one(908, booleanType, 1))
	g.names = append(g.names, uint64(g.last))
	g.scalars = append(g.scalars, &value)
	return t
}

// virtual adds a dense tensor without memory.
func (g *graph) virtual(kind int, size ...int) tensor {
	return g.tensor(kind, size, denseStrides(size), 16, one(907, booleanType, 1))
}

func denseStrides(size []int) []int {
	stride, n := make([]int, len(size)), 1
	for i := len(size) - 1; i >= 0; i-- {
		stride[i] = n
		n *= size[i]
	}
	return stride
}

// Functions of pointwise operations.
const (
	addMode      = 0
	mulMode      = 1
	divMode      = 6
	subMode      = 9
	expMode      = 13
	logMode      = 15
	identityMode = 21
	notLessMode  = 303
	indexMode    = 501
	selectMode   = 601
)

// pointwise sets y to a function of one to three tensors.
func (g *graph) pointwise(mode int, y tensor, x ...tensor) tensor {
	return g.pointwiseOf(y, x, one(0, pointwiseType, mode), one(1, dataType, mathType(y)))
}

// index sets y to the indices along an axis of x.
func (g *graph) index(axis int, y, x tensor) tensor {
	return g.pointwiseOf(y, []tensor{x}, one(0, pointwiseType, indexMode), one(1, dataType, dnnInt32), ints(9, axis))
}

func (g *graph) pointwiseOf(y tensor, x []tensor, function ...attribute) tensor {
	attributes := []attribute{refs(750, g.add(pointwiseKind, function...)), refs(753, y.made)}
	for i, number := range []int{751, 752, 758}[:len(x)] {
		attributes = append(attributes, refs(number, x[i].made))
	}
	g.op(pointwiseOpKind, attributes...)
	return y
}

// mathType is the type in which y is computed.
func mathType(y tensor) int {
	if y.kind == dnnInt32 || y.kind == dnnBoolean {
		return y.kind
	}
	return DNNFloat32
}

// matmul sets y to the product of matrices.
func (g *graph) matmul(y, a, b tensor) tensor {
	product := g.add(matmulKind, one(1500, dataType, DNNFloat32))
	g.op(matmulOpKind, refs(1520, a.made), refs(1521, b.made), refs(1522, y.made), refs(1523, product))
	return y
}

const (
	sumReduction = 0
	maxReduction = 3
)

// reduce sets y to the sums or maxima of x where y has size 1.
func (g *graph) reduce(how int, y, x tensor) tensor {
	reduction := g.add(reductionKind, one(1600, reductionType, how), one(1601, dataType, DNNFloat32))
	g.op(reductionOpKind, refs(1610, x.made), refs(1611, y.made), refs(1612, reduction))
	return y
}

// reshape sees x with the sizes and strides of y.
func (g *graph) reshape(y, x tensor) tensor {
	g.op(reshapeOpKind, refs(2200, x.made), refs(2201, y.made))
	return y
}

// finish makes a plan of the graph that needs at most workspace bytes, and ends
// the graph.
func (g *graph) finish(workspace int, allowed func(notes []int32) bool) (*DNNPlan, error) {
	defer g.close()
	all := g.add(graphKind, one(800, handleType, int(g.dnn.handle)), refs(801, g.ops...))
	if g.err != nil {
		return nil, g.err
	}
	plan, n, err := g.dnn.choose(all, workspace, allowed)
	if err != nil {
		return nil, err
	}
	addresses := make([]uint64, len(g.names)-len(g.scalars), len(g.names))
	for _, s := range g.scalars {
		addresses = append(addresses, uint64(uintptr(unsafe.Pointer(s))))
	}
	return &DNNPlan{dnn: g.dnn, plan: plan, workspace: n, scalars: g.scalars,
		pack: [3]attribute{{1000, int64Type, g.names}, {1001, pointerType, addresses}, one(1003, pointerType, 0)}}, nil
}

func (g *graph) close() {
	for _, x := range slices.Backward(g.made) {
		_ = g.dnn.unmake(x) // it was only read
	}
}

// NoEngineError is returned where the library can't compute a graph as wanted.
type NoEngineError struct {
	Need   int   // bytes of workspace with which it can; 0 if it can't with any
	Reason error // why an engine that would do failed; nil if there is none
}

// Error says which of the two it is.
func (e *NoEngineError) Error() string {
	if e.Need > 0 {
		return fmt.Sprintf("cuDNN needs a workspace of %d bytes for this graph", e.Need)
	}
	if e.Reason != nil {
		return fmt.Sprintf("cuDNN's engines for this graph fail: %v", e.Reason)
	}
	return "cuDNN has no engine for this graph that is as exact as wanted"
}

// choose gives a plan by the first engine that is allowed, as the library
// orders them: those it recommends, then those that always work.
func (d *DNN) choose(graph descriptor, workspace int, allowed func(notes []int32) bool) (plan descriptor, bytes int, err error) {
	const modeA, fallback = 3, 2
	none := &NoEngineError{}
	for _, mode := range []int{modeA, fallback} {
		configs, _ := d.configs(graph, mode) // an error means that it knows none
		for _, config := range configs {
			if plan == 0 && d.isAllowed(config, allowed) {
				plan, bytes, none.Reason = d.plan(config)
			}
			if plan != 0 && bytes > workspace {
				_ = d.unmake(plan)
				if plan = 0; none.Need == 0 || bytes < none.Need {
					none.Need = bytes
				}
			}
			_ = d.unmake(config)
		}
		if plan != 0 {
			return plan, bytes, nil
		}
	}
	return 0, 0, none
}

// configs gives the engines that the library knows for a graph.
func (d *DNN) configs(graph descriptor, mode int) ([]descriptor, error) {
	heuristic, err := d.make(heuristicKind, refs(201, graph), one(200, heuristicType, mode))
	if err != nil {
		return nil, err
	}
	defer d.unmake(heuristic)
	n, err := d.get(heuristic, 202, descriptorType, 0, 0)
	if err != nil || n == 0 {
		return nil, err
	}
	return d.getMade(heuristic, 202, configKind, n)
}

// getMade reads n descriptors, which are made beforehand.
func (d *DNN) getMade(x descriptor, number, kind, n int) ([]descriptor, error) {
	list := make([]descriptor, n)
	var err error
	for i := range list {
		if err == nil {
			list[i], err = d.begin(kind)
		}
	}
	found := 0
	if err == nil {
		found, err = d.get(x, number, descriptorType, n, uintptr(unsafe.Pointer(&list[0])))
	}
	if err != nil {
		found = 0
	}
	for _, extra := range list[min(found, n):] {
		if extra != 0 {
			_ = d.unmake(extra)
		}
	}
	return list[:min(found, n)], err
}

// isAllowed says whether the notes of a configuration's engine are.
func (d *DNN) isAllowed(config descriptor, allowed func(notes []int32) bool) bool {
	engine, err := d.getMade(config, 300, engineKind, 1)
	if err != nil || len(engine) == 0 {
		return false
	}
	defer d.unmake(engine[0])
	var notes [32]int32
	n, err := d.get(engine[0], 1303, noteType, len(notes), uintptr(unsafe.Pointer(&notes)))
	return err == nil && allowed(notes[:n])
}

// plan makes a plan and gives the workspace that it needs.
func (d *DNN) plan(config descriptor) (plan descriptor, bytes int, err error) {
	plan, err = d.make(planKind, one(400, handleType, int(d.handle)), refs(401, config))
	if err != nil {
		return 0, 0, err
	}
	var need int64
	if _, err := d.get(plan, 402, int64Type, 1, uintptr(unsafe.Pointer(&need))); err != nil {
		_ = d.unmake(plan)
		return 0, 0, err
	}
	return plan, int(need), nil
}
