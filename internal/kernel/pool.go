package kernel

import (
	"fmt"

	"github.com/headroom-go/headroom/device"
)

// Pool describes windows over planes of H×W elements: X is [Planes, H, W] and
// Y [Planes, OH, OW], dense. Window o of a side begins at o·Stride − Pad. With
// Kernel {0, 0} the windows share the plane out evenly instead: window o of O
// goes from ⌊o·H/O⌋ to ⌈(o+1)·H/O⌉.
type Pool struct {
	Planes, H, W, OH, OW int
	Kernel, Stride, Pad  [2]int
	X, Y                 device.Ptr
}

func (p *Pool) check(op string) {
	bad := p.Planes < 0 || p.H < 1 || p.W < 1 || p.OH < 1 || p.OW < 1
	for i, size := range [2]int{p.H, p.W} {
		k := p.Kernel[i]
		bad = bad || k < 0 || k > 0 && (p.Stride[i] < 1 || p.Pad[i] < 0 || 2*p.Pad[i] > k || [2]int{p.OH, p.OW}[i] > Windows(size, k, p.Stride[i], p.Pad[i], 1))
	}
	if bad {
		panic(fmt.Sprintf("kernel.%s: %d planes of %d×%d to %d×%d, kernel %v, stride %v, padding %v",
			op, p.Planes, p.H, p.W, p.OH, p.OW, p.Kernel, p.Stride, p.Pad))
	}
}

// launch describes the launch of a kernel that passes so often over X and Y.
func (p *Pool) launch(k *device.Kernel, passX, passY int) device.Launch {
	p.check(k.Name)
	x, y := p.Planes*p.H*p.W, p.Planes*p.OH*p.OW
	l := device.Launch{Kernel: k, Bytes: bytesOf(passX*x + passY*y), Flops: uint64(x)}
	l.Int = [device.MaxInts]int{p.Planes, p.H, p.W, p.OH, p.OW, p.Kernel[0], p.Kernel[1], p.Stride[0], p.Stride[1], p.Pad[0], p.Pad[1]}
	return l
}

func loadPool(l *device.Launch) *Pool {
	n := &l.Int
	return &Pool{Planes: n[0], H: n[1], W: n[2], OH: n[3], OW: n[4],
		Kernel: [2]int{n[5], n[6]}, Stride: [2]int{n[7], n[8]}, Pad: [2]int{n[9], n[10]}}
}

// window is the part of window o that lies inside of a side, and the elements
// that it counts for, those of the padding included.
func window(o, windows, size, kernel, stride, pad int) (lo, hi, count int) {
	if kernel == 0 {
		lo, hi = o*size/windows, ceilDiv((o+1)*size, windows)
		return lo, hi, hi - lo
	}
	lo = o*stride - pad
	hi = lo + kernel
	return max(lo, 0), min(hi, size), min(hi, size+pad) - lo
}

// each calls f for the windows of planes lo … hi−1: for number i of Y, with
// what the window covers of x, the plane.
func (p *Pool) each(lo, hi int, f func(i int, w *area)) {
	w := area{ld: p.W}
	for plane := lo; plane < hi; plane++ {
		w.base = plane * p.H * p.W
		for oy := range p.OH {
			w.top, w.bottom, w.down = window(oy, p.OH, p.H, p.Kernel[0], p.Stride[0], p.Pad[0])
			for ox := range p.OW {
				w.left, w.right, w.across = window(ox, p.OW, p.W, p.Kernel[1], p.Stride[1], p.Pad[1])
				f((plane*p.OH+oy)*p.OW+ox, &w)
			}
		}
	}
}

// area is what a window covers of a plane.
type area struct {
	base, ld                 int // of the plane
	top, bottom, left, right int
	down, across             int // of the window, the padding included
}

// row is row y of the area.
func (a *area) row(x []float32, y int) []float32 {
	return x[a.base+y*a.ld+a.left : a.base+y*a.ld+a.right]
}

// greatest is the place of the first greatest element; NaN is the greatest.
func (a *area) greatest(x []float32) int {
	at := a.base + a.top*a.ld + a.left
	most := x[at]
	for y := a.top; y < a.bottom; y++ {
		for i, v := range a.row(x, y) {
			if v > most || v != v {
				most, at = v, a.base+y*a.ld+a.left+i
			}
		}
	}
	return at
}

// run shares the planes out to threads.
func (p *Pool) run(w *device.Workers, f func(i int, w *area)) {
	w.For(p.Planes, rowsPerChunk(p.H*p.W), func(lo, hi int) { p.each(lo, hi, f) })
}

var (
	maxPoolKernel     = &device.Kernel{Name: "max_pool", Host: maxPoolHost}
	maxPoolGradKernel = &device.Kernel{Name: "max_pool_grad", Host: maxPoolGradHost}
	avgPoolKernel     = &device.Kernel{Name: "avg_pool", Host: avgPoolHost}
	avgPoolGradKernel = &device.Kernel{Name: "avg_pool_grad", Host: avgPoolGradHost}
)

// MaxPool sets Y to the greatest elements of the windows.
func MaxPool(s device.Stream, p Pool) {
	l := p.launch(maxPoolKernel, 1, 1)
	need("MaxPool", p.Planes, p.X, p.Y)
	l.Ptr[0], l.Ptr[1] = p.X, p.Y
	queue(s, &l)
}

func maxPoolHost(l *device.Launch, w *device.Workers) {
	p := loadPool(l)
	x, y := device.Float32s(l.Ptr[0], p.Planes*p.H*p.W), device.Float32s(l.Ptr[1], p.Planes*p.OH*p.OW)
	p.run(w, func(i int, a *area) { y[i] = x[a.greatest(x)] })
}

// MaxPoolGrad sets dx to the gradient of X, or adds it with accumulate: each
// element of dy goes to the first greatest element of its window in X.
func MaxPoolGrad(s device.Stream, p Pool, dx, dy device.Ptr, accumulate bool) {
	l := p.launch(maxPoolGradKernel, 2+flag(accumulate), 1)
	need("MaxPoolGrad", p.Planes, p.X, dx, dy)
	l.Ptr[0], l.Ptr[1], l.Ptr[2] = p.X, dx, dy
	l.Int[11] = flag(accumulate)
	queue(s, &l)
}

func maxPoolGradHost(l *device.Launch, w *device.Workers) {
	p := loadPool(l)
	n := p.Planes * p.H * p.W
	x, dx, dy := device.Float32s(l.Ptr[0], n), device.Float32s(l.Ptr[1], n), device.Float32s(l.Ptr[2], p.Planes*p.OH*p.OW)
	if l.Int[11] == 0 {
		w.For(n, chunk, func(lo, hi int) { clear(dx[lo:hi]) })
	}
	p.run(w, func(i int, a *area) { dx[a.greatest(x)] += dy[i] })
}

// AvgPool sets Y to the means of the windows, where padding counts as zeros.
func AvgPool(s device.Stream, p Pool) {
	l := p.launch(avgPoolKernel, 1, 1)
	need("AvgPool", p.Planes, p.X, p.Y)
	l.Ptr[0], l.Ptr[1] = p.X, p.Y
	queue(s, &l)
}

func avgPoolHost(l *device.Launch, w *device.Workers) {
	p := loadPool(l)
	x, y := device.Float32s(l.Ptr[0], p.Planes*p.H*p.W), device.Float32s(l.Ptr[1], p.Planes*p.OH*p.OW)
	p.run(w, func(i int, a *area) {
		var sum float32
		for row := a.top; row < a.bottom; row++ {
			for _, v := range a.row(x, row) {
				sum += v
			}
		}
		y[i] = sum / float32(a.down*a.across)
	})
}

// AvgPoolGrad sets dx to the gradient of X, or adds it with accumulate.
func AvgPoolGrad(s device.Stream, p Pool, dx, dy device.Ptr, accumulate bool) {
	l := p.launch(avgPoolGradKernel, 1+flag(accumulate), 1)
	need("AvgPoolGrad", p.Planes, dx, dy)
	l.Ptr[0], l.Ptr[1] = dx, dy
	l.Int[11] = flag(accumulate)
	queue(s, &l)
}

func avgPoolGradHost(l *device.Launch, w *device.Workers) {
	p := loadPool(l)
	n := p.Planes * p.H * p.W
	dx, dy := device.Float32s(l.Ptr[0], n), device.Float32s(l.Ptr[1], p.Planes*p.OH*p.OW)
	if l.Int[11] == 0 {
		w.For(n, chunk, func(lo, hi int) { clear(dx[lo:hi]) })
	}
	p.run(w, func(i int, a *area) {
		g := dy[i] / float32(a.down*a.across)
		for row := a.top; row < a.bottom; row++ {
			for j := range a.row(dx, row) {
				a.row(dx, row)[j] += g
			}
		}
	})
}
