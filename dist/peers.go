package dist

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/cuda"
	"github.com/headroom-go/headroom/internal/kernel"
)

// Peers is a group whose ranks are goroutines of this process, each with a GPU that
// reaches the others'. What a rank gives to another one is copied into an inbox in
// that one's memory, by the GPU's copy engines: they take no multiprocessors from what
// is computed beside, and need no library. The group that it is made of, on memory of
// the host, lets the ranks meet and tells of failures.
//
// # Lanes
//
// From each rank to each other one goes a lane: two slots of the receiver's inbox, and
// two counts of the packets that went through them, by which streams wait for each
// other. No host takes part.
//
//	full   packets that the sender has put in; it goes on when empty ≥ full − 1
//	empty  packets that the receiver has read; it goes on when full ≥ empty + 1
//
//	empty ≤ full ≤ empty + 2
//
// A packet is pieces of buffers, as many as a slot holds. Both sides cut what goes
// through a lane alike, so that a packet says nothing of what is in it. In a collective
// a rank first sends its next packet to all others, and then reads one from each. With
// two slots it does not wait for the packet that it just sent to be read, and so none
// waits in a circle.
//
// # Failures
//
// When an attempt is over, what is queued must come to its end, though packets for
// which it waits will never come. So each rank raises its own counts, for which its
// streams wait, and does so again and again, since a stream that is still at work may
// set them back. It begins when all ranks have come to the attempt: until then its
// packets must not overwrite those of the attempt before, which some have yet to read.
// When all have come to the next attempt, after waiting for their streams, counts begin
// at 0.
//
// Where ranks come to collectives that differ, it is found when they are queued; not
// where what they Exchange does. How long a rank waits has no bound.
type Peers struct {
	*hostGroup         // the other one
	sides      []*side // of all ranks
	mine       *side
	to         []*lane // to each rank; nil for this one
	from       []*lane // from each rank
	slot       int     // bytes of one
	log        *ledger
	subs       []*Peers

	mu         sync.Mutex
	generation int // of attempts, that the counts are of
	raising    *raising
}

// InboxBytes is the memory that a rank has on its GPU for packets in each group of
// several ranks, outside of the device's capacity.
const InboxBytes = 32 << 20

const (
	laneSlots  = 2
	laneCounts = 2
	pieceUnit  = 256 // bytes of a slot at a multiple of which a piece begins
)

// side is what a rank shows to the others.
type side struct {
	device *device.CUDADevice
	inbox  *device.Inbox // nil for a rank alone
	err    error
	ended  chan struct{}
}

// full counts the packets that came from rank p, and empty those to p that p has read.
func (s *side) full(p int) cuda.Ptr  { return cuda.Ptr(s.inbox.Count(laneCounts * p)) }
func (s *side) empty(p int) cuda.Ptr { return cuda.Ptr(s.inbox.Count(laneCounts*p + 1)) }

// lane is one way between two ranks, as one of them sees it.
type lane struct {
	slots       device.Ptr
	full, empty cuda.Ptr
	packets     uint64 // that this side has sent or read
}

// NewPeers makes the group of GPUs for a rank of base, on dev. All ranks call it, and
// all get an error where one of their GPUs does not reach another one, or where they
// are not of one process. End comes before the device closes.
func NewPeers(base Group, dev *device.CUDADevice) (*Peers, error) {
	h, ok := base.(*hostGroup)
	if ok {
		_, ok = h.wire.(*localWire)
	}
	if !ok || h.size > kernel.MostCombined {
		return nil, fmt.Errorf("copies between GPUs are for ranks of one process, at most %d", kernel.MostCombined)
	}
	mine := &side{device: dev, ended: make(chan struct{})}
	sides, err := meet(h, mine)
	if err != nil {
		close(mine.ended)
		return nil, err
	}
	g := &Peers{hostGroup: h, sides: sides, mine: mine, generation: h.me.now.Load().generation}
	mine.inbox, mine.err = g.open()
	logs, err := meet(h, &ledger{met: map[int]*entry{}})
	for r, s := range sides {
		if err == nil && s.err != nil {
			err = fmt.Errorf("rank %d: %w", r, s.err)
		}
	}
	if err != nil {
		return nil, errors.Join(err, g.End()) // where the job failed, others may have their groups
	}
	g.log = logs[0]
	g.connect()
	h.me.onOver(g.raise)
	return g, nil
}

// open takes the inbox.
func (g *Peers) open() (*device.Inbox, error) {
	if g.Size() == 1 {
		return nil, nil
	}
	var others []*device.CUDADevice
	for p := range g.others() {
		others = append(others, g.sides[p].device)
	}
	return g.mine.device.OpenInbox(InboxBytes, laneCounts*g.Size(), others)
}

func (g *Peers) close() error {
	if g.mine.inbox == nil {
		return nil
	}
	return g.mine.inbox.Close()
}

// connect makes the lanes.
func (g *Peers) connect() {
	g.to, g.from = make([]*lane, g.Size()), make([]*lane, g.Size())
	g.slot = InboxBytes / laneSlots / max(1, g.Size()-1) / pieceUnit * pieceUnit
	for p := range g.others() {
		g.to[p], g.from[p] = g.lane(g.Rank(), p), g.lane(p, g.Rank())
	}
}

func (g *Peers) lane(from, to int) *lane {
	inbox, _ := g.sides[to].inbox.Range()
	place := from
	if from > to {
		place-- // no rank has a lane to itself
	}
	return &lane{slots: inbox + device.Ptr(place*laneSlots*g.slot), full: g.sides[to].full(from), empty: g.sides[from].empty(to)}
}

// Sub implements Group.
func (g *Peers) Sub(name string, ranks ...int) (Group, error) {
	base, err := g.hostGroup.Sub(name, ranks...)
	if err != nil {
		return nil, err
	}
	s, err := NewPeers(base, g.mine.device)
	if err == nil {
		g.subs = append(g.subs, s)
	}
	return s, err
}

// End gives back what the group, and those that Sub gave, have on the GPU; the other
// group stays. All ranks call it, after waiting for their streams, and a rank that
// failed first fails the job. It waits for all of them.
func (g *Peers) End() error {
	g.leave()
	return g.wait()
}

func (g *Peers) leave() {
	close(g.mine.ended)
	for _, s := range g.subs {
		s.leave()
	}
}

func (g *Peers) wait() (err error) {
	for _, s := range g.sides {
		<-s.ended
	}
	g.settle(math.MaxInt)
	err = g.close()
	for _, s := range g.subs {
		err = errors.Join(err, s.wait())
	}
	return err
}

// raising is at work from the end of an attempt until all is settled.
type raising struct{ stop, stopped chan struct{} }

const raised = 1 << 62

// raise lets what this rank has queued go on, in an attempt that is over.
func (g *Peers) raise(a *attempt) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if a.number < g.generation || g.raising != nil || g.mine.inbox == nil {
		return
	}
	r := &raising{make(chan struct{}), make(chan struct{})}
	g.raising = r
	go func() {
		defer close(r.stopped)
		for {
			if a.joined() {
				g.mine.inbox.SetCounts(raised)
			}
			select {
			case <-r.stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
}

// settle ends raising; what comes of attempts before the generation begins none.
func (g *Peers) settle(generation int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.generation = generation
	if r := g.raising; r != nil {
		close(r.stop)
		<-r.stopped
		g.raising = nil
	}
}

// Attempt implements Group. After an attempt that was abandoned all ranks wait for each
// other.
func (g *Peers) Attempt() error {
	anew := g.Err() != nil
	if err := g.hostGroup.Attempt(); err != nil || !anew {
		return err
	}
	if err := g.Barrier(); err != nil { // all have waited for their streams
		return err
	}
	g.renew(g.me.now.Load().generation)
	return unlessAbandoned(g.Barrier())
}

func (g *Peers) renew(generation int) {
	if g.settle(generation); g.mine.inbox != nil {
		g.mine.inbox.SetCounts(0)
	}
	for _, l := range slices.Concat(g.to, g.from) {
		if l != nil {
			l.packets = 0
		}
	}
	g.log.renew(g.Rank())
	for _, s := range g.subs {
		s.renew(generation)
	}
}

// AllReduce implements Group.
func (g *Peers) AllReduce(s device.Stream, op Op, bufs ...Buf) {
	checkOp(op, bufs)
	g.agree(newHeader(allReduce, op, 0, bufs))
	mine := parts(bufs, g.Size(), g.Rank())
	g.reduce(s, allReduce, op, mine, bufs)
	g.gather(s, allReduced, bufs, mine)
}

// ReduceScatter implements Group.
func (g *Peers) ReduceScatter(s device.Stream, op Op, dst, src []Buf) {
	checkOp(op, src)
	checkParts("ReduceScatter", g, dst, src)
	g.agree(newHeader(reduceScatter, op, 0, src))
	g.reduce(s, reduceScatter, op, dst, src)
}

// AllGather implements Group.
func (g *Peers) AllGather(s device.Stream, dst, src []Buf) {
	checkParts("AllGather", g, src, dst)
	g.agree(newHeader(allGather, Sum, 0, dst))
	g.gather(s, allGather, dst, src)
}

// Broadcast implements Group.
func (g *Peers) Broadcast(s device.Stream, root int, bufs ...Buf) {
	g.agree(newHeader(broadcast, Sum, root, bufs))
	out, in := make([][]Buf, g.Size()), make([][]Buf, g.Size())
	if g.Rank() != root {
		in[root] = bufs
	} else {
		for p := range g.others() {
			out[p] = bufs
		}
	}
	g.copies(s, broadcast, out, in)
}

// Exchange implements Group.
func (g *Peers) Exchange(s device.Stream, send, receive []Message) {
	out, in := g.byRank(send), g.byRank(receive)
	checkSame("Exchange with itself", out[g.Rank()], in[g.Rank()])
	g.copies(s, exchange, out, in)
}

// agree fails the job where this rank's next collective is not that of the others.
func (g *Peers) agree(h header) {
	if g.Err() != nil {
		return
	}
	if err := g.log.compare(g.Rank(), g.Size(), h); err != nil {
		g.Fail(err)
	}
}

// reduce combines src of all ranks into dst, this rank's parts.
func (g *Peers) reduce(s device.Stream, what opcode, op Op, dst, src []Buf) {
	out, in := make([][]Buf, g.Size()), make([][]Buf, g.Size())
	for p := range g.Size() {
		out[p], in[p] = parts(src, g.Size(), p), dst
	}
	g.pass(s, what, out, in, func(to, came [][]Buf) {
		for i, d := range to[g.Rank()] {
			var from [kernel.MostCombined]kernel.Array
			for p := range came {
				from[p] = kernel.Array{Ptr: came[p][i].Ptr, Type: d.Type}
			}
			kernel.Combine(s, kernel.CombineOp(op), d.Len, kernel.Array{Ptr: d.Ptr, Type: d.Type}, from[:len(came)]...)
		}
	})
}

// gather puts the parts of all ranks, of which src are this one's, into dst.
func (g *Peers) gather(s device.Stream, what opcode, dst, src []Buf) {
	out, in := make([][]Buf, g.Size()), make([][]Buf, g.Size())
	for p := range g.Size() {
		out[p], in[p] = src, parts(dst, g.Size(), p)
	}
	g.copies(s, what, out, in)
}

// copies passes out[p] to each rank p, and puts into in[p] what came from it.
func (g *Peers) copies(s device.Stream, what opcode, out, in [][]Buf) {
	g.pass(s, what, out, in, func(to, came [][]Buf) {
		moved := 0
		for _, bufs := range to {
			moved += total(bufs)
		}
		g.queue(s, what, 2*moved, func(c *cuda.Context, q cuda.Stream) (err error) {
			for p := range to {
				for i, b := range to[p] {
					if from := came[p][i].Ptr; from != b.Ptr {
						err = errors.Join(err, c.Copy(q, cuda.Ptr(b.Ptr), cuda.Ptr(from), uint64(b.Bytes())))
					}
				}
			}
			return err
		})
	})
}

// pass sends out[p] to each rank p, packet by packet, and has take queue what is done
// with those of the shape of in[p] that came from it. take gets the pieces of in that
// a packet of each rank is for, and where they lie, which for this rank's own is out.
func (g *Peers) pass(s device.Stream, what opcode, out, in [][]Buf, take func(to, came [][]Buf)) {
	outs, ins := g.packets(out), g.packets(in)
	for k := range longest(outs, ins) {
		sent, to, came := packet(outs, k), packet(ins, k), packet(outs, k)
		g.send(s, what, sent)
		g.receive(s, what, to, came)
		take(to, came)
		g.release(s, what, to)
	}
}

// packets cuts what is for each rank into packets.
func (g *Peers) packets(bufs [][]Buf) [][][]Buf {
	all := make([][][]Buf, len(bufs))
	for p := range bufs {
		all[p] = packets(bufs[p], g.slot)
	}
	return all
}

// packets cuts buffers into pieces of which a slot of so many bytes holds some.
func packets(bufs []Buf, slot int) (all [][]Buf) {
	room := 0
	for _, b := range bufs {
		for b.Len > 0 {
			if room == 0 {
				all, room = append(all, nil), slot
			}
			n := min(b.Len, room/b.Type.Size())
			last := len(all) - 1
			all[last] = append(all[last], b.Range(0, n))
			room -= pieceBytes(b.Range(0, n))
			b = b.Range(n, b.Len)
		}
	}
	return all
}

// pieceBytes is what a piece takes of a slot.
func pieceBytes(b Buf) int { return (b.Bytes() + pieceUnit - 1) / pieceUnit * pieceUnit }

func longest(lists ...[][][]Buf) (n int) {
	for _, of := range lists {
		for _, l := range of {
			n = max(n, len(l))
		}
	}
	return n
}

// packet is the k-th of each rank, nil where there are fewer.
func packet(of [][][]Buf, k int) [][]Buf {
	one := make([][]Buf, len(of))
	for p := range of {
		if k < len(of[p]) {
			one[p] = of[p][k]
		}
	}
	return one
}

// send puts a packet into the lane to each rank.
func (g *Peers) send(s device.Stream, what opcode, packets [][]Buf) {
	moved := 0
	for p, l := range g.to {
		if l != nil && packets[p] != nil {
			l.packets++
			moved += total(packets[p])
		}
	}
	g.queue(s, what, moved, func(c *cuda.Context, q cuda.Stream) (err error) {
		for p, l := range g.to {
			if l == nil || packets[p] == nil {
				continue
			}
			if l.packets > laneSlots {
				err = errors.Join(err, c.WaitCount(q, l.empty, l.packets-laneSlots, false))
			}
			for i, b := range g.placed(l, packets[p]) {
				err = errors.Join(err, c.Copy(q, cuda.Ptr(b.Ptr), cuda.Ptr(packets[p][i].Ptr), uint64(b.Bytes())))
			}
			err = errors.Join(err, c.SetCount(q, l.full, l.packets))
		}
		return err
	})
}

// placed is a packet's pieces where they lie in the lane's slot.
func (g *Peers) placed(l *lane, packet []Buf) []Buf {
	at := l.slots + device.Ptr(int(l.packets%laneSlots)*g.slot)
	there := slices.Clone(packet)
	for i, b := range packet {
		there[i].Ptr = at
		at += device.Ptr(pieceBytes(b))
	}
	return there
}

// receive waits for the packets of other ranks that have the shape of to, and sets came
// to where they lie.
func (g *Peers) receive(s device.Stream, what opcode, to, came [][]Buf) {
	for p, l := range g.from {
		if l != nil && to[p] != nil {
			l.packets++
			came[p] = g.placed(l, to[p])
		}
	}
	g.queue(s, what, 0, func(c *cuda.Context, q cuda.Stream) (err error) {
		for p, l := range g.from {
			if l != nil && to[p] != nil {
				err = errors.Join(err, c.WaitCount(q, l.full, l.packets, g.mine.inbox.Flush))
			}
		}
		return err
	})
}

// release says to the other ranks that their packets were read.
func (g *Peers) release(s device.Stream, what opcode, to [][]Buf) {
	g.queue(s, what, 0, func(c *cuda.Context, q cuda.Stream) (err error) {
		for p, l := range g.from {
			if l != nil && to[p] != nil {
				err = errors.Join(err, c.SetCount(q, l.empty, l.packets))
			}
		}
		return err
	})
}

// queue queues calls of the driver, of which moved bytes of traffic come.
func (g *Peers) queue(s device.Stream, what opcode, moved int, calls func(c *cuda.Context, q cuda.Stream) error) {
	k := &device.Kernel{Name: what.String(), CUDA: func(_ *device.Launch, q *device.CUDAQueue) {
		q.Call(func(q cuda.Stream) error {
			if err := g.Err(); err != nil {
				return err
			}
			return calls(g.mine.device.Context(), q)
		})
	}}
	s.Launch(&device.Launch{Kernel: k, Bytes: uint64(moved)})
}

// ledger is the collectives that ranks of one process have come to, and not all of
// them yet.
type ledger struct {
	mu   sync.Mutex
	came [kernel.MostCombined]int // collectives of each rank
	met  map[int]*entry           // by their number
}

type entry struct {
	header
	rank  int // the first that came to it
	ranks int // that came
}

// compare notes a rank's next collective. It fails where that is not the one which
// others came to.
func (l *ledger) compare(rank, size int, h header) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.came[rank]
	l.came[rank]++
	e := l.met[n]
	if e == nil {
		e = &entry{h, rank, 0}
		l.met[n] = e
	}
	if e.ranks++; e.ranks == size {
		delete(l.met, n)
	}
	if e.header != h {
		return fmt.Errorf("collectives differ: it comes to %v, rank %d of the group to %v", h, e.rank, e.header)
	}
	return nil
}

// renew forgets the collectives of a rank; all do.
func (l *ledger) renew(rank int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.came[rank] = 0
	clear(l.met)
}
