package cuda

import (
	"fmt"
	"math"
	"unsafe"
)

// fakeDNN is cuDNN in Go memory: it checks how descriptors are used, and plans
// of it compute what their graphs say, operation by operation in float64. It
// fails the nth call on demand.
type fakeDNN struct {
	calls, fail int
	failed      string
	objects     map[uint64]*fakeObject
	last        uint64
	engines     [2][]fakeEngine // those that are recommended, and the others
	ran         int             // number of the engine that ran last
	workspace   uint64          // given to it
	broken      []string
}

// fakeEngine is what the library says of an engine.
type fakeEngine struct {
	number    int
	notes     []int32
	workspace int
	cannot    bool // no plan of it can be made
}

type fakeObject struct {
	kind   int
	done   bool
	values map[int][]uint64
	engine *fakeEngine
	graph  *fakeObject // of heuristics, configurations and plans: as it was, since it may be gone
	parts  map[uint64]*fakeObject
}

func newFakeDNN(engines ...fakeEngine) *fakeDNN {
	f := &fakeDNN{objects: map[uint64]*fakeObject{}}
	for i := range engines {
		engines[i].number = i + 1
	}
	f.engines[0] = engines
	return f
}

func (f *fakeDNN) wrong(format string, args ...any) uintptr {
	f.broken = append(f.broken, fmt.Sprintf(format, args...))
	return 2000
}

func (f *fakeDNN) call(symbol string, a []uintptr) uintptr {
	switch symbol {
	case "cudnnGetVersion":
		return 91900
	case "cudnnGetLastErrorString":
		copy(unsafe.Slice(at[byte](a[0]), a[1]), "the reason\x00")
		return 0
	}
	if f.calls++; f.calls == f.fail {
		f.failed = symbol
		return 3000
	}
	switch symbol {
	case "cudnnCreate":
		*at[uintptr](a[0]) = 77
	case "cudnnDestroy", "cudnnSetStream":
		if a[0] != 77 {
			return f.wrong("%s of handle %d", symbol, a[0])
		}
	case "cudnnBackendCreateDescriptor":
		f.last++
		f.objects[f.last] = &fakeObject{kind: int(a[0]), values: map[int][]uint64{}}
		*at[uint64](a[1]) = f.last
	case "cudnnBackendDestroyDescriptor":
		if f.objects[uint64(a[0])] == nil {
			return f.wrong("end of descriptor %d", a[0])
		}
		delete(f.objects, uint64(a[0]))
	case "cudnnBackendSetAttribute":
		return f.set(a)
	case "cudnnBackendGetAttribute":
		return f.get(a)
	case "cudnnBackendFinalize":
		return f.finalize(f.objects[uint64(a[0])])
	case "cudnnBackendExecute":
		return f.execute(f.objects[uint64(a[1])], f.objects[uint64(a[2])])
	default:
		return f.wrong("call of %s", symbol)
	}
	return 0
}

// valueBytes is the length of a value of each type.
var valueBytes = map[int]uintptr{handleType: 8, dataType: 4, booleanType: 1, int64Type: 8, floatType: 4, pointerType: 8,
	convModeType: 4, heuristicType: 4, pointwiseType: 4, descriptorType: 8, reductionType: 4}

func (f *fakeDNN) set(a []uintptr) uintptr {
	x, number, kind := f.objects[uint64(a[0])], int(a[1]), int(a[2])
	size := valueBytes[kind]
	if x == nil || x.done || size == 0 || x.values[number] != nil {
		return f.wrong("attribute %d of type %d is set", number, kind)
	}
	values := []uint64{}
	for i := range a[3] {
		var v uint64
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&v)), size), unsafe.Slice(at[byte](a[4]+i*size), size))
		values = append(values, v)
		if d := f.objects[v]; kind == descriptorType && (d == nil || !d.done) && x.kind != planKind {
			return f.wrong("attribute %d of kind %d is a descriptor that isn't ready", number, x.kind)
		}
	}
	x.values[number] = values
	return 0
}

func (f *fakeDNN) finalize(x *fakeObject) uintptr {
	if x == nil || x.done {
		return f.wrong("finalized twice")
	}
	x.done = true
	switch x.kind {
	case graphKind:
		x.parts = map[uint64]*fakeObject{}
		for k, v := range f.objects {
			x.parts[k] = v
		}
	case heuristicKind:
		x.graph = f.objects[x.values[201][0]]
	case planKind:
		config := f.objects[x.values[401][0]]
		if config == nil || config.engine.cannot {
			return 3000
		}
		x.engine, x.graph = config.engine, config.graph
	}
	return 0
}

func (f *fakeDNN) get(a []uintptr) uintptr {
	x, number, n := f.objects[uint64(a[0])], int(a[1]), int(a[3])
	if x == nil || !x.done {
		return f.wrong("attribute %d is read from what isn't ready", number)
	}
	found := at[int64](a[4])
	switch number {
	case 202:
		list := f.engines[map[uint64]int{3: 0, 2: 1}[x.values[200][0]]]
		*found = int64(len(list))
		for i := range min(n, len(list)) {
			config := f.objects[*at[uint64](a[5] + uintptr(8*i))]
			config.done, config.engine, config.graph = true, &list[i], x.graph
		}
	case 300:
		*found = 1
		engine := f.objects[*at[uint64](a[5])]
		engine.done, engine.engine = true, x.engine
	case 1303:
		*found = int64(copy(unsafe.Slice(at[int32](a[5]), n), x.engine.notes))
	case 402:
		*found = 1
		*at[int64](a[5]) = int64(x.engine.workspace)
	default:
		return f.wrong("attribute %d is read", number)
	}
	return 0
}

// fakeRun is a graph that is computed.
type fakeRun struct {
	*fakeDNN
	parts  map[uint64]*fakeObject
	memory map[uint64]uintptr        // of tensors by their names
	values map[*fakeObject][]float64 // of virtual tensors, by their places
}

func (f *fakeDNN) execute(plan, pack *fakeObject) uintptr {
	if plan == nil || pack == nil || plan.kind != planKind || pack.kind != packKind || !pack.done {
		return f.wrong("run of no plan")
	}
	names, addresses := pack.values[1000], pack.values[1001]
	r := &fakeRun{f, plan.graph.parts, map[uint64]uintptr{}, map[*fakeObject][]float64{}}
	for i, n := range names {
		r.memory[n] = uintptr(addresses[i])
	}
	f.ran = plan.engine.number
	if w := pack.values[1003]; len(w) > 0 {
		f.workspace = w[0]
	}
	for _, op := range plan.graph.values[801] {
		r.compute(r.parts[op])
	}
	return 0
}

func (r *fakeRun) part(x *fakeObject, number int) *fakeObject {
	if len(x.values[number]) == 0 {
		return nil
	}
	return r.parts[x.values[number][0]]
}

func (x *fakeObject) sizes() []uint64 { return x.values[902] }

// place is where an element is, from the tensor's start. Sizes of 1 repeat.
func (x *fakeObject) place(index []int) int {
	n := 0
	for i, k := range index {
		if x.sizes()[i] > 1 {
			n += k * int(x.values[903][i])
		}
	}
	return n
}

func (r *fakeRun) load(x *fakeObject, place int) float64 {
	if len(x.values[907]) > 0 {
		if v := r.values[x]; place < len(v) {
			return v[place]
		}
		r.wrong("a value is read before it is computed")
		return math.NaN()
	}
	p := r.memory[x.values[906][0]]
	if x.values[901][0] == DNNFloat32 {
		return float64(*at[float32](p + uintptr(4*place)))
	}
	return float64(math.Float32frombits(uint32(*at[uint16](p + uintptr(2*place))) << 16))
}

func (r *fakeRun) store(x *fakeObject, place int, v float64) {
	if len(x.values[907]) > 0 {
		if r.values[x] == nil {
			last := []int{}
			for _, s := range x.sizes() {
				last = append(last, int(s)-1)
			}
			r.values[x] = make([]float64, x.place(last)+1)
		}
		r.values[x][place] = v
		return
	}
	p, bits := r.memory[x.values[906][0]], math.Float32bits(float32(v))
	if x.values[901][0] == DNNFloat32 {
		*at[uint32](p + uintptr(4*place)) = bits
	} else {
		*at[uint16](p + uintptr(2*place)) = uint16((bits + 0x7fff + bits>>16&1) >> 16)
	}
}

// indices calls f for all elements of four dimensions.
func indices(size []uint64, f func(i []int)) {
	for a := range int(size[0]) {
		for b := range int(size[1]) {
			for c := range int(size[2]) {
				for d := range int(size[3]) {
					f([]int{a, b, c, d})
				}
			}
		}
	}
}

func (r *fakeRun) compute(op *fakeObject) {
	switch op.kind {
	case pointwiseOpKind:
		r.pointwise(op)
	case matmulOpKind:
		a, b, c := r.part(op, 1520), r.part(op, 1521), r.part(op, 1522)
		indices(c.sizes(), func(i []int) {
			sum := 0.0
			for k := range int(a.sizes()[3]) {
				sum += r.load(a, a.place([]int{i[0], i[1], i[2], k})) * r.load(b, b.place([]int{i[0], i[1], k, i[3]}))
			}
			r.store(c, c.place(i), sum)
		})
	case reductionOpKind:
		x, y, greatest := r.part(op, 1610), r.part(op, 1611), r.part(op, 1612).values[1600][0] == maxReduction
		indices(y.sizes(), func(i []int) {
			most, sum := math.Inf(-1), 0.0
			for k := range int(x.sizes()[3]) {
				v := r.load(x, x.place([]int{i[0], i[1], i[2], k}))
				most, sum = max(most, v), sum+v
			}
			if greatest {
				sum = most
			}
			r.store(y, y.place(i), sum)
		})
	case reshapeOpKind:
		x, y := r.part(op, 2200), r.part(op, 2201)
		indices(y.sizes(), func(i []int) { r.store(y, y.place(i), r.load(x, y.place(i))) })
	case convForwardKind, convGradInputKind, convGradWeightKind:
		r.convolve(op)
	default:
		r.wrong("operation of kind %d", op.kind)
	}
}

func (r *fakeRun) pointwise(op *fakeObject) {
	y, how := r.part(op, 753), r.part(op, 750)
	indices(y.sizes(), func(i []int) {
		var v [3]float64
		for k, number := range []int{751, 752, 758} {
			if x := r.part(op, number); x != nil {
				v[k] = r.load(x, x.place(i))
			}
		}
		switch how.values[0][0] {
		case addMode:
			v[0] += v[1]
		case mulMode:
			v[0] *= v[1]
		case divMode:
			v[0] /= v[1]
		case subMode:
			v[0] -= v[1]
		case expMode:
			v[0] = math.Exp(v[0])
		case logMode:
			v[0] = math.Log(v[0])
		case notLessMode:
			v[0] = float64(bit(v[0] >= v[1]))
		case indexMode:
			v[0] = float64(i[how.values[9][0]])
		case selectMode:
			if v[2] == 0 {
				v[0] = v[1]
			}
		default:
			r.wrong("pointwise mode %d", how.values[0][0])
		}
		r.store(y, y.place(i), v[0])
	})
}

// convolve goes over all products of a convolution.
func (r *fakeRun) convolve(op *fakeObject) {
	first := map[int]int{convForwardKind: 700, convGradInputKind: 706, convGradWeightKind: 712}[op.kind]
	how, w, x, y := r.part(op, first+2), r.part(op, first+3), r.part(op, first+4), r.part(op, first+5)
	to := map[int]*fakeObject{convForwardKind: y, convGradInputKind: x, convGradWeightKind: w}[op.kind]
	beta := float64(math.Float32frombits(uint32(op.values[first+1][0])))
	indices(to.sizes(), func(i []int) {
		v := 0.0
		if beta != 0 {
			v = beta * r.load(to, to.place(i))
		}
		r.store(to, to.place(i), v)
	})
	groups := int(x.sizes()[1] / w.sizes()[1])
	indices(y.sizes(), func(o []int) {
		indices([]uint64{1, w.sizes()[1], w.sizes()[2], w.sizes()[3]}, func(k []int) {
			in := []int{o[0], o[1]/(int(y.sizes()[1])/groups)*int(w.sizes()[1]) + k[1], 0, 0}
			for d := range 2 {
				in[2+d] = o[2+d]*int(how.values[103][d]) + k[2+d]*int(how.values[102][d]) - int(how.values[105][d])
				if in[2+d] < 0 || in[2+d] >= int(x.sizes()[2+d]) {
					return
				}
			}
			px, pw, py := x.place(in), w.place([]int{o[1], k[1], k[2], k[3]}), y.place(o)
			switch op.kind {
			case convForwardKind:
				r.store(y, py, r.load(y, py)+r.load(x, px)*r.load(w, pw))
			case convGradInputKind:
				r.store(x, px, r.load(x, px)+r.load(y, py)*r.load(w, pw))
			case convGradWeightKind:
				r.store(w, pw, r.load(w, pw)+r.load(x, px)*r.load(y, py))
			}
		})
	})
}
