package kernel

import "github.com/headroom-go/headroom/device"

// How host kernels read and write element types.
//
// Vector functions and tiles know float32 alone. A kernel sees an operand of
// any type (numbers) through a window: load gives some of its elements as
// float32. What it computes goes through a result: room gives the place for new
// elements, store puts them where they belong, or adds them there. Of a float32
// operand both show the memory itself, and store has nothing to do; of a 16-bit
// one, and of sums, they hold a piece or a row at a time in scratch memory.

// numbers is a floating-point operand on the host.
type numbers struct {
	t device.DType
	f []float32 // of Float32
	h []uint16  // the bits of a 16-bit type
}

// numbers is the array's first n elements; none where there is no operand. Those
// of int32, which kernels only move, pass for float32 with the same bits.
func (a Array) numbers(n int) numbers {
	switch {
	case !a.given():
		return numbers{}
	case a.Type == device.Float32 || a.Type == device.Int32:
		return numbers{f: device.Float32s(a.Ptr, n)}
	}
	return numbers{t: a.Type, h: device.Uint16s(a.Ptr, n)}
}

// numbersOf is the first n elements of operand i of a launch.
func numbersOf(l *device.Launch, i, n int) numbers { return operandOf(l, i).numbers(n) }

// floats is x as an operand.
func floats(x []float32) numbers { return numbers{f: x} }

// half says whether the type is one of 16 bits.
func (a *numbers) half() bool { return a.t != device.Float32 }

// given says whether there is an operand.
func (a *numbers) given() bool { return a.f != nil || a.h != nil }

// from is the operand without its first i elements.
func (a numbers) from(i int) numbers {
	if a.half() {
		a.h = a.h[i:]
	} else {
		a.f = a.f[i:]
	}
	return a
}

// at is element i.
func (a *numbers) at(i int) float32 {
	if !a.half() {
		return a.f[i]
	}
	var x [1]float32
	widen(a.t, x[:], a.h[i:i+1])
	return x[0]
}

// read sets dst to every step-th element from i on.
func (a *numbers) read(dst []float32, i, step int) {
	switch {
	case step == 0 && len(dst) > 0:
		vecFill(dst, a.at(i))
	case !a.half():
		gather(dst, a.f, i, step)
	case step == 1:
		widen(a.t, dst, a.h[i:])
	default:
		var bits [128]uint16
		for len(dst) > 0 {
			some := bits[:min(len(dst), len(bits))]
			for j := range some {
				some[j] = a.h[i+j*step]
			}
			widen(a.t, dst[:len(some)], some)
			dst, i = dst[len(some):], i+len(some)*step
		}
	}
}

// write puts src, or adds it, to every step-th element from i on.
func (a *numbers) write(i, step int, src []float32, accumulate bool) {
	if !a.half() {
		putStrided(a.f[i:], src, step, accumulate)
		return
	}
	var sum [128]float32
	var bits [128]uint16
	for len(src) > 0 {
		some := src[:min(len(src), len(sum))]
		if accumulate {
			old := sum[:len(some)]
			a.read(old, i, step)
			vecAdd(old, old, some)
			src, some = src[len(some):], old
		} else {
			src = src[len(some):]
		}
		if step == 1 {
			narrow(a.t, a.h[i:i+len(some)], some)
		} else {
			narrow(a.t, bits[:len(some)], some)
			for j, b := range bits[:len(some)] {
				a.h[i+j*step] = b
			}
		}
		i += len(some) * step
	}
}

// clear sets n elements from i on to 0.
func (a *numbers) clear(i, n int) {
	if a.half() {
		clear(a.h[i : i+n])
	} else {
		clear(a.f[i : i+n])
	}
}

// dense gives n elements from i on, every step-th: themselves where they are
// neighbours of float32, otherwise buf with them.
func (a *numbers) dense(buf []float32, i, step, n int) []float32 {
	if step == 1 && !a.half() {
		return a.f[i : i+n]
	}
	a.read(buf[:n], i, step)
	return buf[:n]
}

// window shows elements of an operand as float32, up to so many at a time.
type window struct {
	numbers
	buf []float32
}

// window gives one for n elements.
func (l *loans) window(a numbers, n int) window {
	w := window{numbers: a}
	if a.half() {
		w.buf = l.floats(n)
	}
	return w
}

// load gives n elements from i on; nil where there is no operand.
func (w *window) load(i, n int) []float32 {
	if !w.given() {
		return nil
	}
	return w.dense(w.buf, i, 1, n)
}

// result takes elements that are computed, up to so many at a time.
type result struct {
	numbers
	accumulate bool
	buf        []float32 // room for what is rounded or added; nil: the elements themselves
}

// result gives one for n elements.
func (l *loans) result(y numbers, n int, accumulate bool) result {
	r := result{numbers: y, accumulate: accumulate}
	if y.given() && (accumulate || y.half()) {
		r.buf = l.floats(n)
	}
	return r
}

// room gives the place of n elements from i on, content undefined; nil where
// there is no operand.
func (r *result) room(i, n int) []float32 {
	switch {
	case !r.given():
		return nil
	case r.buf != nil:
		return r.buf[:n]
	}
	return r.f[i : i+n]
}

// store puts what room gave, with its content, where it belongs.
func (r *result) store(i int, x []float32) {
	if r.buf != nil {
		r.write(i, 1, x, r.accumulate)
	}
}

// vector gives operand i of a launch, of n elements, as float32, or zeros where
// there is none. free gives the memory back.
func vector(w *device.Workers, l *device.Launch, i, n int) (data []float32, free func()) {
	a := numbersOf(l, i, n)
	if a.given() && !a.half() {
		return a.f, func() {}
	}
	data = w.Scratch(n)
	if a.half() {
		a.read(data, 0, 1)
	} else {
		clear(data)
	}
	return data, func() { w.Release(data) }
}

// elementwise runs f on pieces of operands of n elements, shared out to
// threads: f sets dst from a and b (nil where there is no such operand) from
// element first on, or what it sets is added to y.
func elementwise(w *device.Workers, n int, y, a, b numbers, accumulate bool, f func(dst, a, b []float32, first int)) {
	w.For(n, chunk, func(lo, hi int) {
		room := loans{w: w}
		defer room.release()
		to, winA, winB := room.result(y, pieceLen, accumulate), room.window(a, pieceLen), room.window(b, pieceLen)
		for ; lo < hi; lo += pieceLen {
			size := min(pieceLen, hi-lo)
			dst := to.room(lo, size)
			f(dst, winA.load(lo, size), winB.load(lo, size), lo)
			to.store(lo, dst)
		}
	})
}

// eachRow runs f on the rows of operands of rows × cols elements, shared out to
// threads: f sets row r of y from those of a and b (nil where there is no such
// operand; y may lack, too), or what it sets is added to y.
func eachRow(w *device.Workers, rows, cols int, y, a, b numbers, accumulate bool, f func(r int, y, a, b []float32)) {
	w.For(rows, rowsPerChunk(cols), func(lo, hi int) {
		room := loans{w: w}
		defer room.release()
		to, winA, winB := room.result(y, cols, accumulate), room.window(a, cols), room.window(b, cols)
		for r := lo; r < hi; r++ {
			at := r * cols
			dst := to.room(at, cols)
			f(r, dst, winA.load(at, cols), winB.load(at, cols))
			to.store(at, dst)
		}
	})
}
