package cuda

import "errors"

// noteTensorCore is the note of an engine that it uses tensor cores. Others
// tell of inputs that are rounded, of sums in less than float32 or in any
// order, and of other methods than sums of products.
const noteTensorCore = 0

// plain engines sum products as they are in float32, and in one order; fast
// ones do so for products of 16-bit numbers by tensor cores.
func plain(notes []int32) bool { return len(notes) == 0 }
func fast(notes []int32) bool  { return len(notes) == 1 && notes[0] == noteTensorCore }

// ConvolutionPart names what of a convolution is computed from the others.
type ConvolutionPart int

const (
	ConvolutionY  ConvolutionPart = iota // Y from X and W
	ConvolutionDX                        // the gradient of X from W and that of Y
	ConvolutionDW                        // the gradient of W from X and that of Y
)

// Convolution describes a convolution or one of its gradients. Sizes and
// strides are those of X [N, C, H, W], W [M, C/groups, KH, KW] and Y
// [N, M, OH, OW], or of the gradients in their places.
type Convolution struct {
	Part                  ConvolutionPart
	SizeX, SizeW, SizeY   [4]int
	StridesX              [4]int
	StridesW              [4]int
	StridesY              [4]int
	TypeX, TypeW, TypeY   int
	Stride, Pad, Dilation [2]int
	Bias                  bool // Y: a fourth operand of M elements of Y's type is added
	Accumulate            bool // gradients: add to what is there
	Align                 int  // bytes of which all addresses are multiples
}

// PlanConvolution chooses an engine that needs at most workspace bytes, for 16
// bits one without tensor cores only where there is none with them. Run takes
// X, W, Y and the bias where there is one. Close the plan.
func (d *DNN) PlanConvolution(c *Convolution, workspace int) (*DNNPlan, error) {
	if c.TypeX == DNNFloat32 {
		return d.convolution(c).finish(workspace, plain)
	}
	plan, err := d.convolution(c).finish(workspace, fast)
	var none *NoEngineError
	if errors.As(err, &none) && none.Need == 0 {
		return d.convolution(c).finish(workspace, plain)
	}
	return plan, err
}

func (d *DNN) convolution(c *Convolution) *graph {
	g := &graph{dnn: d}
	x := g.operand(c.TypeX, c.SizeX[:], c.StridesX[:], c.Align)
	w := g.operand(c.TypeW, c.SizeW[:], c.StridesW[:], c.Align)
	y := g.operand(c.TypeY, c.SizeY[:], c.StridesY[:], c.Align)
	result := y
	if c.Bias {
		result = g.virtual(DNNFloat32, c.SizeY[:]...)
	}
	const crossCorrelation = 1
	how := g.add(convolutionKind, one(100, dataType, DNNFloat32), one(101, convModeType, crossCorrelation), ints(102, c.Dilation[:]...),
		ints(103, c.Stride[:]...), ints(104, c.Pad[:]...), ints(105, c.Pad[:]...), ints(106, 2))
	op := []struct{ kind, number int }{{convForwardKind, 700}, {convGradInputKind, 706}, {convGradWeightKind, 712}}[c.Part]
	g.op(op.kind, float(op.number, 1), float(op.number+1, float32(bit(c.Accumulate))), refs(op.number+2, how),
		refs(op.number+3, w.made), refs(op.number+4, x.made), refs(op.number+5, result.made))
	if c.Bias {
		m := c.SizeY[1]
		g.pointwise(addMode, y, result, g.operand(c.TypeY, []int{1, m, 1, 1}, []int{m, 1, m, m}, c.Align))
	}
	return g
}

// Attention describes softmax(scale·Q·Kᵀ + mask)·V for Batch×Heads heads of T
// queries and S keys of D elements, all of one 16-bit type. A stride is given
// for the batch, the head and the row.
type Attention struct {
	Batch, Heads, T, S, D int
	Causal                bool // query t sees keys 0 … t; T is S
	Masked                bool // a bias of type float32, [Batch, S], is added to the scores
	Scale                 float32
	Type                  int
	Q, K, V, O            [3]int // strides, also of the gradients
}

// attentionGraph is what the graphs of attention share.
type attentionGraph struct {
	graph
	*Attention
	bias   tensor
	q, kt  tensor
	scale  tensor
	lowest tensor
}

const alignAttention = 16

// rows is an operand of n rows for each head.
func (g *attentionGraph) rows(n int, stride [3]int) tensor {
	return g.operand(g.Type, []int{g.Batch, g.Heads, n, g.D}, []int{stride[0], stride[1], stride[2], 1}, alignAttention)
}

// turned is an operand of n rows for each head, seen as columns.
func (g *attentionGraph) turned(n int, stride [3]int) tensor {
	return g.operand(g.Type, []int{g.Batch, g.Heads, g.D, n}, []int{stride[0], stride[1], 1, stride[2]}, alignAttention)
}

// each is an operand of one float32 for each query.
func (g *attentionGraph) each() tensor {
	size := []int{g.Batch, g.Heads, g.T, 1}
	return g.operand(DNNFloat32, size, denseStrides(size), 4)
}

// addBias makes what is added the next operand.
func (g *attentionGraph) addBias() {
	if g.Masked { // with size 1 in place of T, the gradient would be wrong
		g.bias = g.operand(DNNFloat32, []int{g.Batch, 1, g.T, g.S}, []int{g.S, g.S, 0, 1}, 4)
	}
}

// numbers adds the scalars.
func (g *attentionGraph) numbers() {
	g.scale = g.scalar(g.Scale)
	if g.Causal {
		g.lowest = g.scalar(-0x1.fffffep127)
	}
}

// square is a virtual tensor of the scores' size, one that of a number a query.
func (g *attentionGraph) square(kind int) tensor { return g.virtual(kind, g.Batch, g.Heads, g.T, g.S) }
func (g *attentionGraph) one() tensor            { return g.virtual(DNNFloat32, g.Batch, g.Heads, g.T, 1) }

// scores is scale·Q·Kᵀ + bias.
func (g *attentionGraph) scores() tensor {
	s := g.matmul(g.square(DNNFloat32), g.q, g.kt)
	s = g.pointwise(mulMode, g.square(DNNFloat32), s, g.scale)
	if g.Masked {
		s = g.pointwise(addMode, g.square(DNNFloat32), s, g.bias)
	}
	return s
}

// causal hides the keys behind each query.
func (g *attentionGraph) causal(s tensor) tensor {
	if !g.Causal {
		return s
	}
	row := g.index(2, g.square(dnnInt32), s)
	column := g.index(3, g.square(dnnInt32), s)
	seen := g.pointwise(notLessMode, g.square(dnnBoolean), row, column)
	return g.pointwise(selectMode, g.square(DNNFloat32), s, g.lowest, seen)
}

// PlanAttention chooses an engine that needs at most workspace bytes. Run
// takes Q, K, V, O, the logarithms of the rows' sums [Batch, Heads, T], and the
// bias where there is one. Close the plan.
func (d *DNN) PlanAttention(a *Attention, workspace int) (*DNNPlan, error) {
	g := &attentionGraph{graph: graph{dnn: d}, Attention: a}
	g.q, g.kt = g.rows(a.T, a.Q), g.turned(a.S, a.K)
	v, o, lse := g.rows(a.S, a.V), g.rows(a.T, a.O), g.each()
	g.addBias()
	g.numbers()
	s := g.causal(g.scores())
	most := g.reduce(maxReduction, g.one(), s)
	e := g.pointwise(expMode, g.square(DNNFloat32), g.pointwise(subMode, g.square(DNNFloat32), s, most))
	sum := g.reduce(sumReduction, g.one(), e)
	g.pointwise(addMode, lse, most, g.pointwise(logMode, g.one(), sum))
	g.matmul(o, g.pointwise(divMode, g.square(a.Type), e, sum), v)
	return g.finish(workspace, fast)
}

// PlanAttentionGrad chooses an engine that needs at most workspace bytes. Run
// takes Q, K, V, O, the logarithms of the rows' sums, the gradients of O, Q, K
// and V, a float32 for each query that it sets to Σ dO·O, and the bias where
// there is one. The engine keeps the gradients of the scores in the workspace,
// since adding up those of the queries as they come is done in any order.
// Close the plan.
func (d *DNN) PlanAttentionGrad(a *Attention, workspace int) (*DNNPlan, error) {
	g := &attentionGraph{graph: graph{dnn: d}, Attention: a}
	g.q, g.kt = g.rows(a.T, a.Q), g.turned(a.S, a.K)
	vt, o, lse := g.turned(a.S, a.V), g.rows(a.T, a.O), g.each()
	do, dq, dk, dv, delta := g.rows(a.T, a.O), g.rows(a.T, a.Q), g.rows(a.S, a.K), g.rows(a.S, a.V), g.each()
	g.addBias()
	g.numbers()
	unit := g.scalar(1) // the graph that was tried has a factor here
	product := g.pointwise(mulMode, g.virtual(DNNFloat32, a.Batch, a.Heads, a.T, a.D), do, o)
	g.pointwise(mulMode, delta, g.reduce(sumReduction, g.one(), product), unit)

	s := g.pointwise(subMode, g.square(DNNFloat32), g.scores(), lse)
	p := g.pointwise(expMode, g.square(DNNFloat32), g.causal(s))
	g.matmul(dv, g.transpose(p), do)
	dp := g.pointwise(subMode, g.square(DNNFloat32), g.matmul(g.square(DNNFloat32), do, vt), delta)
	ds := g.pointwise(mulMode, g.square(DNNFloat32), dp, p)
	ds = g.pointwise(mulMode, g.square(DNNFloat32), ds, g.scale)
	g.matmul(dk, g.transpose(ds), g.q)
	k := g.reshape(g.tensor(a.Type, []int{a.Batch, a.Heads, a.S, a.D}, []int{a.K[0], a.K[1], a.K[2], 1}, alignAttention, one(907, booleanType, 1)), g.kt)
	g.matmul(dq, ds, k)
	return g.finish(workspace, fast)
}

// transpose gives the transposed scores in the operands' type.
func (g *attentionGraph) transpose(s tensor) tensor {
	n := g.T * g.S
	size, stride := []int{g.Batch, g.Heads, g.S, g.T}, []int{g.Heads * n, n, 1, g.S}
	return g.reshape(g.tensor(g.Type, size, stride, alignAttention, one(907, booleanType, 1)), s)
}
