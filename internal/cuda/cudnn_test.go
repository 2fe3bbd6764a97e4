package cuda

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"
)

// openFakeDNN gives cuDNN on a fake library that must have been used well at
// the test's end.
func openFakeDNN(t *testing.T, f *fakeDNN) *DNN {
	c, _ := fakeContext(t)
	d, err := FakeDNN(c, f.call)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil || len(f.broken) > 0 || len(f.objects) > 0 {
			t.Errorf("closing: %v; misuse %q; %d descriptors are left", err, f.broken, len(f.objects))
		}
	})
	return d
}

// floats is memory of float32 for tests.
type floats []float32

func (v floats) ptr() Ptr { return Ptr(uintptr(unsafe.Pointer(&v[0]))) }

// room gives memory that doesn't move.
//
//go:noinline
func room(n int) floats { return make(floats, n) }

func normals(r *rand.Rand, n int) floats {
	v := room(n)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	return v
}

func (v floats) near(t *testing.T, what string, want []float64) {
	t.Helper()
	for i, w := range want {
		if !(math.Abs(float64(v[i])-w) <= 1e-5*(1+math.Abs(w))) {
			t.Fatalf("%s: element %d is %v, want %v", what, i, v[i], w)
		}
	}
}

// TestAttentionGraphs runs the graphs on a library that does what they say, and
// compares with attention by its definition. Elements are float32 here, since
// the graphs are the same for all types.
func TestAttentionGraphs(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, a := range []Attention{
		{Batch: 2, Heads: 2, T: 3, S: 4, D: 5, Scale: 0.7},
		{Batch: 1, Heads: 2, T: 4, S: 4, D: 3, Scale: 0.5, Causal: true},
		{Batch: 2, Heads: 1, T: 3, S: 5, D: 2, Scale: 0.5, Masked: true},
		{Batch: 2, Heads: 2, T: 4, S: 4, D: 3, Scale: 1, Causal: true, Masked: true},
	} {
		t.Run(fmt.Sprintf("%+v", a), func(t *testing.T) { checkAttentionGraphs(t, r, a) })
	}
}

func checkAttentionGraphs(t *testing.T, r *rand.Rand, a Attention) {
	row := a.Heads * (a.D + 1) // heads side by side, with gaps
	a.Q, a.O = [3]int{a.T * row, a.D + 1, row}, [3]int{a.T * row, a.D + 1, row}
	a.K, a.V = [3]int{a.S * row, a.D + 1, row}, [3]int{a.S * row, a.D + 1, row}
	a.Type = DNNFloat32
	queries, keys, each := a.Batch*a.T*row, a.Batch*a.S*row, a.Batch*a.Heads*a.T
	q, k, v, do := normals(r, queries), normals(r, keys), normals(r, keys), normals(r, queries)
	o, lse, delta := room(queries), room(each), room(each)
	dq, dk, dv := room(queries), room(keys), room(keys)
	forward, grad := []Ptr{q.ptr(), k.ptr(), v.ptr(), o.ptr(), lse.ptr()},
		[]Ptr{q.ptr(), k.ptr(), v.ptr(), o.ptr(), lse.ptr(), do.ptr(), dq.ptr(), dk.ptr(), dv.ptr(), delta.ptr()}
	bias := room(a.Batch * a.S)
	if a.Masked {
		bias = normals(r, len(bias))
		forward, grad = append(forward, bias.ptr()), append(grad, bias.ptr())
	}
	d := openFakeDNN(t, newFakeDNN(fakeEngine{notes: []int32{noteTensorCore}}))
	run(t, d.PlanAttention, &a, forward)
	run(t, d.PlanAttentionGrad, &a, grad)
	want := attentionByDefinition(&a, q, k, v, do, bias)
	for i, x := range []struct {
		name string
		got  floats
	}{{"O", o}, {"LSE", lse}, {"dQ", dq}, {"dK", dk}, {"dV", dv}, {"delta", delta}} {
		x.got.near(t, x.name, want[i])
	}
}

func run[T any](t *testing.T, plan func(*T, int) (*DNNPlan, error), shape *T, operands []Ptr) {
	t.Helper()
	p, err := plan(shape, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Run(1, 0, operands...), p.Close()); err != nil {
		t.Fatal(err)
	}
}

// attentionByDefinition gives O, LSE, dQ, dK, dV and Σ dO·O.
func attentionByDefinition(a *Attention, q, k, v, do, bias floats) (r [6][]float64) {
	for i, n := range []int{len(q), a.Batch * a.Heads * a.T, len(q), len(k), len(k), a.Batch * a.Heads * a.T} {
		r[i] = make([]float64, n)
	}
	for head := range a.Batch * a.Heads {
		b, h := head/a.Heads, head%a.Heads
		at := func(s [3]int, row, d int) int { return b*s[0] + h*s[1] + row*s[2] + d }
		for t := range a.T {
			p, sum, delta := make([]float64, a.S), 0.0, 0.0
			for s := range p {
				if a.Causal && s > t {
					continue
				}
				score := float64(bias[b*a.S+s])
				for d := range a.D {
					score += float64(a.Scale) * float64(q[at(a.Q, t, d)]) * float64(k[at(a.K, s, d)])
				}
				p[s] = math.Exp(score)
				sum += p[s]
			}
			for s := range p {
				p[s] /= sum
				for d := range a.D {
					r[0][at(a.O, t, d)] += p[s] * float64(v[at(a.V, s, d)])
					delta += p[s] * float64(v[at(a.V, s, d)]) * float64(do[at(a.O, t, d)])
				}
			}
			r[1][head*a.T+t], r[5][head*a.T+t] = math.Log(sum), delta
			for s := range p {
				dp := 0.0
				for d := range a.D {
					dp += float64(do[at(a.O, t, d)]) * float64(v[at(a.V, s, d)])
					r[4][at(a.V, s, d)] += p[s] * float64(do[at(a.O, t, d)])
				}
				ds := p[s] * (dp - delta) * float64(a.Scale)
				for d := range a.D {
					r[2][at(a.Q, t, d)] += ds * float64(k[at(a.K, s, d)])
					r[3][at(a.K, s, d)] += ds * float64(q[at(a.Q, t, d)])
				}
			}
		}
	}
	return r
}

// small is a convolution with two groups.
func small(part ConvolutionPart) *Convolution {
	c := &Convolution{Part: part, SizeX: [4]int{2, 4, 5, 6}, SizeW: [4]int{6, 2, 3, 2}, SizeY: [4]int{2, 6, 3, 5},
		Stride: [2]int{2, 1}, Pad: [2]int{1, 0}, Dilation: [2]int{1, 1}, Align: 4}
	for i, size := range [][4]int{c.SizeX, c.SizeW, c.SizeY} {
		copy([]*[4]int{&c.StridesX, &c.StridesW, &c.StridesY}[i][:], denseStrides(size[:]))
	}
	return c
}

// TestConvolutionGraphs: <dY, conv(X, W)> is the same as <X, dX> and <W, dW>,
// and the forward convolution is right at an element.
func TestConvolutionGraphs(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	d := openFakeDNN(t, newFakeDNN(fakeEngine{}))
	x, w, dy, bias := normals(r, 240), normals(r, 72), normals(r, 180), normals(r, 6)
	y, dx, dw := room(180), room(240), room(72)
	run(t, d.PlanConvolution, small(ConvolutionY), []Ptr{x.ptr(), w.ptr(), y.ptr()})
	run(t, d.PlanConvolution, small(ConvolutionDX), []Ptr{dx.ptr(), w.ptr(), dy.ptr()})
	run(t, d.PlanConvolution, small(ConvolutionDW), []Ptr{x.ptr(), dw.ptr(), dy.ptr()})
	want := dot(dy, y)
	for name, got := range map[string]float64{"dX": dot(x, dx), "dW": dot(w, dw)} {
		if math.Abs(got-want) > 1e-4 {
			t.Errorf("with %s: %v, want %v", name, got, want)
		}
	}
	sum := 0.0 // of Y[1, 4, 2, 3], of the second group: X[1, 2…3, 3…5, 3…4], of which row 5 is padding
	for tap := range 2 * 3 * 2 {
		c, ky, kx := tap/6, tap/2%3, tap%2
		if row := 3 + ky; row < 5 {
			sum += float64(x[((1*4+2+c)*5+row)*6+3+kx]) * float64(w[4*12+tap])
		}
	}
	at := ((1*6+4)*3+2)*5 + 3
	floats{y[at]}.near(t, "Y", []float64{sum})

	biased, sums := small(ConvolutionY), small(ConvolutionDW)
	biased.Bias, sums.Accumulate = true, true
	run(t, d.PlanConvolution, biased, []Ptr{x.ptr(), w.ptr(), y.ptr(), bias.ptr()})
	floats{y[at]}.near(t, "Y with a bias", []float64{sum + float64(bias[4])})
	before := float64(dw[7])
	run(t, d.PlanConvolution, sums, []Ptr{x.ptr(), dw.ptr(), dy.ptr()})
	floats{dw[7]}.near(t, "accumulated dW", []float64{2 * before})
}

func dot(a, b floats) (sum float64) {
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

// TestChoice: the first engine is taken that is exact, that works, and that
// needs no more workspace than there is.
func TestChoice(t *testing.T) {
	for _, test := range []struct {
		engines []fakeEngine
		kind    int
		want    int // the engine's number, or
		need    int // the least workspace that would do
	}{
		{[]fakeEngine{{}, {}}, DNNFloat32, 1, 0},
		{[]fakeEngine{{notes: []int32{noteTensorCore}}, {}}, DNNFloat32, 2, 0},
		{[]fakeEngine{{notes: []int32{noteTensorCore}}, {}}, DNNBFloat16, 1, 0},
		{[]fakeEngine{{}, {notes: []int32{noteTensorCore}}}, DNNBFloat16, 2, 0},
		{[]fakeEngine{{notes: []int32{noteTensorCore, 4}}, {notes: []int32{5}}, {}}, DNNBFloat16, 3, 0},
		{[]fakeEngine{{cannot: true}, {workspace: 1001}, {workspace: 1000}}, DNNFloat32, 3, 0},
		{[]fakeEngine{{cannot: true}, {workspace: 3000}, {workspace: 2000}}, DNNFloat32, 0, 2000},
		{[]fakeEngine{{notes: []int32{noteTensorCore}, workspace: 3000}, {}}, DNNBFloat16, 0, 3000},
		{[]fakeEngine{{cannot: true}}, DNNBFloat16, 0, 0},
	} {
		f := newFakeDNN(test.engines...)
		d := openFakeDNN(t, f)
		c := small(ConvolutionY)
		c.TypeX, c.TypeW, c.TypeY = test.kind, test.kind, test.kind
		plan, err := d.PlanConvolution(c, 1000)
		if test.want == 0 {
			var e *NoEngineError
			if !errors.As(err, &e) || e.Need != test.need {
				t.Errorf("%+v: error %v, want one with %d bytes", test.engines, err, test.need)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", test.engines, err)
			continue
		}
		x := room(240)
		if err := errors.Join(plan.Run(1, 4096, x.ptr(), x.ptr(), x.ptr()), plan.Close()); err != nil || f.ran != test.want {
			t.Errorf("%+v: engine %d runs, want %d; %v", test.engines, f.ran, test.want, err)
		}
		if plan.Workspace() > 0 && f.workspace != 4096 {
			t.Errorf("%+v: workspace at %d", test.engines, f.workspace)
		}
	}
}

// TestFallbackEngines: where none is recommended, the others are tried.
func TestFallbackEngines(t *testing.T) {
	f := newFakeDNN()
	f.engines[1] = []fakeEngine{{number: 9}}
	d := openFakeDNN(t, f)
	x := room(240)
	run(t, d.PlanConvolution, small(ConvolutionY), []Ptr{x.ptr(), x.ptr(), x.ptr()})
	if f.ran != 9 {
		t.Errorf("engine %d ran", f.ran)
	}
}

// TestDNNFailures lets every call fail once: no descriptor stays, and the error
// says which call and why, unless another engine does.
func TestDNNFailures(t *testing.T) {
	c, _ := fakeContext(t)
	a := &Attention{Batch: 1, Heads: 1, T: 2, S: 2, D: 2, Causal: true, Masked: true, Q: [3]int{4, 4, 2}, K: [3]int{4, 4, 2}, V: [3]int{4, 4, 2}, O: [3]int{4, 4, 2}}
	for nth, failed := 1, true; failed; nth++ {
		f := newFakeDNN(fakeEngine{notes: []int32{noteTensorCore}}, fakeEngine{notes: []int32{noteTensorCore}})
		f.fail = nth
		err := useDNN(c, f, a)
		failed = f.failed != ""
		if len(f.broken) > 0 || len(f.objects) > 0 && f.failed != "cudnnBackendDestroyDescriptor" {
			t.Fatalf("call %d, of %s, fails: misuse %q, %d descriptors are left", nth, f.failed, f.broken, len(f.objects))
		}
		if err != nil && !failed {
			t.Fatal(err)
		}
		var e *NoEngineError
		if err != nil && !errors.As(err, &e) && (!strings.Contains(err.Error(), f.failed) || !strings.Contains(err.Error(), "the reason")) {
			t.Fatalf("call %d, of %s, fails: the error is %v", nth, f.failed, err)
		}
	}
}

func useDNN(c *Context, f *fakeDNN, a *Attention) error {
	d, err := FakeDNN(c, f.call)
	if err != nil {
		return err
	}
	plan, err := d.PlanAttentionGrad(a, 0)
	if err == nil {
		x := room(16)
		p := x.ptr()
		err = errors.Join(plan.Run(1, 0, p, p, p, p, p, p, p, p, p, p, p), plan.Close())
	}
	return errors.Join(err, d.Close())
}
