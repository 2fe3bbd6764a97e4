package remat

import (
	"fmt"
	"math/rand/v2"
)

// randomProgram is a program of n operations that reads values near and far, with
// views, several outputs, workspace and operations that run once, as asked for.
func randomProgram(rng *rand.Rand, n int, plain bool) *Program {
	p := &Program{}
	value := func(bytes int64) int {
		p.Values = append(p.Values, Value{Bytes: bytes})
		return len(p.Values) - 1
	}
	value(rng.Int64N(5)) // there from the start
	for range n {
		op := Op{Cost: 1 + rng.Int64N(9)}
		for range 1 + rng.IntN(2) {
			back := min(len(p.Values), 1+rng.IntN(3))
			if rng.IntN(3) == 0 {
				back = len(p.Values)
			}
			op.Args = append(op.Args, len(p.Values)-1-rng.IntN(back))
		}
		switch {
		case !plain && rng.IntN(5) == 0:
			op.View, op.Args = true, op.Args[:1]
			op.Outs = []int{value(0)}
		case rng.IntN(6) == 0:
			op.Outs = []int{value(1 + rng.Int64N(9)), value(rng.Int64N(5))}
		default:
			op.Outs = []int{value(1 + rng.Int64N(9))}
		}
		if !plain && rng.IntN(10) == 0 {
			op.Outs, op.View = nil, false // changes something else
		}
		if !plain && !op.View {
			op.Once = rng.IntN(12) == 0
			if rng.IntN(8) == 0 {
				op.Workspace = rng.Int64N(6)
			}
		}
		p.Ops = append(p.Ops, op)
	}
	p.Outputs = []int{len(p.Values) - 1, rng.IntN(len(p.Values))}
	if !plain && rng.IntN(2) == 0 {
		v := rng.IntN(len(p.Values))
		if made := p.makers()[v]; made >= 0 && !p.Ops[made].View {
			p.Values[v].Pinned = true
		}
	}
	return p
}

// builder writes forward operations down and then their backward ones in reverse,
// as a tape does.
type builder struct {
	p    *Program
	tape []func()
	grad map[int]int // value → its gradient
}

func (b *builder) value(bytes int64) int {
	b.p.Values = append(b.p.Values, Value{Bytes: bytes})
	return len(b.p.Values) - 1
}

func (b *builder) op(name string, cost, bytes int64, args ...int) int {
	v := b.value(bytes)
	b.p.Ops = append(b.p.Ops, Op{Name: name, Cost: cost, Args: args, Outs: []int{v}})
	return v
}

// layer is an operation whose gradient reads its output, if keepOut, or else its
// arguments.
func (b *builder) layer(name string, cost, bytes int64, keepOut bool, args ...int) int {
	out := b.op(name, cost, bytes, args...)
	b.tape = append(b.tape, func() {
		for _, a := range args {
			if b.p.makers()[a] < 0 {
				continue
			}
			read := []int{b.grad[out]}
			if keepOut {
				read = append(read, out)
			} else {
				read = append(read, args...)
			}
			g := b.op(name+"_grad", cost, b.p.Values[a].Bytes, read...)
			if old, ok := b.grad[a]; ok {
				g = b.op("add", 1+bytes/1000, b.p.Values[a].Bytes, old, g)
			}
			b.grad[a] = g
		}
	})
	return out
}

func (b *builder) backward(loss int) *Program {
	b.grad = map[int]int{loss: b.op("ones", 1, b.p.Values[loss].Bytes, loss)}
	for i := len(b.tape) - 1; i >= 0; i-- {
		b.tape[i]()
	}
	b.p.Outputs = append(b.p.Outputs, loss)
	return b.p
}

// transformer is a training step of a decoder with the given layers.
func transformer(layers int) *Program {
	b := &builder{p: &Program{}}
	const h = 4 << 20 // bytes of one activation
	x := b.op("embed", 100e3, h, b.value(h))
	for l := range layers {
		w := b.value(12 * h / 64)
		_ = l
		n := b.layer("norm", 60e3, h, false, x)
		qkv := b.layer("qkv", 900e3, 3*h, false, n, w)
		scores := b.layer("scores", 400e3, 4*h, false, qkv)
		probs := b.layer("softmax", 150e3, 4*h, true, scores)
		ctx := b.layer("context", 400e3, h, false, probs, qkv)
		proj := b.layer("project", 300e3, h, false, ctx, w)
		x = b.layer("add", 40e3, h, false, x, proj)
		n = b.layer("norm", 60e3, h, false, x)
		up := b.layer("up", 1200e3, 4*h, false, n, w)
		act := b.layer("gelu", 200e3, 4*h, false, up)
		down := b.layer("down", 1200e3, h, false, act, w)
		x = b.layer("add", 40e3, h, false, x, down)
	}
	return b.backward(b.layer("loss", 100e3, 4, false, x))
}

// resnet is a training step of a network with the given number of blocks.
func resnet(blocks int) *Program {
	b := &builder{p: &Program{}}
	size, cost := int64(64<<20), int64(900e3)
	x := b.op("stem", cost, size, b.value(size/4))
	for k := range blocks {
		if k > 0 && k%(blocks/4+1) == 0 {
			size /= 2
		}
		w, in := b.value(1<<20), x
		for c := range 3 {
			y := b.layer(fmt.Sprint("conv", c%2), cost, size, false, x, w)
			y = b.layer("norm", cost/6, size, false, y)
			if x = y; c < 2 {
				x = b.layer("relu", cost/8, size, true, y)
			}
		}
		if b.p.Values[in].Bytes != size {
			in = b.layer("down", cost/3, size, false, in, w)
		}
		x = b.layer("relu", cost/8, size, true, b.layer("add", cost/7, size, false, x, in))
	}
	return b.backward(b.layer("loss", cost/50, 4, false, x))
}
