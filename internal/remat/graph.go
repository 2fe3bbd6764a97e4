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

// compiler makes a graph of a program, an operation after the other.
type compiler struct {
	*graph
	root   []int   // value → the one whose memory it lies in
	pinned []bool  // by root
	slot   []int32 // root → its slot, or -1
	viewOf []int32 // value → its place in the views of its slot, or -1
	bytes  int64   // pinned so far
}

// newGraph compiles a program that has passed Check.
func newGraph(p *Program) *graph {
	c := &compiler{graph: &graph{p: p, plain: p.PlainCost()}, root: p.roots(),
		pinned: make([]bool, len(p.Values)), slot: make([]int32, len(p.Values)), viewOf: make([]int32, len(p.Values))}
	made := p.makers()
	for v, val := range p.Values {
		c.slot[v], c.viewOf[v] = -1, -1
		if made[v] < 0 {
			c.bytes += val.Bytes
		}
		if made[v] < 0 || val.Pinned {
			c.pinned[c.root[v]] = true
		}
	}
	for i, op := range p.Ops {
		c.addOp(int32(i), op)
	}
	c.addEnd()
	g := c.graph
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

// addOp makes a stage of an operation, unless it is left out.
func (c *compiler) addOp(i int32, op Op) {
	if op.View {
		c.addView(i, op)
		return
	}
	var outs []int32
	var bytes int64
	once := op.Once
	for _, v := range op.Outs {
		if c.pinned[v] {
			c.bytes += c.p.Values[v].Bytes
			once = true
			continue
		}
		outs = append(outs, c.addSlot(v))
		bytes += c.p.Values[v].Bytes
	}
	if outs == nil && len(op.Args) == 0 && op.Workspace == 0 && len(op.Outs) > 0 {
		return
	}
	c.push(i, op.Cost, bytes, op.Workspace, once, outs)
	c.reads(op.Args)
}

// addSlot makes a slot for value v, which the next stage makes.
func (c *compiler) addSlot(v int) int32 {
	s := int32(len(c.size))
	c.slot[v] = s
	c.size = append(c.size, c.p.Values[v].Bytes)
	c.value = append(c.value, int32(v))
	c.prod = append(c.prod, int32(c.n))
	c.cons = append(c.cons, nil)
	c.views = append(c.views, nil)
	c.through = append(c.through, nil)
	return s
}

// addView makes a stage of a view, unless it is one of a pinned value.
func (c *compiler) addView(i int32, op Op) {
	of := op.Args[0]
	if c.pinned[c.root[of]] {
		return
	}
	c.push(i, op.Cost, 0, op.Workspace, true, nil)
	c.reads(op.Args)
	s := c.slot[c.root[of]]
	for _, v := range op.Outs {
		c.viewOf[v] = int32(len(c.views[s]))
	}
	c.views[s] = append(c.views[s], view{int32(c.n - 1), op.Cost, c.viewOf[of]})
}

func (c *compiler) push(op int32, cost, add, work int64, once bool, outs []int32) {
	c.op = append(c.op, op)
	c.cost = append(c.cost, cost)
	c.add = append(c.add, add)
	c.work = append(c.work, work)
	c.once = append(c.once, once)
	c.outs = append(c.outs, outs)
	c.args = append(c.args, nil)
	c.base = append(c.base, c.bytes)
	c.n++
}

// reads notes that the last stage reads values.
func (c *compiler) reads(values []int) {
	t := c.n - 1
	for _, v := range values {
		s := c.slot[c.root[v]]
		if s < 0 {
			continue
		}
		if !slices.Contains(c.args[t], s) {
			c.args[t] = append(c.args[t], s)
			c.cons[s] = append(c.cons[s], int32(t))
			c.through[s] = append(c.through[s], read{})
		}
		if w := c.viewOf[v]; w >= 0 {
			r := &c.through[s][len(c.cons[s])-1]
			r.views = append(r.views, w)
		}
	}
}

// addEnd makes the stage of the end, which is not counted.
func (c *compiler) addEnd() {
	c.push(-1, 0, 0, 0, true, nil)
	c.reads(c.p.Outputs)
	c.n--
}
