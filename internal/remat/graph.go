package remat

import (
	"math/bits"
	"slices"
)

// graph is a program made ready for planning. Operations that make pinned values
// from nothing, and views of pinned values, are left out; the others are the
// stages 0 … n-1. Stage n is the end of the program, which reads the outputs.
// Slots are the pieces of memory that may come and go.
type graph struct {
	p       *Program
	n       int
	op      []int32   // stage → operation of the program
	cost    []int64   // stage → ns of one run
	add     []int64   // stage → bytes of the slots that it makes
	work    []int64   // stage → bytes while it runs
	once    []bool    // stage → may not run again
	outs    [][]int32 // stage → slots
	args    [][]int32 // stage → slots
	base    []int64   // stage → pinned bytes
	size    []int64   // slot → bytes
	value   []int32   // slot → value of the program
	prod    []int32   // slot → stage that makes it
	cons    [][]int32 // slot → stages that read it, ascending
	views   [][]view  // slot → its views
	through [][]read  // slot → for each of cons the views that it reads
	plain   int64     // cost of all operations, those left out too
	kind    []int32   // stage → operations alike have the same
	free    []int32   // slots that may be dropped, ascending
	kinds   int
}

// view is an operation that makes another form of a slot.
type view struct {
	stage  int32
	cost   int64
	parent int32 // index in views, or -1
}

type read struct{ views []int32 }

// newGraph compiles a program that has passed Check.
func newGraph(p *Program) *graph {
	g := &graph{p: p, plain: p.PlainCost()}
	root, made := p.roots(), p.makers()
	pinned := make([]bool, len(p.Values)) // by root
	var base int64
	for v, val := range p.Values {
		if made[v] < 0 {
			pinned[root[v]] = true
			base += val.Bytes
		} else if val.Pinned {
			pinned[root[v]] = true
		}
	}
	slot := make([]int32, len(p.Values)) // of roots
	viewOf := make([]int32, len(p.Values))
	for v := range viewOf {
		slot[v], viewOf[v] = -1, -1
	}
	for i, op := range p.Ops {
		g.addOp(i, op, root, pinned, slot, viewOf, &base)
	}
	g.addEnd(root, pinned, slot, viewOf, base)
	for v, p := range g.prod {
		if !g.once[p] && g.size[v] > 0 {
			g.free = append(g.free, int32(v))
		}
	}
	g.classify()
	return g
}

// classify finds operations that repeat from layer to layer: those of one name,
// number of arguments and readers, and, without names, of similar time and size.
func (g *graph) classify() {
	type key struct {
		name                string
		args, outs, readers int
		cost, bytes         int
	}
	kinds := map[key]int32{}
	g.kind = make([]int32, g.n)
	for t := range g.n {
		k := key{name: g.p.Ops[g.op[t]].Name, args: len(g.args[t]), outs: len(g.outs[t])}
		for _, v := range g.outs[t] {
			k.readers += len(g.cons[v])
		}
		if k.name == "" {
			k.cost, k.bytes = bits.Len64(uint64(g.cost[t])), bits.Len64(uint64(g.add[t]))
		}
		if _, ok := kinds[k]; !ok {
			kinds[k] = int32(len(kinds))
		}
		g.kind[t] = kinds[k]
	}
	g.kinds = len(kinds)
}

func (g *graph) addOp(i int, op Op, root []int, pinned []bool, slot, viewOf []int32, base *int64) {
	p := g.p
	if op.View && pinned[root[op.Args[0]]] {
		return
	}
	free := true // makes nothing but pinned values
	var outs []int32
	var bytes int64
	once := op.Once
	for _, v := range op.Outs {
		switch {
		case op.View:
		case pinned[v]:
			*base += p.Values[v].Bytes
			once = true
		default:
			slot[v] = int32(len(g.size))
			outs = append(outs, slot[v])
			bytes += p.Values[v].Bytes
			g.size = append(g.size, p.Values[v].Bytes)
			g.value = append(g.value, int32(v))
			g.prod = append(g.prod, int32(g.n))
			g.cons = append(g.cons, nil)
			g.views = append(g.views, nil)
			g.through = append(g.through, nil)
			free = false
		}
	}
	if free && !op.View && len(op.Args) == 0 && op.Workspace == 0 && len(op.Outs) > 0 {
		return
	}
	g.push(int32(i), op.Cost, bytes, op.Workspace, once || op.View, outs, *base)
	for _, v := range op.Args {
		g.reads(slot[root[v]], viewOf[v])
	}
	if op.View {
		s := slot[root[op.Args[0]]]
		for _, v := range op.Outs {
			viewOf[v] = int32(len(g.views[s]))
		}
		g.views[s] = append(g.views[s], view{int32(g.n - 1), op.Cost, viewOf[op.Args[0]]})
	}
}

func (g *graph) push(op int32, cost, add, work int64, once bool, outs []int32, base int64) {
	g.op = append(g.op, op)
	g.cost = append(g.cost, cost)
	g.add = append(g.add, add)
	g.work = append(g.work, work)
	g.once = append(g.once, once)
	g.outs = append(g.outs, outs)
	g.args = append(g.args, nil)
	g.base = append(g.base, base)
	g.n++
}

// reads notes that the last stage reads slot s through a view (or -1).
func (g *graph) reads(s, through int32) {
	if s < 0 {
		return
	}
	t := g.n - 1
	if !slices.Contains(g.args[t], s) {
		g.args[t] = append(g.args[t], s)
		g.cons[s] = append(g.cons[s], int32(t))
		g.through[s] = append(g.through[s], read{})
	}
	if through >= 0 {
		r := &g.through[s][len(g.cons[s])-1]
		r.views = append(r.views, through)
	}
}

func (g *graph) addEnd(root []int, pinned []bool, slot, viewOf []int32, base int64) {
	g.push(-1, 0, 0, 0, true, nil, base)
	for _, v := range g.p.Outputs {
		if !pinned[root[v]] {
			g.reads(slot[root[v]], viewOf[v])
		}
	}
	g.n--
}
