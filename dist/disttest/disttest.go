// Package disttest is the conformance suite of groups.
package disttest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
)

// Engine makes a job of so many ranks, each for a goroutine of its own. Where
// ranks are processes it gives the group of this one alone, or none if it is not
// one of the ranks, and skips the test if there are too few.
type Engine func(t *testing.T, size int, o dist.Options) []dist.Group

// Run runs all tests on an engine with ranks on host devices, in the same order each
// time: where ranks are processes, all run the suite.
func Run(t *testing.T, e Engine) {
	run(t, job{make: e, open: onHost}, append(tests, hostTests...))
}

// RunPeers runs the tests that hold for dist.Peers, of as many ranks as there are GPUs.
// It calls made for each.
func RunPeers(t *testing.T, gpus int, made func(p *dist.Peers)) {
	run(t, job{make: func(t *testing.T, size int, o dist.Options) []dist.Group {
		if size > gpus {
			t.Skipf("%d GPUs; the next is for %d", gpus, size)
		}
		return dist.Local(size, o)
	}, open: func(t *testing.T, g dist.Group) *rank { return onGPU(t, g, made) }}, tests)
}

type test struct {
	name string
	f    func(*testing.T, job)
}

var tests = []test{
	{"collectives", testCollectives}, {"same bits", testSameBits}, {"halves", testHalves}, {"exchange", testExchange},
	{"abandon", testAbandon}, {"abandon early", testAbandonEarly}, {"mesh", testMesh}, {"misuse", testMisuse}, {"fail", testFail}, {"many", testMany},
}

// hostTests are for engines whose streams keep the job's error, and that bound how long
// a rank waits.
var hostTests = []test{{"order", testOrder}, {"absent", testAbsent}, {"late", testLate}}

func run(t *testing.T, j job, tests []test) {
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) { c.f(t, j) })
	}
}

// job makes the groups of a test, and opens what each rank has.
type job struct {
	make Engine
	open func(t *testing.T, g dist.Group) *rank
}

// rank is what a rank of a test has.
type rank struct {
	dist.Group
	t      *testing.T
	dev    device.Device
	stream device.Stream
	end    func() error // of the group, before that which it came from is closed
}

// spawn runs f as every rank of a job, and closes the groups if close is set.
func spawn(t *testing.T, j job, size int, o dist.Options, healthy bool, f func(r *rank)) {
	t.Helper()
	groups := j.make(t, size, o)
	var ended sync.WaitGroup
	for _, g := range groups {
		ended.Go(func() {
			r := j.open(t, g)
			f(r)
			err := errors.Join(r.stream.Close(), r.end())
			if healthy {
				err = errors.Join(err, g.Close())
			} else {
				g.Close()
				err = nil
			}
			if err = errors.Join(err, r.dev.Close()); err != nil && healthy {
				t.Errorf("rank %d: %v", g.Rank(), err)
			}
		})
	}
	ended.Wait()
}

func onHost(t *testing.T, g dist.Group) *rank {
	dev, err := device.OpenHost(device.HostOptions{Capacity: 32 << 20, Workers: 1})
	if err != nil {
		panic(err)
	}
	return newRank(t, g, dev, func() error { return nil })
}

func onGPU(t *testing.T, g dist.Group, made func(p *dist.Peers)) *rank {
	dev, err := device.Open(fmt.Sprintf("cuda:%d,64MiB", g.Rank()))
	if err != nil {
		panic(err)
	}
	p, err := dist.NewPeers(g, device.CUDAOf(dev))
	if err != nil {
		panic(err)
	}
	made(p)
	return newRank(t, p, dev, p.End)
}

func newRank(t *testing.T, g dist.Group, dev device.Device, end func() error) *rank {
	s, err := dev.NewStream()
	if err != nil {
		panic(err)
	}
	return &rank{g, t, dev, s, end}
}

// buf gives device memory for n elements.
func (r *rank) buf(d device.DType, n int) dist.Buf {
	p, err := r.dev.Alloc(uint64(max(1, n*d.Size())))
	if err != nil {
		panic(err)
	}
	return dist.Buf{Ptr: p, Len: n, Type: d}
}

func (r *rank) free(bufs ...dist.Buf) {
	for _, b := range bufs {
		if err := r.dev.Free(b.Ptr); err != nil {
			r.t.Error(err)
		}
	}
}

// sync waits for the stream.
func (r *rank) sync() {
	if err := r.stream.Sync(); err != nil {
		r.t.Errorf("rank %d: %v", r.Rank(), err)
	}
}

// set writes small whole numbers, exact in every type.
func (r *rank) set(b dist.Buf, value func(i int) int) {
	data := make([]byte, 0, b.Bytes())
	for i := range b.Len {
		v := value(i)
		switch b.Type {
		case device.Int32:
			data = binary.LittleEndian.AppendUint32(data, uint32(v))
		case device.Float32:
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(v)))
		case device.BFloat16:
			data = binary.LittleEndian.AppendUint16(data, uint16(math.Float32bits(float32(v))>>16))
		case device.Float16:
			data = binary.LittleEndian.AppendUint16(data, float16(v))
		}
	}
	r.stream.Upload(b.Ptr, data)
	r.sync()
}

// get waits for the stream and is the reverse of set; of a mean it gives the numbers
// rounded down.
func (r *rank) get(b dist.Buf) []int {
	data, values := make([]byte, b.Bytes()), make([]int, b.Len)
	r.stream.Download(data, b.Ptr)
	r.sync()
	for i := range values {
		at := data[i*b.Type.Size():]
		switch b.Type {
		case device.Int32:
			values[i] = int(int32(binary.LittleEndian.Uint32(at)))
		case device.Float32:
			values[i] = int(math.Floor(float64(math.Float32frombits(binary.LittleEndian.Uint32(at)))))
		case device.BFloat16:
			values[i] = int(math.Floor(float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(at)) << 16))))
		case device.Float16:
			values[i] = ofFloat16(binary.LittleEndian.Uint16(at))
		}
	}
	return values
}

// ofFloat16 is the reverse of float16.
func ofFloat16(h uint16) int {
	v := math.Ldexp(float64(h&0x3ff|0x400), int(h>>10&31)-25)
	if h&0x7fff == 0 {
		v = 0
	}
	if h&0x8000 != 0 {
		v = -v
	}
	return int(math.Floor(v))
}

// float16 is a whole number's bits.
func float16(v int) uint16 {
	if v == 0 {
		return 0
	}
	f, e := math.Frexp(math.Abs(float64(v))) // f in [½, 1)
	bits := uint16(e+14)<<10 | uint16(f*2048)&0x3ff
	if v < 0 {
		bits |= 0x8000
	}
	return bits
}

// value is element i of buffer k of a rank.
func value(rank, k, i int) int { return (rank*7+k*5+i*3)%16 - 4*(rank%2) }

var types = []device.DType{device.Float32, device.BFloat16, device.Float16, device.Int32}

// testCollectives compares every collective with what a loop over the ranks
// gives, for every type, for lengths from none to several chunks, cut at multiples of
// several units, in one call.
func testCollectives(t *testing.T, j job) {
	lengths := []int{1, 0, 63, 64, 65, 129, 5000, 9001}
	for _, size := range []int{1, 2, 3, 4} {
		spawn(t, j, size, dist.Options{}, true, func(r *rank) {
			for _, d := range types {
				var bufs, part []dist.Buf
				for i, n := range lengths {
					b := r.buf(d, n)
					b.Unit = []int{0, 1, 3}[i%3]
					bufs = append(bufs, b)
					part = append(part, r.buf(d, b.Part(size, r.Rank()).Len))
				}
				r.collectives(bufs, part)
				r.free(bufs...)
				r.free(part...)
			}
		})
	}
}

// collectives runs every one on buffers that all ranks have; part is of the sizes
// of this rank's parts.
func (r *rank) collectives(bufs, part []dist.Buf) {
	r.reductions(dist.Sum, bufs, part, func(a, b int) int { return a + b })
	r.reductions(dist.Max, bufs, part, func(a, b int) int { return max(a, b) })
	if bufs[0].Type.Float() {
		r.mean(bufs)
	}
	for root := range r.Size() {
		r.fill(bufs)
		r.Broadcast(r.stream, root, bufs...)
		r.sync()
		r.compare("broadcast", bufs, func(k, i int) int { return value(root, k, i) })
	}
	if err := r.Barrier(); err != nil {
		r.t.Error(err)
	}
}

// fill sets buffers to this rank's values.
func (r *rank) fill(bufs []dist.Buf) {
	r.sync()
	for k, b := range bufs {
		r.set(b, func(i int) int { return value(r.Rank(), k, i) })
	}
}

// reductions runs what op reduces at once and in two halves, these also in place.
func (r *rank) reductions(op dist.Op, bufs, part []dist.Buf, of func(a, b int) int) {
	want := func(k, i int) int {
		v := value(0, k, i)
		for p := 1; p < r.Size(); p++ {
			v = of(v, value(p, k, i))
		}
		return v
	}
	r.fill(bufs)
	r.AllReduce(r.stream, op, bufs...)
	r.sync()
	r.compare("all_reduce "+op.String(), bufs, want)
	r.fill(bufs)
	r.ReduceScatter(r.stream, op, part, bufs)
	r.sync()
	own := make([]dist.Buf, len(bufs))
	for k, b := range bufs {
		own[k] = b.Part(r.Size(), r.Rank())
		lo := int(own[k].Ptr-b.Ptr) / b.Type.Size()
		r.compare("reduce_scatter "+op.String(), part[k:k+1], func(_, i int) int { return want(k, lo+i) })
		r.set(b, func(int) int { return 3 })
	}
	r.AllGather(r.stream, bufs, part)
	r.sync()
	r.compare("all_gather", bufs, want)
	r.fill(bufs)
	r.ReduceScatter(r.stream, op, own, bufs)
	r.AllGather(r.stream, bufs, own)
	r.sync()
	r.compare("in place", bufs, want)
}

// mean reduces multiples of four to their mean.
func (r *rank) mean(bufs []dist.Buf) {
	size := r.Size()
	for k, b := range bufs {
		r.set(b, func(i int) int { return 4 * value(r.Rank()%2, k, i) })
	}
	r.AllReduce(r.stream, dist.Mean, bufs...)
	r.sync()
	r.compare("mean", bufs, func(k, i int) int {
		sum := 0
		for p := range size {
			sum += 4 * value(p%2, k, i)
		}
		return int(math.Floor(float64(sum) / float64(size)))
	})
}

func (r *rank) compare(what string, bufs []dist.Buf, want func(k, i int) int) {
	for k, b := range bufs {
		for i, got := range r.get(b) {
			if got != want(k, i) {
				r.t.Errorf("rank %d of %d: %s of %v: element %d of %d is %d, want %d", r.Rank(), r.Size(), what, b.Type, i, b.Len, got, want(k, i))
				return
			}
		}
	}
}

// testSameBits reduces numbers whose sum depends on the order, and finds on all
// ranks the one in the order of the ranks.
func testSameBits(t *testing.T, j job) {
	const size, n = 4, 10001
	numbers := func(rank int) []float32 {
		random, xs := rand.New(rand.NewPCG(uint64(rank), 5)), make([]float32, n)
		for i := range xs {
			xs[i] = float32(random.NormFloat64() * math.Exp2(float64(random.IntN(30))))
		}
		return xs
	}
	want := numbers(0)
	for p := 1; p < size; p++ {
		for i, x := range numbers(p) {
			want[i] += x
		}
	}
	spawn(t, j, size, dist.Options{}, true, func(r *rank) {
		b := r.buf(device.Float32, n)
		for range 3 {
			xs := numbers(r.Rank())
			r.stream.Upload(b.Ptr, device.BytesOf(xs))
			r.AllReduce(r.stream, dist.Sum, b)
			r.stream.Download(device.BytesOf(xs), b.Ptr)
			r.sync()
			for i, x := range xs {
				if math.Float32bits(x) != math.Float32bits(want[i]) {
					t.Errorf("rank %d: element %d is %v, want %v", r.Rank(), i, x, want[i])
					break
				}
			}
		}
		r.free(b)
	})
}

// testHalves adds numbers of 16 bits whose sum in 16 bits would lose the small
// ones: 256 + 1 + 1 is 258 in bfloat16, but 256 where each sum is rounded.
func testHalves(t *testing.T, j job) {
	spawn(t, j, 3, dist.Options{}, true, func(r *rank) {
		b := r.buf(device.BFloat16, 5)
		r.set(b, func(int) int { return []int{256, 1, 1}[r.Rank()] })
		r.AllReduce(r.stream, dist.Sum, b)
		r.sync()
		r.compare("sum", []dist.Buf{b}, func(int, int) int { return 258 })
		r.free(b)
	})
}

// testExchange sends around a ring, both ways at once, then from all to all.
func testExchange(t *testing.T, j job) {
	for _, size := range []int{1, 2, 3, 4} {
		spawn(t, j, size, dist.Options{}, true, func(r *rank) {
			const n = 3001
			a, b, c, d := r.buf(device.Int32, n), r.buf(device.BFloat16, 7), r.buf(device.Int32, n), r.buf(device.BFloat16, 7)
			r.set(a, func(i int) int { return value(r.Rank(), 0, i) })
			r.set(b, func(i int) int { return value(r.Rank(), 1, i) })
			up, down := (r.Rank()+1)%size, (r.Rank()+size-1)%size
			r.Exchange(r.stream, []dist.Message{{Rank: up, Buf: a}, {Rank: up, Buf: b}}, []dist.Message{{Rank: down, Buf: c}, {Rank: down, Buf: d}})
			r.sync()
			r.compare("from below", []dist.Buf{c, d}, func(k, i int) int { return value(down, k, i) })
			if size > 1 { // in turns
				if r.Rank() == 0 {
					dist.Send(r, r.stream, 1, a)
					dist.Receive(r, r.stream, 1, c)
					r.sync()
					r.compare("received", []dist.Buf{c}, func(_, i int) int { return value(1, 0, i) })
				}
				if r.Rank() == 1 {
					dist.Receive(r, r.stream, 0, c)
					dist.Send(r, r.stream, 0, a)
				}
				r.sync()
			}
			var send, receive []dist.Buf
			for p := range size { // rank i sends i+p+1 elements to p
				send, receive = append(send, r.buf(device.Float32, r.Rank()+p+1)), append(receive, r.buf(device.Float32, r.Rank()+p+1))
				r.set(send[p], func(i int) int { return 100*r.Rank() + 10*p + i })
			}
			dist.AllToAll(r, r.stream, receive, send)
			r.sync()
			r.compare("all to all", receive, func(p, i int) int { return 100*p + 10*r.Rank() + i })
			r.free(append(append(send, receive...), a, b, c, d)...)
		})
	}
}

// testOrder queues kernels and collectives without waiting: a kernel before a
// collective is over before its data leave, and one behind it sees the result.
func testOrder(t *testing.T, j job) {
	const size, n, rounds = 3, 2000, 5
	spawn(t, j, size, dist.Options{}, true, func(r *rank) {
		b := r.buf(device.Int32, n)
		step := func(slow bool, f func(x int32) int32) {
			k := &device.Kernel{Name: "step", Host: func(*device.Launch, *device.Workers) {
				if slow {
					time.Sleep(time.Millisecond)
				}
				xs := device.Int32s(b.Ptr, n)
				for i := range xs {
					xs[i] = f(xs[i])
				}
			}}
			r.stream.Launch(&device.Launch{Kernel: k})
		}
		step(r.Rank() == 1, func(int32) int32 { return int32(r.Rank()) })
		want := int32(0)
		for round := range rounds {
			r.AllReduce(r.stream, dist.Sum, b)
			step(round%size == r.Rank(), func(x int32) int32 { return x + int32(r.Rank()) })
			if round == 0 {
				want = 0 + 1 + 2
			} else {
				want = size*want + 0 + 1 + 2
			}
		}
		r.sync()
		if got := device.Int32s(b.Ptr, n)[n-1]; got != want+int32(r.Rank()) {
			t.Errorf("rank %d has %d, want %d", r.Rank(), got, want+int32(r.Rank()))
		}
		r.free(b)
	})
}

// testMesh sums along the axes of a mesh, on two streams at the same time.
func testMesh(t *testing.T, j job) {
	spawn(t, j, 4, dist.Options{}, true, func(r *rank) {
		m, err := dist.NewMesh(r, dist.Axis{Name: "data", Size: 2}, dist.Axis{Name: "tensor", Size: 2})
		if err != nil {
			t.Error(err)
			return
		}
		data, errData := m.Along("data")
		tensor, errTensor := m.Along("tensor")
		other, err := r.dev.NewStream()
		if err := errors.Join(errData, errTensor, err); err != nil {
			t.Error(err)
			return
		}
		if all, err := m.Along("data", "tensor"); err != nil || all != dist.Group(r) {
			t.Errorf("along all axes: %v, %v", all, err)
		}
		a, b := r.buf(device.Int32, 1000), r.buf(device.Int32, 1000)
		for _, x := range []dist.Buf{a, b} {
			r.set(x, func(int) int { return 1 << r.Rank() })
		}
		for range 20 {
			data.AllReduce(r.stream, dist.Max, a)
			tensor.AllReduce(other, dist.Max, b)
		}
		r.sync()
		if err := other.Close(); err != nil {
			t.Error(err)
		}
		high := map[string]int{"data": 4 << (r.Rank() % 2), "tensor": 2 << (r.Rank() &^ 1)}
		if got := r.get(a)[999]; got != high["data"] {
			t.Errorf("rank %d: greatest along data is %d, want %d", r.Rank(), got, high["data"])
		}
		if got := r.get(b)[999]; got != high["tensor"] {
			t.Errorf("rank %d: greatest along tensor is %d, want %d", r.Rank(), got, high["tensor"])
		}
		if g := tensor; g.Rank() != r.Rank()%2 || g.Size() != 2 {
			t.Errorf("rank %d is %d of %d along tensor", r.Rank(), g.Rank(), g.Size())
		}
		if _, err := dist.NewMesh(r, dist.Axis{Name: "data", Size: 3}); err == nil {
			t.Error("a mesh of 3 of 4 ranks was made")
		}
		if _, err := r.Sub("alien", (r.Rank()+1)%4); err == nil {
			t.Error("a group without the rank that asks was made")
		}
		r.free(a, b)
	})
}

// testMisuse lets ranks differ in what they call: all get an error that says
// how, and none waits.
func testMisuse(t *testing.T, j job) {
	for _, c := range []struct {
		name string
		f    func(r *rank, a, b dist.Buf)
	}{
		{"lengths", func(r *rank, a, b dist.Buf) { r.AllReduce(r.stream, dist.Sum, a.Range(0, 100+r.Rank()/2)) }},
		{"types", func(r *rank, a, b dist.Buf) {
			if r.Rank() == 1 {
				a.Type = device.Int32
			}
			r.AllReduce(r.stream, dist.Sum, a)
		}},
		{"operations", func(r *rank, a, b dist.Buf) { r.AllReduce(r.stream, dist.Op(r.Rank()%2), a) }},
		{"roots", func(r *rank, a, b dist.Buf) { r.Broadcast(r.stream, r.Rank()/2, a) }},
		{"buffers", func(r *rank, a, b dist.Buf) {
			bufs := []dist.Buf{a, b}
			r.AllReduce(r.stream, dist.Sum, bufs[r.Rank()/2:]...)
		}},
		{"kinds", func(r *rank, a, b dist.Buf) {
			if r.Rank() == 2 {
				r.AllGather(r.stream, []dist.Buf{a}, []dist.Buf{a.Part(3, 2)})
				return
			}
			r.AllReduce(r.stream, dist.Sum, a)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			spawn(t, j, 3, dist.Options{}, false, func(r *rank) {
				a, b := r.buf(device.Float32, 1000), r.buf(device.Float32, 1000)
				r.Barrier() // which the failure may end
				c.f(r, a, b)
				r.fails("collectives differ")
				r.free(a, b)
			})
		})
	}
}

// fails waits for the failure of the job, and looks for words in it.
func (r *rank) fails(words ...string) {
	err := r.stream.Sync()
	if device.CUDAOf(r.dev) != nil && err == nil { // it was through before another rank found what is wrong
		<-waitFor(func() bool { return r.Err() != nil })
		err = r.Err()
	}
	var failure *dist.Error
	if !errors.As(err, &failure) || r.Err() == nil {
		r.t.Errorf("rank %d: the stream's error is %v, the group's %v", r.Rank(), err, r.Err())
		return
	}
	for _, w := range words {
		if !strings.Contains(r.Err().Error(), w) {
			r.t.Errorf("rank %d: the error is %q, which does not say %q", r.Rank(), r.Err(), w)
		}
	}
}

// testFail lets one rank fail while others wait for it, also those of a group
// that it is not in: all are told its number and its words.
func testFail(t *testing.T, j job) {
	spawn(t, j, 4, dist.Options{}, false, func(r *rank) {
		b := r.buf(device.Float32, 10000)
		var pair dist.Group
		if r.Rank() < 2 {
			var err error
			if pair, err = r.Sub("pair", 0, 1); err != nil {
				t.Error(err)
				return
			}
		}
		r.Barrier() // which the failure may end
		if r.Rank() == 2 {
			r.Fail(errors.New("no more paper"))
		}
		if pair != nil {
			time.Sleep(time.Duration(r.Rank()) * 10 * time.Millisecond)
			for range 3 {
				pair.AllReduce(r.stream, dist.Sum, b)
			}
		}
		r.AllReduce(r.stream, dist.Sum, b)
		r.fails("rank 2: no more paper")
		if r.Barrier() == nil {
			t.Errorf("rank %d: a barrier after the failure gives no error", r.Rank())
		}
		r.free(b)
	})
}

// testAbandon lets each rank in turn abandon attempts at several places, while the
// others compute on, on two streams, and messages of which networks hold only a part
// are on their way: all are told who did, and in the next attempt sums are right.
func testAbandon(t *testing.T, j job) {
	const size, n, rounds = 3, 60_000, 4
	spawn(t, j, size, dist.Options{}, true, func(r *rank) {
		ring, err := r.Sub("reversed", 2, 1, 0)
		other, errStream := r.dev.NewStream()
		if err := errors.Join(err, errStream); err != nil {
			t.Error(err)
			return
		}
		a, b := r.buf(device.Float32, n), r.buf(device.Float32, n)
		reduce := func(op dist.Op) {
			r.AllReduce(r.stream, op, a)
			ring.AllReduce(other, op, b)
		}
		check := func(err error) {
			if err != nil {
				t.Errorf("rank %d: %v", r.Rank(), err)
			}
		}
		abandoned := func(victim, place int) {
			check(r.Attempt())
			for round := range rounds {
				if r.Rank() == victim && round == place {
					r.Abandon(fmt.Errorf("no more paper in round %d", round))
				}
				reduce([]dist.Op{dist.Max, dist.Sum}[round%2]) // so that what ranks did not come to is no sum
			}
			var failure *dist.Error
			if err := errors.Join(r.stream.Sync(), other.Sync(), r.Barrier()); !errors.As(err, &failure) || !failure.Abandoned || failure.Rank != victim ||
				r.Err() == nil || !strings.Contains(r.Err().Error(), fmt.Sprintf("rank %d: no more paper in round %d", victim, place)) {
				t.Errorf("rank %d: the error of an attempt that rank %d abandoned is %v, the group's %v", r.Rank(), victim, err, r.Err())
			}
			r.stream.Clear()
			other.Clear()
		}
		for victim := range size {
			for place := range rounds {
				abandoned(victim, place)
				if r.Rank() == place%size {
					time.Sleep(time.Millisecond)
				}
				check(errors.Join(r.Attempt(), r.Err()))
				for _, x := range []dist.Buf{a, b} {
					r.set(x, func(i int) int { return value(r.Rank(), 0, i) })
				}
				reduce(dist.Sum)
				r.sync()
				check(errors.Join(other.Sync(), r.Barrier()))
				r.compare("sum after an abandoned attempt", []dist.Buf{a, b}, func(_, i int) int { return value(0, 0, i) + value(1, 0, i) + value(2, 0, i) })
			}
		}
		r.free(a, b)
		if err := other.Close(); err != nil {
			t.Error(err)
		}
	})
}

// testAbandonEarly lets one rank abandon two attempts at once while the others are
// still in the one before: that one comes to its end, with the messages that the rank
// sent in it, and the two are over when the others come to them.
func testAbandonEarly(t *testing.T, j job) {
	const size, n = 3, 1000
	spawn(t, j, size, dist.Options{}, true, func(r *rank) {
		b := r.buf(device.Int32, n)
		begin := func(abandoned bool) {
			r.stream.Clear()
			if err := r.Attempt(); err != nil {
				t.Errorf("rank %d: %v", r.Rank(), err)
			}
			if r.Rank() == 1 && abandoned {
				r.Abandon(errors.New("no more paper"))
			}
			r.set(b, func(int) int { return 1 << r.Rank() })
		}
		for range 3 {
			begin(false)
			if err := r.Barrier(); err != nil {
				t.Errorf("rank %d: %v", r.Rank(), err)
			}
			if r.Rank() == 1 {
				dist.Send(r, r.stream, 0, b)
				dist.Send(r, r.stream, 2, b)
			} else {
				time.Sleep(10 * time.Millisecond) // on a network rank 1 is two attempts further by then
				dist.Receive(r, r.stream, 1, b)
			}
			r.sync()
			r.compare("the end of an attempt", []dist.Buf{b}, func(int, int) int { return 2 })
			for range 2 {
				begin(true)
				r.AllReduce(r.stream, dist.Sum, b)
				r.fails("rank 1: no more paper")
			}
			begin(false)
			r.AllReduce(r.stream, dist.Sum, b)
			r.sync()
			r.compare("sum after abandoned attempts", []dist.Buf{b}, func(int, int) int { return 7 })
		}
		r.free(b)
	})
}

// testAbsent lets one rank leave while the others wait for it.
func testAbsent(t *testing.T, j job) {
	spawn(t, j, 3, dist.Options{}, false, func(r *rank) {
		b := r.buf(device.Float32, 100)
		if r.Rank() != 1 {
			r.AllReduce(r.stream, dist.Sum, b)
			r.fails("rank 1: ", "left")
		}
		r.free(b)
	})
}

// testLate lets one rank do something else: the patience of the others ends.
func testLate(t *testing.T, j job) {
	spawn(t, j, 3, dist.Options{Patience: 50 * time.Millisecond}, false, func(r *rank) {
		b := r.buf(device.Float32, 100)
		if r.Rank() == 1 {
			<-waitFor(func() bool { return r.Err() != nil })
		}
		r.AllReduce(r.stream, dist.Sum, b)
		r.fails("rank 1: it did not come to all_reduce within 50ms")
		r.free(b)
	})
}

// waitFor closes its channel when a condition holds, or after a long time.
func waitFor(f func() bool) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 2000 {
			if f() {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	return done
}

// testMany queues more collectives than a stream's queue holds, on groups that
// overlap.
func testMany(t *testing.T, j job) {
	const size, rounds = 3, 400
	spawn(t, j, size, dist.Options{}, true, func(r *rank) {
		b := r.buf(device.Int32, 3)
		r.set(b, func(int) int { return 1 })
		ring, err := r.Sub("reversed", 2, 1, 0)
		if err != nil {
			t.Error(err)
			return
		}
		if want := 2 - r.Rank(); ring.Rank() != want {
			t.Errorf("rank %d is %d in the reversed group, want %d", r.Rank(), ring.Rank(), want)
		}
		for i := range rounds {
			r.AllReduce(r.stream, dist.Max, b)
			ring.Broadcast(r.stream, i%size, b)
		}
		r.sync()
		r.compare("many", []dist.Buf{b}, func(int, int) int { return 1 })
		r.free(b)
	})
}
