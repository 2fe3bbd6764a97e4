package kernel

import (
	"fmt"

	"github.com/headroom-go/headroom/device"
)

// Pool describes windows over planes of H×W elements: X is [Planes, H, W] and
// Y [Planes, OH, OW], dense. Window o of a side begins at o·Stride − Pad. With
// Kernel {0, 0} the windows share the plane out evenly instead: window o of O
// goes from ⌊o·H/O⌋ to ⌈(o+1)·H/O⌉. With Channels, each element of a plane is
// that many of them, which are pooled apart: X is [Planes, H, W, Channels]. 0
// stands for 1.
type Pool struct {
	Planes, H, W, OH, OW int
	Channels             int
	Kernel, Stride, Pad  [2]int
	X, Y                 Array
}

func (p *Pool) check(op string) {
	bad := p.Planes < 0 || p.Channels < 0 || p.H < 1 || p.W < 1 || p.OH < 1 || p.OW < 1
	for i, size := range [2]int{p.H, p.W} {
		k := p.Kernel[i]
		bad = bad || k < 0 || k > 0 && (p.Stride[i] < 1 || p.Pad[i] < 0 || 2*p.Pad[i] > k || [2]int{p.OH, p.OW}[i] > Windows(size, k, p.Stride[i], p.Pad[i], 1))
	}
	if bad {
		panic(fmt.Sprintf("kernel.%s: %d planes of %d×%d to %d×%d, kernel %v, stride %v, padding %v",
			op, p.Planes, p.H, p.W, p.OH, p.OW, p.Kernel, p.Stride, p.Pad))
	}
}

// launch describes the launch of a kernel that passes so often over X (or its
// gradient, as x) and Y.
func (p *Pool) launch(k *device.Kernel, passX int, x, y Array) device.Launch {
	p.check(k.Name)
	planeX, planeY := p.planes()
	n := p.Planes * planeX
	l := device.Launch{Kernel: k, Bytes: x.bytes(passX*n) + y.bytes(p.Planes*planeY), Flops: uint64(n)}
	l.Int = [device.MaxInts]int{p.Planes, p.H, p.W, p.OH, p.OW, p.Kernel[0], p.Kernel[1], p.Stride[0], p.Stride[1], p.Pad[0], p.Pad[1]}
	l.Int[12] = max(1, p.Channels)
	return l
}

func loadPool(l *device.Launch) *Pool {
	n := &l.Int
	return &Pool{Planes: n[0], H: n[1], W: n[2], OH: n[3], OW: n[4],
		Kernel: [2]int{n[5], n[6]}, Stride: [2]int{n[7], n[8]}, Pad: [2]int{n[9], n[10]}, Channels: n[12]}
}

// bounds is the part of window o that lies inside of a side, and the elements
// that it counts for, those of the padding included.
func bounds(o, windows, size, kernel, stride, pad int) (lo, hi, count int) {
	if kernel == 0 {
		lo, hi = o*size/windows, ceilDiv((o+1)*size, windows)
		return lo, hi, hi - lo
	}
	lo = o*stride - pad
	hi = lo + kernel
	return max(lo, 0), min(hi, size), min(hi, size+pad) - lo
}

// each calls f for the windows of a plane: for number i of Y's plane, with
// what the window covers of the plane.
func (p *Pool) each(f func(i int, w *area)) {
	w := area{ld: p.W * p.Channels, step: p.Channels}
	for oy := range p.OH {
		w.top, w.bottom, w.down = bounds(oy, p.OH, p.H, p.Kernel[0], p.Stride[0], p.Pad[0])
		for ox := range p.OW {
			w.left, w.right, w.across = bounds(ox, p.OW, p.W, p.Kernel[1], p.Stride[1], p.Pad[1])
			for w.channel = range p.Channels {
				f((oy*p.OW+ox)*p.Channels+w.channel, &w)
			}
		}
	}
}

// area is what a window covers of a plane, in one channel.
type area struct {
	ld, step                 int // elements from row to row of the plane, and from one to the next
	channel                  int
	top, bottom, left, right int
	down, across             int // of the window, the padding included
}

// all calls f for the places of the area's elements, row by row.
func (a *area) all(f func(at int)) {
	for y := a.top; y < a.bottom; y++ {
		for x := a.left; x < a.right; x++ {
			f(y*a.ld + x*a.step + a.channel)
		}
	}
}

// greatest is the place of the first greatest element; NaN is the greatest.
func (a *area) greatest(x []float32) int {
	at := a.top*a.ld + a.left*a.step + a.channel
	most := x[at]
	a.all(func(i int) {
		if v := x[i]; v > most || v != v {
			most, at = v, i
		}
	})
	return at
}

// run shares the planes out to threads: f computes a plane of to, cleared
// before unless it is added to, from those of a and b (b may be none).
func (p *Pool) run(w *device.Workers, sizes [3]int, to, a, b numbers, accumulate bool, f func(to, a, b []float32)) {
	w.For(p.Planes, rowsPerChunk(p.H*p.W*p.Channels), func(lo, hi int) {
		room := loans{w: w}
		defer room.release()
		out, winA, winB := room.result(to, sizes[0], false), room.window(a, sizes[1]), room.window(b, sizes[2])
		for plane := lo; plane < hi; plane++ {
			at := plane * sizes[0]
			dst := out.room(at, sizes[0])
			if !accumulate {
				clear(dst)
			} else if out.half() {
				out.read(dst, at, 1)
			}
			f(dst, winA.load(plane*sizes[1], sizes[1]), winB.load(plane*sizes[2], sizes[2]))
			out.store(at, dst)
		}
	})
}

// planes are the sizes of planes of X and of Y.
func (p *Pool) planes() (x, y int) {
	channels := max(1, p.Channels)
	return p.H * p.W * channels, p.OH * p.OW * channels
}

var (
	maxPoolKernel     = &device.Kernel{Name: "max_pool", Host: maxPoolHost, CUDA: cudaPool("max_pool", false)}
	maxPoolGradKernel = &device.Kernel{Name: "max_pool_grad", Host: maxPoolGradHost, CUDA: cudaMaxPoolGrad}
	avgPoolKernel     = &device.Kernel{Name: "avg_pool", Host: avgPoolHost, CUDA: cudaPool("avg_pool", false)}
	avgPoolGradKernel = &device.Kernel{Name: "avg_pool_grad", Host: avgPoolGradHost, CUDA: cudaPool("avg_pool_grad", true)}
)

// MaxPool sets Y to the greatest elements of the windows.
func MaxPool(s device.Stream, p Pool) {
	l := p.launch(maxPoolKernel, 1, p.X, p.Y)
	need("MaxPool", p.Planes, p.X, p.Y)
	operands(&l, 0, p.X, p.Y)
	queue(s, &l)
}

func maxPoolHost(l *device.Launch, w *device.Workers) {
	p := loadPool(l)
	nx, ny := p.planes()
	p.run(w, [3]int{ny, nx}, numbersOf(l, 1, p.Planes*ny), numbersOf(l, 0, p.Planes*nx), numbers{}, false, func(y, x, _ []float32) {
		p.each(func(i int, a *area) { y[i] = x[a.greatest(x)] })
	})
}

// MaxPoolGrad sets dx to the gradient of X, or adds it with accumulate: each
// element of dy goes to the first greatest element of its window in X.
func MaxPoolGrad(s device.Stream, p Pool, dx, dy Array, accumulate bool) {
	l := p.launch(maxPoolGradKernel, 1+flag(accumulate), dx, dy)
	planeX, _ := p.planes()
	l.Bytes += p.X.bytes(p.Planes * planeX)
	need("MaxPoolGrad", p.Planes, p.X, dx, dy)
	operands(&l, 0, p.X, dx, dy)
	l.Int[11] = flag(accumulate)
	queue(s, &l)
}

func maxPoolGradHost(l *device.Launch, w *device.Workers) {
	p := loadPool(l)
	nx, ny := p.planes()
	x, dx, dy := numbersOf(l, 0, p.Planes*nx), numbersOf(l, 1, p.Planes*nx), numbersOf(l, 2, p.Planes*ny)
	p.run(w, [3]int{nx, nx, ny}, dx, x, dy, l.Int[11] != 0, func(dx, x, dy []float32) {
		p.each(func(i int, a *area) { dx[a.greatest(x)] += dy[i] })
	})
}

// AvgPool sets Y to the means of the windows, where padding counts as zeros.
func AvgPool(s device.Stream, p Pool) {
	l := p.launch(avgPoolKernel, 1, p.X, p.Y)
	need("AvgPool", p.Planes, p.X, p.Y)
	operands(&l, 0, p.X, p.Y)
	queue(s, &l)
}

func avgPoolHost(l *device.Launch, w *device.Workers) {
	p := loadPool(l)
	nx, ny := p.planes()
	p.run(w, [3]int{ny, nx}, numbersOf(l, 1, p.Planes*ny), numbersOf(l, 0, p.Planes*nx), numbers{}, false, func(y, x, _ []float32) {
		p.each(func(i int, a *area) {
			var sum float32
			a.all(func(at int) { sum += x[at] })
			y[i] = sum / float32(a.down*a.across)
		})
	})
}

// AvgPoolGrad sets dx to the gradient of X, or adds it with accumulate.
func AvgPoolGrad(s device.Stream, p Pool, dx, dy Array, accumulate bool) {
	l := p.launch(avgPoolGradKernel, 1+flag(accumulate), dx, dy)
	need("AvgPoolGrad", p.Planes, dx, dy)
	operands(&l, 0, dx, dy)
	l.Int[11] = flag(accumulate)
	queue(s, &l)
}

func avgPoolGradHost(l *device.Launch, w *device.Workers) {
	p := loadPool(l)
	nx, ny := p.planes()
	p.run(w, [3]int{nx, ny}, numbersOf(l, 0, p.Planes*nx), numbersOf(l, 1, p.Planes*ny), numbers{}, l.Int[11] != 0, func(dx, dy, _ []float32) {
		p.each(func(i int, a *area) {
			g := dy[i] / float32(a.down*a.across)
			a.all(func(at int) { dx[at] += g })
		})
	})
}
