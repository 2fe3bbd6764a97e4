package tensor

import (
	"slices"

	"github.com/headroom-go/headroom/internal/kernel"
	"github.com/headroom-go/headroom/trace"
)

// LayerNorm normalises over the last dimension: (x − mean)/√(var + eps)·gamma + beta.
// It saves x and two numbers a row; its result is made again for those who save it.
func LayerNorm(x, gamma, beta *Tensor, eps float32) *Tensor {
	needSame(x, gamma, beta)
	return normalise("layer_norm", x, gamma, beta, eps, x.rt.wide(x))
}

// LayerNormLow is LayerNorm with a result of the type in which Autocast computes,
// of x's while it is off: for products and for a residual stream of 16 bits.
func LayerNormLow(x, gamma, beta *Tensor, eps float32) *Tensor {
	needSame(x, gamma, beta)
	return normalise("layer_norm", x, gamma, beta, eps, x.rt.low(x))
}

func needSame(x, gamma, beta *Tensor) {
	if !slices.Equal(gamma.shape, beta.shape) {
		fail("LayerNorm of %v with gamma %v and beta %v", x, gamma, beta)
	}
}

// RMSNorm is x/√(mean of x² + eps)·gamma over the last dimension. It saves x
// and one number a row; its result is made again for those who save it.
func RMSNorm(x, gamma *Tensor, eps float32) *Tensor {
	return normalise("rms_norm", x, gamma, nil, eps, x.rt.wide(x))
}

// normalise is LayerNorm, or RMSNorm where there is no beta, with a result of
// type t.
func normalise(name string, x, gamma, beta *Tensor, eps float32, t DType) *Tensor {
	rt, cols := x.rt, x.Dim(-1)
	if cols == 0 || !slices.Equal(gamma.shape, []int{cols}) {
		fail("%s of %v with gamma %v", name, x, gamma)
	}
	narrow := x.To(rt.narrow(x.dtype))
	defer narrow.Release()
	l := &norm{n: rt.node(name, x, gamma, beta), rows: x.Len() / cols, cols: cols}
	d := narrow.contiguous()
	defer d.Release()
	y, rstd := rt.Empty(t, trace.Activation, x.shape...), rt.Empty(Float32, trace.Activation, l.rows)
	defer rstd.Release()
	var mean *Tensor
	if beta != nil {
		mean = rt.Empty(Float32, trace.Activation, l.rows)
		defer mean.Release()
	}
	kernel.LayerNorm(rt.stream, l.rows, cols, y.ptr(), address(mean), rstd.ptr(), d.ptr(), gamma.ptr(), address(beta), eps)
	return l.bind(y, narrow, mean, rstd, gamma, beta)
}

// norm is a recorded normalisation.
type norm struct {
	n          *node
	rows, cols int
	result     DType
	saved      [5]*saved // x, mean, rstd, gamma, beta; nil where there is none
}

// bind makes y the result of l, which saves what it was made of.
func (l *norm) bind(y, x, mean, rstd, gamma, beta *Tensor) *Tensor {
	if l.n == nil {
		return l.n.bind(y, nil)
	}
	for i, t := range []*Tensor{x, mean, rstd, gamma, beta} {
		if t != nil {
			l.saved[i] = l.n.save(t)
		}
	}
	l.result, l.n.again = y.dtype, l.again
	return l.n.bind(y, l.backward)
}

// operands gives the saved values by get or take, x dense, and nil where there
// is none.
func (l *norm) operands(value func(*saved) *Tensor) (ts [5]*Tensor) {
	for i, s := range l.saved {
		if s != nil {
			ts[i] = value(s)
		}
	}
	x := ts[0]
	defer x.Release()
	ts[0] = x.contiguous()
	return ts
}

func (l *norm) again() *Tensor {
	t := l.operands((*saved).get)
	defer releaseAll(t[:]...)
	x := t[0]
	y := x.rt.Empty(l.result, trace.Activation, x.shape...)
	kernel.LayerNormApply(x.rt.stream, l.rows, l.cols, y.ptr(), x.ptr(), address(t[1]), address(t[2]), address(t[3]), address(t[4]))
	return y
}

func (l *norm) backward(g *Tensor) {
	t := l.operands((*saved).take)
	defer releaseAll(t[:]...)
	to, acc := l.n.gradients(g)
	kernel.LayerNormGrad(g.rt.stream, l.rows, l.cols, address(to[0]), address(to[1]), address(to[2]), g.ptr(), t[0].ptr(),
		address(t[1]), address(t[2]), address(t[3]), acc[0], acc[1], acc[2])
}

// gradients is where those of up to four inputs are to be written, and whether
// to add; nil where none is wanted. That of the first may be written over g, and
// so may that of the fourth, which then has g to itself.
func (n *node) gradients(g *Tensor) (to [4]*Tensor, acc [4]bool) {
	for i := len(n.inputs) - 1; i >= 0; i-- {
		switch {
		case !n.wants(i):
		case i == 0 || i == 3:
			to[i], acc[i] = n.over(i, g)
		default:
			to[i], acc[i] = n.into(i)
		}
	}
	return to, acc
}

// releaseAll releases what is not nil.
func releaseAll(ts ...*Tensor) {
	for _, t := range ts {
		if t != nil {
			t.Release()
		}
	}
}

// BatchNormParams are the running statistics of a batch normalisation, of one
// element a channel, its numbers, and what is done with its result. A training
// pass moves Mean and Var by Momentum towards the batch's mean and unbiased
// variance; both may be nil.
type BatchNormParams struct {
	Mean, Var     *Tensor
	Momentum, Eps float32
	Training      bool
	ChannelsLast  bool // the channel is x's last dimension

	Residual *Tensor // of x's shape, added to the result; nil for none
	Relu     bool    // ReLU of that is given
}

// BatchNorm normalises each channel (dimension 1, or the last) of x, by its own mean and
// variance in training and by the running ones otherwise, and gives
// x̂·gamma + beta, plus the residual if there is one, or ReLU of that: passes of
// their own over memory would take longer than the normalisation.
//
// It saves x, two numbers a channel and the residual, from which also follows
// what ReLU cut off. Its result is made again for those who save it, once for
// all of them, unless it comes of too many residuals one after the other.
func BatchNorm(x, gamma, beta *Tensor, p BatchNormParams) *Tensor {
	b := batchNormOf(x, gamma, beta, p)
	d := x.contiguous()
	defer d.Release()
	mean, rstd := b.statistics(d, p)
	defer releaseAll(mean, rstd)
	operands := [6]*Tensor{x, mean, rstd, gamma, beta, p.Residual}
	if b.n != nil {
		b.save(operands)
	}
	operands[0] = d
	return b.n.bind(b.apply(operands), b.backward)
}

// batchNormOf checks the operands and begins the operation.
func batchNormOf(x, gamma, beta *Tensor, p BatchNormParams) *batchNorm {
	if len(x.shape) < 2 || x.Len() == 0 || p.Residual != nil && (p.Residual.dtype != x.dtype || !slices.Equal(p.Residual.shape, x.shape)) {
		fail("BatchNorm of %v with residual %v", x, p.Residual)
	}
	at := 1
	if p.ChannelsLast {
		at = len(x.shape) - 1
	}
	channel := []int{x.shape[at]}
	for _, t := range []*Tensor{gamma, beta, p.Mean, p.Var} {
		if t == nil && p.Training || t != nil && slices.Equal(t.shape, channel) && t.dense() {
			continue
		}
		fail("BatchNorm of %v: want %d channels, got %v", x, channel[0], t)
	}
	return &batchNorm{n: x.rt.node("batch_norm", x, gamma, beta, p.Residual), fixed: !p.Training,
		k: kernel.BatchNorm{N: numel(x.shape[:at]), C: x.shape[at], P: numel(x.shape[at+1:]), Relu: p.Relu}}
}

// batchNorm is a recorded batch normalisation.
type batchNorm struct {
	n     *node
	fixed bool // by statistics that don't depend on x
	k     kernel.BatchNorm
	saved [6]*saved // x, mean, rstd, gamma, beta, residual; nil where there is none
}

// mostResiduals bounds how many results, each the residual of the next, are made
// again for one another: as many are there at once. So in a network of residual
// blocks one of five keeps its result.
const mostResiduals = 4

// residuals is how many of them making n's result again takes.
func (n *node) residuals() int {
	most := n.chain
	for _, s := range n.saved {
		if s.recipe != nil {
			most = max(most, s.recipe.residuals())
		}
	}
	return most
}

// save keeps the operands, and what makes the result again.
func (b *batchNorm) save(operands [6]*Tensor) {
	for i, t := range operands {
		if t != nil {
			b.saved[i] = b.n.save(t)
			if t.rt.hasRecipe(t) { // also where it is held: others keep their recipes
				b.n.chain = max(b.n.chain, t.node.residuals())
			}
		}
	}
	if operands[5] != nil {
		b.n.chain++
	}
	if b.n.residuals() > mostResiduals {
		b.n.remake(func(in []*Tensor) *Tensor { return b.apply([6]*Tensor(in)) }, operands[:]...)
		return
	}
	b.n.shared = &shared{again: func() *Tensor {
		t := b.operands((*saved).get)
		defer releaseAll(t[:]...)
		return b.apply(t)
	}}
	b.n.again = b.n.shared.get
}

// apply gives the result of x, mean, rstd, gamma, beta and residual.
func (b *batchNorm) apply(t [6]*Tensor) *Tensor {
	t = b.dense(t)
	defer releaseAll(t[0], t[5])
	y := t[0].rt.Empty(t[0].dtype, trace.Activation, t[0].shape...)
	kernel.BatchNormApply(y.rt.stream, b.of(t), y.ptr())
	return y
}

// dense gives the operands with new handles on x and residual, which are dense.
func (b *batchNorm) dense(t [6]*Tensor) [6]*Tensor {
	t[0] = t[0].contiguous()
	if t[5] != nil {
		t[5] = t[5].contiguous()
	}
	return t
}

// of is the kernel's description with its operands.
func (b *batchNorm) of(t [6]*Tensor) kernel.BatchNorm {
	k := b.k
	k.X, k.Mean, k.RStd, k.Gamma, k.Beta, k.Residual = t[0].ptr(), t[1].ptr(), t[2].ptr(), address(t[3]), address(t[4]), address(t[5])
	return k
}

// statistics gives the mean and 1/√(var + eps) to normalise x with.
func (b *batchNorm) statistics(x *Tensor, p BatchNormParams) (mean, rstd *Tensor) {
	rt := x.rt
	rstd = rt.Empty(Float32, trace.Activation, b.k.C)
	if b.fixed {
		kernel.InverseDeviation(rt.stream, b.k.C, rstd.ptr(), p.Var.ptr(), p.Eps)
		return p.Mean.Detach(), rstd
	}
	mean = rt.Empty(Float32, trace.Activation, b.k.C)
	runMean, runVar := p.Mean, p.Var
	if rt.rerun || runMean == nil || runVar == nil {
		runMean, runVar = nil, nil
	} else {
		runMean.st.version++
		runVar.st.version++
	}
	kernel.BatchNormStats(rt.stream, b.of([6]*Tensor{x, mean, rstd}), address(runMean), address(runVar), p.Momentum, p.Eps)
	return mean, rstd
}

// operands gives the saved values by get or take.
func (b *batchNorm) operands(value func(*saved) *Tensor) (ts [6]*Tensor) {
	for i, s := range b.saved {
		if s != nil {
			ts[i] = value(s)
		}
	}
	return ts
}

func (b *batchNorm) backward(g *Tensor) {
	t := b.operands(func(s *saved) *Tensor {
		if s == b.saved[5] && !b.k.Relu { // which only the result is made of
			return nil
		}
		return s.take()
	})
	defer releaseAll(t[:]...)
	d := b.dense(t)
	defer releaseAll(d[0], d[5])
	to, acc := b.n.gradients(g)
	var at [4]kernel.Array
	for i, t := range to {
		at[i] = address(t)
	}
	kernel.BatchNormGrad(g.rt.stream, b.of(d), at, acc, g.ptr(), b.fixed)
}
