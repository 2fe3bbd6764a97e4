package device

import (
	"errors"
	"strings"
	"sync"
	"unsafe"

	"github.com/headroom-go/headroom/internal/cuda"
)

// Convolution is a convolution of images for CUDAQueue.Convolution, or a
// gradient of one: of X, Weight and Y, dense [N, C, H, W], [M, C/Groups, KH, KW]
// and [N, M, OH, OW], or with ChannelsLast [N, H, W, C], [M, KH, KW, C/Groups]
// and [N, OH, OW, M], it computes Y (and adds Bias, of M elements, where there
// is one), or in the place of X or Weight its gradient, from that of Y in Y's.
// Sums are float32.
type Convolution struct {
	Part                                  ConvolutionPart
	N, C, H, W, M, KH, KW, OH, OW, Groups int
	Stride, Pad, Dilation                 [2]int
	ChannelsLast                          bool
	X, Weight, Y, Bias                    Ptr
	TypeX, TypeWeight, TypeY, TypeBias    DType
	Accumulate                            bool // gradients: add to what is there

	// Add queues the addition of a gradient of Weight, of X's type at sum, to
	// Weight; the first of them overwrites what is there unless Accumulate.
	// It is called where the library can't do so itself: where Weight has
	// another type, or where images are taken in parts.
	Add func(sum Ptr, first bool)
}

// ConvolutionPart names what is computed.
type ConvolutionPart = cuda.ConvolutionPart

// What a Convolution computes.
const (
	ConvolutionY      = cuda.ConvolutionY
	ConvolutionX      = cuda.ConvolutionDX
	ConvolutionWeight = cuda.ConvolutionDW
)

// Attention describes one for CUDAQueue.Attention: softmax(Scale·Q·Kᵀ + mask)·V
// for Batch×Heads heads of T queries and S keys of D elements. Q, K, V and O
// are the strides of operands and of their gradients, in elements, for the
// batch, the head and the row. With Causal, T is S. With Masked, numbers of
// float32, [Batch, S], are added to the scores.
type Attention = cuda.Attention

// cudaDNN keeps a plan for each convolution and attention that was asked for.
type cudaDNN struct {
	dnn       *cuda.DNN // nil where there is no cuDNN
	missing   error     // why
	workspace int
	attends   bool   // its attention is used
	before    func() // CUDADevice.flush

	mu           sync.Mutex
	convolutions dnnPlans[cuda.Convolution]
	attentions   dnnPlans[Attention]
	gradients    dnnPlans[Attention]
}

// OldestDNNAttention is the oldest version of cuDNN whose attention is used,
// 9.16.0: before, lengths that are no multiples of 128 were not always right.
const OldestDNNAttention = 91600

// start loads the library where there is one.
func (b *cudaDNN) start(c *cuda.Context, o *CUDAOptions) {
	switch {
	case o.dnn != nil:
		b.dnn, b.missing = cuda.FakeDNN(c, o.dnn)
	case o.driver == nil:
		b.dnn, b.missing = cuda.OpenDNN(c, o.Folders)
	}
	if b.dnn == nil || b.missing != nil {
		b.dnn = nil
		return
	}
	b.workspace, b.attends = max(0, int(o.Workspace)-asideBytes), b.dnn.Version() >= OldestDNNAttention
	b.convolutions = dnnPlans[cuda.Convolution]{make: b.dnn.PlanConvolution, before: b.before}
	b.attentions = dnnPlans[Attention]{make: b.dnn.PlanAttention, before: b.before}
	b.gradients = dnnPlans[Attention]{make: b.dnn.PlanAttentionGrad, before: b.before}
}

func (b *cudaDNN) close() error {
	err := errors.Join(b.convolutions.close(), b.attentions.close(), b.gradients.close())
	if b.dnn != nil {
		err = errors.Join(err, b.dnn.Close())
	}
	return err
}

// dnnPlans are plans for descriptions of one kind.
type dnnPlans[K comparable] struct {
	make   func(*K, int) (*cuda.DNNPlan, error)
	before func()
	known  map[K]dnnPlan
}

// dnnPlan is a plan, or where none fits into the workspace, what one needs; 0
// where there is none at all.
type dnnPlan struct {
	plan *cuda.DNNPlan
	need int
}

// maxPlans bounds the plans of a kind. Making one takes some 50 ms, so that a
// program whose shapes always change is better off without.
const maxPlans = 1024

func (p *dnnPlans[K]) get(key *K, workspace int) dnnPlan {
	found, ok := p.known[*key]
	if ok || len(p.known) == maxPlans {
		return found
	}
	if p.known == nil {
		p.known = map[K]dnnPlan{}
	}
	var none *cuda.NoEngineError
	copied := *key
	p.before()
	plan, err := p.make(&copied, workspace)
	if errors.As(err, &none) {
		found.need = none.Need
	}
	found.plan = plan
	p.known[copied] = found
	return found
}

func (p *dnnPlans[K]) close() (err error) {
	for _, x := range p.known {
		if x.plan != nil {
			err = errors.Join(err, x.plan.Close())
		}
	}
	return err
}

// share is for how many of n things at once there is a plan: get gives that for
// some. They are spread evenly. It is 0 where there is none for one of them.
func share(n, workspace int, get func(n int) dnnPlan) int {
	for some := n; ; {
		found := get(some)
		if found.plan != nil {
			return some
		}
		if found.need <= workspace { // there is none at all
			return 0
		}
		fit := min(some-1, some*workspace/found.need)
		if fit == 0 {
			return 0
		}
		some = ceilDiv(n, ceilDiv(n, fit))
	}
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// dnnTypes are the library's numbers of element types.
var dnnTypes = [...]int{Float32: cuda.DNNFloat32, BFloat16: cuda.DNNBFloat16, Float16: cuda.DNNFloat16}

// Convolution queues a convolution by cuDNN, in parts of as many images as the
// workspace has room for. It says false, and does nothing, where the library is
// missing or has no engine for it that sums in one order.
func (q *CUDAQueue) Convolution(c *Convolution) bool {
	b := &q.stream.device.dnn
	if b.dnn == nil || c.TypeX != c.TypeY || c.TypeWeight != c.TypeX && c.Part != ConvolutionWeight || c.Bias != 0 && c.TypeBias != c.TypeY {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	room := b.workspace - c.sumBytes()
	n := share(c.N, room, func(n int) dnnPlan { return b.convolution(c, n, room) })
	if n == 0 || c.N%n != 0 && b.convolution(c, c.N%n, room).plan == nil {
		return false
	}
	for first := 0; first < c.N; first += n {
		plan, part := b.convolution(c, min(n, c.N-first), room).plan, *c
		part.X += Ptr(first * c.imageX())
		part.Y += Ptr(first * c.imageY())
		work := q.Workspace(b.workspace)
		if c.apart(n) {
			part.Weight = work + Ptr(room)
		}
		operands := []cuda.Ptr{cuda.Ptr(part.X), cuda.Ptr(part.Weight), cuda.Ptr(part.Y), cuda.Ptr(c.Bias)}
		if c.Bias == 0 {
			operands = operands[:3]
		}
		q.stream.batch.enter(uintptr(unsafe.Pointer(plan)))
		q.stream.batch.leave(plan.Run(q.stream.handle, cuda.Ptr(work), operands...))
		if c.apart(n) {
			c.Add(part.Weight, first == 0)
		}
	}
	return true
}

// convolution is the plan for n of the images.
func (b *cudaDNN) convolution(c *Convolution, n, room int) dnnPlan {
	key := cuda.Convolution{
		Part:   c.Part,
		SizeX:  [4]int{n, c.C, c.H, c.W},
		SizeW:  [4]int{c.M, c.C / c.Groups, c.KH, c.KW},
		SizeY:  [4]int{n, c.M, c.OH, c.OW},
		Stride: c.Stride, Pad: c.Pad, Dilation: c.Dilation, Bias: c.Bias != 0, Accumulate: c.Accumulate,
		TypeX: dnnTypes[c.TypeX], TypeW: dnnTypes[c.TypeWeight], TypeY: dnnTypes[c.TypeY],
	}
	strides := denseStrides
	if c.ChannelsLast {
		strides = channelsLastStrides
	}
	key.StridesX, key.StridesW, key.StridesY = strides(key.SizeX), strides(key.SizeW), strides(key.SizeY)
	places := c.X | c.Weight | c.Y | c.Bias
	if n < c.N {
		places |= Ptr(c.imageX() | c.imageY())
	}
	if c.apart(n) {
		key.TypeW, key.Accumulate = key.TypeX, false
	}
	key.Align = min(16, alignment(places))
	if key.Align < 16 || c.ChannelsLast && !c.wholePixels() {
		return dnnPlan{} // engines load 16 bytes at once whatever they are told
	}
	return b.convolutions.get(&key, room)
}

func denseStrides(size [4]int) [4]int {
	return [4]int{size[1] * size[2] * size[3], size[2] * size[3], size[3], 1}
}

func channelsLastStrides(size [4]int) [4]int {
	return [4]int{size[1] * size[2] * size[3], 1, size[3] * size[1], size[1]}
}

// apart says whether the gradient of Weight from n images is added up outside
// of the library.
func (c *Convolution) apart(n int) bool {
	return c.Part == ConvolutionWeight && (n < c.N || c.TypeWeight != c.TypeX)
}

// sumBytes are at the end of the workspace, for such a gradient.
func (c *Convolution) sumBytes() int {
	if c.Part != ConvolutionWeight {
		return 0
	}
	return (c.M*c.C/c.Groups*c.KH*c.KW*c.TypeX.Size() + 511) &^ 511
}

// wholePixels says whether the channels of a pixel, in each group, are whole
// packs of 16 bytes.
func (c *Convolution) wholePixels() bool {
	return c.C/c.Groups*c.TypeX.Size()%16 == 0 && c.M/c.Groups*c.TypeY.Size()%16 == 0
}

// imageX and imageY are the bytes of an image.
func (c *Convolution) imageX() int { return c.C * c.H * c.W * c.TypeX.Size() }
func (c *Convolution) imageY() int { return c.M * c.OH * c.OW * c.TypeY.Size() }

// What the operands of attention are: queries, keys, values or results, of the
// strides of Q, K, V or O; a float32 for each query; the mask.
const (
	attentionOperands = "QKVOlm"
	gradientOperands  = "QKVOlOQKVlm"

	mostOperands = len(gradientOperands)
)

// Attention queues attention by cuDNN on elements of a 16-bit type, in parts of
// as many heads as the workspace has room for: from Q, K, V and the mask where
// there is one, the last operand, it computes O and the logarithms of the rows'
// sums, the operands between. It says false, and does nothing, where the
// library is missing or can't do it. Addresses and strides are multiples of 16
// bytes.
func (q *CUDAQueue) Attention(a Attention, kind DType, operands ...Ptr) bool {
	b := &q.stream.device.dnn
	return q.attend(&b.attentions, &a, kind, attentionOperands, operands)
}

// AttentionGrad queues the gradient of attention as Attention does: the
// operands are Q, K, V, O, the logarithms of the rows' sums, the gradient of O,
// those of Q, K and V, which it computes, room for a float32 for each query,
// and the mask where there is one.
func (q *CUDAQueue) AttentionGrad(a Attention, kind DType, operands ...Ptr) bool {
	b := &q.stream.device.dnn
	return q.attend(&b.gradients, &a, kind, gradientOperands, operands)
}

func (q *CUDAQueue) attend(plans *dnnPlans[Attention], a *Attention, kind DType, what string, operands []Ptr) bool {
	b := &q.stream.device.dnn
	if !b.attends {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	key := *a
	key.Type = dnnTypes[kind]
	get := func(batch, heads int) dnnPlan {
		key.Batch, key.Heads = batch, heads
		return plans.get(&key, b.workspace)
	}
	batch, heads := share(a.Batch, b.workspace, func(n int) dnnPlan { return get(n, a.Heads) }), a.Heads
	if batch == 0 { // not even one of the batch at once
		batch, heads = 1, share(a.Heads, b.workspace, func(n int) dnnPlan { return get(1, n) })
	}
	if heads == 0 || get(a.Batch-(a.Batch-1)/batch*batch, heads).plan == nil || get(batch, a.Heads-(a.Heads-1)/heads*heads).plan == nil {
		return false
	}
	for i := 0; i < a.Batch; i += batch {
		for j := 0; j < a.Heads; j += heads {
			plan := get(min(batch, a.Batch-i), min(heads, a.Heads-j)).plan
			var at [mostOperands]cuda.Ptr
			for k, p := range operands {
				byBatch, byHead := attentionSteps(a, what[k])
				at[k] = cuda.Ptr(p) + cuda.Ptr(i*byBatch+j*byHead)
			}
			work := cuda.Ptr(q.Workspace(b.workspace))
			q.stream.batch.enter(uintptr(unsafe.Pointer(plan)))
			q.stream.batch.leave(plan.Run(q.stream.handle, work, at[:len(operands)]...))
		}
	}
	return true
}

// attentionSteps are the bytes of an operand from one of the batch to the next,
// and from one head to the next.
func attentionSteps(a *Attention, what byte) (batch, head int) {
	switch what {
	case 'l':
		return 4 * a.Heads * a.T, 4 * a.T
	case 'm':
		return 4 * a.S, 0
	}
	strides := [...]*[3]int{&a.Q, &a.K, &a.V, &a.O}[strings.IndexByte("QKVO", what)]
	return 2 * strides[0], 2 * strides[1]
}
