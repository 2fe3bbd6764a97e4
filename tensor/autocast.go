package tensor

import (
	"github.com/headroom-go/headroom/internal/kernel"
	"github.com/headroom-go/headroom/trace"
)

// casts is the state of Autocast.
type casts struct {
	to     DType // Float32 while it is off
	depth  int   // of the regions
	copies []*Tensor
	found  map[*slot]paramCopy
}

// paramCopy is a parameter in another type.
type paramCopy struct {
	*Tensor
	version int // of the parameter's memory
}

// Autocast runs f with mixed precision (Micikevicius et al., "Mixed Precision
// Training", 2018): the package's documentation says which operations compute
// in d, BFloat16 or Float16. Float32 turns it off within a region that is on.
// Regions may be nested. The casts of parameters are kept for their next use
// until the outermost region ends; backward makes them again.
func (rt *Runtime) Autocast(d DType, f func()) {
	if !d.Float() {
		fail("Autocast to %s: want float32, bfloat16 or float16", d)
	}
	c := &rt.casts
	outer := c.to
	c.to = d
	c.depth++
	defer func() {
		c.to = outer
		if c.depth--; c.depth == 0 {
			for _, t := range c.copies {
				t.drop()
			}
			c.copies, c.found = nil, nil
		}
	}()
	f()
}

// outsideAutocast gives a function that ends what it begins: a time outside of
// all regions.
func (rt *Runtime) outsideAutocast() (back func()) {
	c := rt.casts
	rt.casts = casts{}
	return func() { rt.casts = c }
}

// lower replaces operands of an operation of the lower-precision list by casts
// if Autocast is on; the function that it gives releases these. A nil operand
// stays.
func (rt *Runtime) lower(operands ...**Tensor) (release func()) {
	return rt.recast(rt.casts.to, operands)
}

// raise is lower for operations that compute in float32.
func (rt *Runtime) raise(operands ...**Tensor) (release func()) {
	return rt.recast(Float32, operands)
}

func (rt *Runtime) recast(d DType, operands []**Tensor) (release func()) {
	if rt.casts.to == Float32 {
		return func() {}
	}
	var made []*Tensor
	for _, p := range operands {
		switch t := *p; {
		case t == nil || t.dtype == d || !t.dtype.Float():
			continue
		case t.leaf != nil && t.st.persistent:
			*p = rt.castParameter(t, d)
		default:
			*p = t.To(d)
		}
		made = append(made, *p)
	}
	return func() { releaseAll(made...) }
}

// castParameter gives a parameter in another type, for the next use too.
func (rt *Runtime) castParameter(t *Tensor, d DType) *Tensor {
	if t.st.use != nil { // its memory goes, and so does the cast's
		return t.castTo(d)
	}
	c := &rt.casts
	p, ok := c.found[t.leaf]
	bare := ok && p.node == nil && !rt.noGrad // whoever saves it would want a recipe
	if !ok || bare || p.version != t.st.version || p.dtype != d || p.prev == nil {
		p = paramCopy{t.castTo(d), t.st.version}
		c.copies = append(c.copies, p.Tensor)
		if c.found == nil {
			c.found = map[*slot]paramCopy{}
		}
		c.found[t.leaf] = p
	}
	return p.Retain()
}

// castTo is an operation that casts t, a parameter, and is made again for those who
// save its result. Its gradient is the parameter's own, so that backward adds to that
// in float32 and never comes to the operation.
func (t *Tensor) castTo(d DType) *Tensor {
	rt, r := t.rt, Range{Kind: OpForward, Name: "cast"}
	var n *node
	if !rt.noGrad {
		rt.nodes++
		r.Node = rt.nodes
		n = &node{name: r.Name, number: r.Node, refs: 1, result: slot{rt: rt}}
		if t.st.use == nil {
			rt.enter(n)
		}
		s := n.save(t)
		n.again = func() *Tensor { return with(s.get(), func(t *Tensor) *Tensor { return t.converted(d) }) }
	}
	defer rt.endRanges(rt.begin(r))
	h := t.converted(d)
	h.leaf, h.cast, h.node = t.leaf, true, n
	return h
}

// wide is the type of what an operation of the float32 list makes of x.
func (rt *Runtime) wide(x *Tensor) DType {
	if rt.casts.to != Float32 {
		return Float32
	}
	return x.dtype
}

// low is the type of what an operation with 16-bit results under Autocast makes of x.
func (rt *Runtime) low(x *Tensor) DType {
	if rt.casts.to != Float32 {
		return rt.casts.to
	}
	return x.dtype
}

// Low is x in the type in which Autocast computes, or x while it is off. A residual
// stream that begins so stays so, since sums of two such have their type.
func Low(x *Tensor) *Tensor { return x.To(x.rt.low(x)) }

// narrow is the type in which a normalisation reads and saves what has type d: under
// bfloat16 a float32 one has 16 bits, so that what is made again from them is the same
// as before.
func (rt *Runtime) narrow(d DType) DType {
	if rt.casts.to == BFloat16 && d == Float32 {
		return BFloat16
	}
	return d
}

// promote is the type of what other operations make of ts, of which some may
// be nil: theirs if they have one in common, otherwise float32.
func promote(ts ...*Tensor) DType {
	d, seen := Float32, false
	for _, t := range ts {
		if t == nil {
			continue
		}
		if seen && t.dtype != d {
			return Float32
		}
		d, seen = t.dtype, true
	}
	return d
}

// To is t with elements of type d, rounded to nearest, ties to even, where d
// has fewer digits. Its gradient is cast back. Where t is made again for those
// who save it, so is the result.
func (t *Tensor) To(d DType) *Tensor {
	if t.dtype == d {
		return t.Retain()
	}
	if !t.dtype.Float() || !d.Float() {
		fail("To %s of %v: both must be floating-point types", d, t)
	}
	n := t.rt.node("to", t)
	if !t.rt.hasRecipe(t) {
		n.remake(func(in []*Tensor) *Tensor { return in[0].converted(d) }, t)
	} else if n != nil {
		s := n.save(t)
		n.again = func() *Tensor { return with(s.get(), func(t *Tensor) *Tensor { return t.converted(d) }) }
	}
	return n.bind(t.converted(d), func(g *Tensor) { n.pass(0, g) })
}

// converted gives a dense copy of type d with no past.
func (t *Tensor) converted(d DType) *Tensor {
	c := t.rt.Empty(d, trace.Activation, t.shape...)
	kernel.Copy(t.rt.stream, t.shape, c.kview(t.shape), t.kview(t.shape), false)
	return c
}
