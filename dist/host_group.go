package dist

import (
	"fmt"
	"sync"

	"github.com/headroom-go/headroom/device"
)

// hostGroup is a Group on memory of the host, over a wire.
//
// An all-reduce is a reduce-scatter, after which each rank has its part of the
// result, and an all-gather of these parts. Every rank talks to every other one
// directly: the traffic of a rank is 2·(N−1)/N of the data, which is the least,
// and sums can be taken in the order of the ranks.
type hostGroup struct {
	rank, size int
	wire       wire // nil for Null, where nothing runs
	me         *member
	sub        func(name string, ranks []int) (Group, error)
	close      func() error

	mu  sync.Mutex // one collective at a time
	acc accumulator
}

func (g *hostGroup) Rank() int         { return g.rank }
func (g *hostGroup) Size() int         { return g.size }
func (g *hostGroup) Attempt() error    { return g.me.begin() }
func (g *hostGroup) Abandon(err error) { g.me.fate.abandon(g.me.now.Load().number, g.me.rank, err) }
func (g *hostGroup) Fail(err error)    { g.me.fate.fail(g.me.rank, err) }
func (g *hostGroup) Err() error        { return g.me.now.Load().error() }
func (g *hostGroup) Close() error      { return g.close() }

func (g *hostGroup) Sub(name string, ranks ...int) (Group, error) {
	if err := checkRanks(g, ranks); err != nil {
		return nil, fmt.Errorf("group %q: %w", name, err)
	}
	return g.sub(name, ranks)
}

// checkRanks says what is wrong with the ranks of a group to be made from g.
func checkRanks(g Group, ranks []int) error {
	seen := map[int]bool{}
	for _, r := range ranks {
		if r < 0 || r >= g.Size() || seen[r] {
			return fmt.Errorf("ranks %v: each of 0 … %d may stand there once", ranks, g.Size()-1)
		}
		seen[r] = true
	}
	if !seen[g.Rank()] {
		return fmt.Errorf("ranks %v don't hold rank %d, which asks for it", ranks, g.Rank())
	}
	return nil
}

// queue queues run, the work of a collective, on a stream. moved is the memory
// traffic, link what is sent to other ranks or comes from them, whichever is more.
func (g *hostGroup) queue(s device.Stream, h header, moved, link int, run func() error) {
	k := &device.Kernel{Name: h.what.String(), Host: func(*device.Launch, *device.Workers) {
		if err := g.run(run); err != nil {
			panic(err)
		}
	}}
	s.Launch(&device.Launch{Kernel: k, Bytes: uint64(moved), Link: uint64(link)})
}

// run runs the work of a collective. Its error is that of the job or the attempt.
func (g *hostGroup) run(work func() error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.me.now.Load()
	if err := now.error(); err != nil {
		return err
	}
	err := work()
	if err != nil && now.error() == nil {
		g.me.fate.fail(g.me.rank, err) // before waiting for what was sent
	}
	if failed := g.wire.settle(); err == nil && failed == nil {
		return nil
	} else if now.error() == nil {
		g.me.fate.fail(g.me.rank, failed)
	}
	return now.error()
}

func (g *hostGroup) AllReduce(s device.Stream, op Op, bufs ...Buf) {
	checkOp(op, bufs)
	h := newHeader(allReduce, op, 0, bufs)
	g.queue(s, h, 4*total(bufs), 2*g.ofOthers(bufs), func() error {
		mine := parts(bufs, g.size, g.rank)
		if err := g.reduceParts(h, mine, bufs); err != nil {
			return err
		}
		if err := g.wire.settle(); err != nil { // what was sent is about to be overwritten
			return err
		}
		h.what = allReduced
		return g.gatherParts(h, bufs, mine)
	})
}

func (g *hostGroup) ReduceScatter(s device.Stream, op Op, dst, src []Buf) {
	checkOp(op, src)
	checkParts("ReduceScatter", g, dst, src)
	h := newHeader(reduceScatter, op, 0, src)
	g.queue(s, h, total(src)+total(dst), g.ofOthers(src), func() error { return g.reduceParts(h, dst, src) })
}

func (g *hostGroup) AllGather(s device.Stream, dst, src []Buf) {
	checkParts("AllGather", g, src, dst)
	h := newHeader(allGather, Sum, 0, dst)
	g.queue(s, h, total(src)+total(dst), g.ofOthers(dst), func() error { return g.gatherParts(h, dst, src) })
}

func (g *hostGroup) Broadcast(s device.Stream, root int, bufs ...Buf) {
	if root < 0 || root >= g.size {
		panic(fmt.Sprintf("dist: Broadcast from rank %d of %d", root, g.size))
	}
	h := newHeader(broadcast, Sum, root, bufs)
	link := total(bufs)
	if g.rank == root {
		link *= g.size - 1
	}
	g.queue(s, h, total(bufs), link, func() error {
		data := func(from int) []Buf {
			if from == root {
				return bufs
			}
			return nil // all the same, so that who takes another for root finds it out
		}
		for p := range g.others() {
			g.wire.post(p, h.carrying(data(g.rank)), data(g.rank))
		}
		for p := range g.others() {
			if err := g.receive(p, h, data(p)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (g *hostGroup) Exchange(s device.Stream, send, receive []Message) {
	out, in := g.byRank(send), g.byRank(receive)
	checkSame("Exchange with itself", out[g.rank], in[g.rank])
	h := newHeader(exchange, Sum, 0, nil)
	sent, received, kept := 0, 0, total(out[g.rank])
	for p := range g.others() {
		sent, received = sent+total(out[p]), received+total(in[p])
	}
	g.queue(s, h, sent+received+2*kept, max(sent, received), func() error {
		for p := range g.others() {
			if out[p] != nil {
				g.wire.post(p, newHeader(exchange, Sum, 0, out[p]).carrying(out[p]), out[p])
			}
		}
		for i, b := range in[g.rank] {
			copy(bytesOf(b), bytesOf(out[g.rank][i]))
		}
		for p := range g.others() {
			if in[p] == nil {
				continue
			}
			if err := g.receive(p, newHeader(exchange, Sum, 0, in[p]), in[p]); err != nil {
				return err
			}
		}
		return nil
	})
}

// byRank sorts messages.
func (g *hostGroup) byRank(ms []Message) [][]Buf {
	bufs := make([][]Buf, g.size)
	for _, m := range ms {
		if m.Rank < 0 || m.Rank >= g.size {
			panic(fmt.Sprintf("dist: a message for rank %d of %d", m.Rank, g.size))
		}
		bufs[m.Rank] = append(bufs[m.Rank], m.Buf)
	}
	return bufs
}

// Barrier may run beside collectives that are queued; then it is up to the
// caller that their order is that of the other ranks.
func (g *hostGroup) Barrier() error {
	if g.wire == nil {
		return nil
	}
	return g.run(func() error {
		h := newHeader(barrier, Sum, 0, nil)
		for p := range g.others() {
			g.wire.post(p, h, nil)
		}
		for p := range g.others() {
			if err := g.receive(p, h, nil); err != nil {
				return err
			}
		}
		return nil
	})
}

// others are the ranks but this one.
func (g *hostGroup) others() func(yield func(int) bool) {
	return func(yield func(int) bool) {
		for p := range g.size {
			if p != g.rank && !yield(p) {
				return
			}
		}
	}
}

// reduceParts combines src of all ranks into dst, this rank's parts.
func (g *hostGroup) reduceParts(h header, dst, src []Buf) error {
	for p := range g.others() {
		theirs := parts(src, g.size, p)
		g.wire.post(p, h.carrying(theirs), theirs)
	}
	mine := parts(src, g.size, g.rank)
	from := make([]source, g.size)
	for p := range from {
		if p == g.rank {
			from[p] = &reader{bufs: mine}
			continue
		}
		s, err := g.next(p, h.carrying(mine))
		if err != nil {
			return err
		}
		defer s.done()
		from[p] = s
	}
	return g.acc.combine(h.op, dst, from)
}

// gatherParts puts the parts of all ranks, of which src are this one's, into dst.
func (g *hostGroup) gatherParts(h header, dst, src []Buf) error {
	for p := range g.others() {
		g.wire.post(p, h.carrying(src), src)
	}
	for i, b := range parts(dst, g.size, g.rank) {
		if b.Ptr != src[i].Ptr {
			copy(bytesOf(b), bytesOf(src[i]))
		}
	}
	for p := range g.others() {
		if err := g.receive(p, h, parts(dst, g.size, p)); err != nil {
			return err
		}
	}
	return nil
}

// next waits for a rank's message, which must be the one expected.
func (g *hostGroup) next(from int, want header) (source, error) {
	h, s, err := g.wire.next(from, want.what.String())
	if err == nil && h != want {
		s.done()
		err = fmt.Errorf("collectives differ: it comes to %v, rank %d of the group to %v", want, from, h)
	}
	return s, err
}

// receive waits for a rank's message and puts it into bufs.
func (g *hostGroup) receive(from int, h header, bufs []Buf) error {
	s, err := g.next(from, h.carrying(bufs))
	if err != nil {
		return err
	}
	defer s.done()
	for _, b := range bufs {
		if b.Len == 0 {
			continue
		}
		if err := s.bytes(bytesOf(b)); err != nil {
			return err
		}
	}
	return nil
}

func bytesOf(b Buf) []byte {
	if b.Len == 0 {
		return nil
	}
	return device.Bytes(b.Ptr, b.Bytes())
}

// parts gives a rank's part of each buffer.
func parts(bufs []Buf, size, rank int) []Buf {
	ps := make([]Buf, len(bufs))
	for i, b := range bufs {
		ps[i] = b.Part(size, rank)
	}
	return ps
}

// ofOthers is the bytes of all ranks' parts but this one's, as if all were as long.
func (g *hostGroup) ofOthers(bufs []Buf) int { return total(bufs) / g.size * (g.size - 1) }

func total(bufs []Buf) int {
	n := 0
	for _, b := range bufs {
		n += b.Bytes()
	}
	return n
}

// checkOp panics where op has no meaning for the buffers.
func checkOp(op Op, bufs []Buf) {
	for _, b := range bufs {
		if op == Mean && !b.Type.Float() {
			panic(fmt.Sprintf("dist: mean of %v: it is for floating-point numbers", b.Type))
		}
	}
}

// checkParts panics unless part[i] is as long as this rank's part of whole[i].
func checkParts(what string, g Group, part, whole []Buf) {
	checkSame(what, part, parts(whole, g.Size(), g.Rank()))
}

func checkSame(what string, a, b []Buf) {
	same := len(a) == len(b)
	for i := 0; same && i < len(a); i++ {
		same = a[i].Len == b[i].Len && a[i].Type == b[i].Type
	}
	if !same {
		panic(fmt.Sprintf("dist: %s of %v and %v: their types and lengths don't agree", what, a, b))
	}
}
