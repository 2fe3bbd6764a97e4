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

// LayerNormLow is LayerNorm for operations that compute in the type of Autocast:
// its result is what theirs is cast to, and no float32 of it is ever stored.
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
	narrow := rt.narrowed(x)
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

// gradients is where those of three inputs are to be written, and whether to
// add; nil where none is wanted. The first may be written over g.
func (n *node) gradients(g *Tensor) (to [3]*Tensor, acc [3]bool) {
	for i := 2; i >= 0; i-- { // the first last, since it may take g over
		switch {
		case !n.wants(i):
		case i == 0:
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
// element a channel, and its numbers. A training pass moves Mean and Var by
// Momentum towards the batch's mean and unbiased variance; both may be nil.
type BatchNormParams struct {
	Mean, Var     *Tensor
	Momentum, Eps float32
	Training      bool
	ChannelsLast  bool // the channel is x's last dimension
}

// BatchNorm normalises each channel (dimension 1, or the last) of x, by its own mean and
// variance in training and by the running ones otherwise, and gives
// x̂·gamma + beta. It saves x and two numbers a channel; its result is made
// again for those who save it.
func BatchNorm(x, gamma, beta *Tensor, p BatchNormParams) *Tensor {
	rt := x.rt
	if len(x.shape) < 2 || x.Len() == 0 {
		fail("BatchNorm of %v", x)
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
	b := &batchNorm{n: rt.node("batch_norm", x, gamma, beta), fixed: !p.Training,
		k: kernel.BatchNorm{N: numel(x.shape[:at]), C: x.shape[at], P: numel(x.shape[at+1:])}}
	d := x.contiguous()
	defer d.Release()
	mean, rstd := b.statistics(d, p)
	defer releaseAll(mean, rstd)
	y := rt.Empty(x.dtype, trace.Activation, x.shape...)
	kernel.BatchNormApply(rt.stream, b.of(d, mean, rstd, gamma, beta), y.ptr())
	if b.n == nil {
		return b.n.bind(y, nil)
	}
	for i, t := range []*Tensor{x, mean, rstd, gamma, beta} {
		b.saved[i] = b.n.save(t)
	}
	b.n.again = b.again
	return b.n.bind(y, b.backward)
}

// batchNorm is a recorded batch normalisation.
type batchNorm struct {
	n     *node
	fixed bool // by statistics that don't depend on x
	k     kernel.BatchNorm
	saved [5]*saved // x, mean, rstd, gamma, beta
}

// of is the kernel's description with its operands.
func (b *batchNorm) of(x, mean, rstd, gamma, beta *Tensor) kernel.BatchNorm {
	k := b.k
	k.X, k.Mean, k.RStd, k.Gamma, k.Beta = x.ptr(), mean.ptr(), rstd.ptr(), address(gamma), address(beta)
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
	kernel.BatchNormStats(rt.stream, b.of(x, mean, rstd, nil, nil), address(runMean), address(runVar), p.Momentum, p.Eps)
	return mean, rstd
}

// operands gives the saved values by get or take, x dense.
func (b *batchNorm) operands(value func(*saved) *Tensor) (ts [5]*Tensor) {
	for i, s := range b.saved {
		ts[i] = value(s)
	}
	x := ts[0]
	defer x.Release()
	ts[0] = x.contiguous()
	return ts
}

func (b *batchNorm) again() *Tensor {
	t := b.operands((*saved).get)
	defer releaseAll(t[:]...)
	y := t[0].rt.Empty(t[0].dtype, trace.Activation, t[0].shape...)
	kernel.BatchNormApply(y.rt.stream, b.of(t[0], t[1], t[2], t[3], t[4]), y.ptr())
	return y
}

func (b *batchNorm) backward(g *Tensor) {
	t := b.operands((*saved).take)
	defer releaseAll(t[:]...)
	to, acc := b.n.gradients(g)
	kernel.BatchNormGrad(g.rt.stream, b.of(t[0], t[1], t[2], t[3], nil), address(to[0]), address(to[1]), address(to[2]), g.ptr(),
		b.fixed, acc[0], acc[1], acc[2])
}
