package nn

import (
	"fmt"

	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/tensor"
)

// Experts that are spread over ranks.
//
// Each rank along Split.Expert has as many consecutive experts. A token is routed
// on its own rank, as where all experts are. Then every rank sends each expert's
// tokens to who has it, and gets the results back in the same rows: an all-to-all
// there and one back (Lepikhin et al., "GShard", 2020), whose gradients go the
// other way. With a capacity an expert takes equally many rows of each rank,
// so that all sizes are known; without one the ranks tell each other their numbers
// first, and the host waits for them.

// SplitExperts says what is wrong with spreading the experts of c over so many
// ranks, if anything.
func (c MoEConfig) SplitExperts(ranks int) error {
	if ranks < 1 || c.Experts%ranks != 0 {
		return fmt.Errorf("%d experts (num_local_experts) can't be shared by %d ranks: they must be a multiple of that", c.Experts, ranks)
	}
	return nil
}

// experts are those of c that this rank has: from first up to but not including end.
func (s Split) experts(c MoEConfig) (first, end int) {
	if s.Expert == nil {
		return 0, c.Experts
	}
	if err := c.SplitExperts(s.Expert.Size()); err != nil {
		panic("nn: " + err.Error())
	}
	each := c.Experts / s.Expert.Size()
	return s.Expert.Rank() * each, (s.Expert.Rank() + 1) * each
}

// traffic is how one layer's tokens go between the ranks. Rows lie expert after
// expert on both sides, and where they are computed rank after rank in each.
type traffic struct {
	ranks dist.Group
	out   []span  // of the rows that this rank sends, expert by expert
	in    []span  // of the rows that its experts get, expert by expert
	rows  [][]int // of each of its experts, from each rank
}

// span is rows that go to a rank, or come from it.
type span struct{ rank, lo, hi int }

// traffic gives that of a routing. Nil where the experts are not spread.
func (l *MoELayer) traffic(rt *tensor.Runtime, rows [][]int32) *traffic {
	if l.ranks == nil {
		return nil
	}
	t := &traffic{ranks: l.ranks, rows: l.incoming(rt, rows)}
	each := len(l.Experts)
	for e, tokens := range rows {
		t.out = follow(t.out, e/each, len(tokens))
	}
	for _, from := range t.rows {
		for r, n := range from {
			t.in = follow(t.in, r, n)
		}
	}
	return t
}

// follow adds n rows behind the others.
func follow(spans []span, rank, n int) []span {
	at := height(spans)
	return append(spans, span{rank, at, at + n})
}

// height is the number of rows.
func height(spans []span) int {
	if len(spans) == 0 {
		return 0
	}
	return spans[len(spans)-1].hi
}

// incoming gives the number of rows that each of this rank's experts gets from each
// rank. A device that holds no data is taken to get from all what it sends itself.
func (l *MoELayer) incoming(rt *tensor.Runtime, rows [][]int32) [][]int {
	each, counts := len(l.Experts), make([]int32, len(rows))
	for e := range rows {
		counts[e] = int32(len(rows[l.first+e%each]))
	}
	if l.config.Capacity == 0 && rt.Holds() {
		for e := range rows {
			counts[e] = int32(len(rows[e]))
		}
		counts = exchangeCounts(rt, l.ranks, counts)
	}
	in := make([][]int, each)
	for i, n := range counts {
		in[i%each] = append(in[i%each], int(n))
	}
	return in
}

// exchangeCounts sends each rank its part of counts, and waits for theirs.
func exchangeCounts(rt *tensor.Runtime, ranks dist.Group, counts []int32) []int32 {
	mine := rt.FromInt32s(unnamed, counts, len(counts))
	defer mine.Release()
	theirs := rt.Empty(tensor.Int32, unnamed, len(counts))
	defer theirs.Release()
	var send, receive []dist.Buf
	each := len(counts) / ranks.Size()
	for r := range ranks.Size() {
		send, receive = append(send, buf(mine).Range(r*each, (r+1)*each)), append(receive, buf(theirs).Range(r*each, (r+1)*each))
	}
	dist.AllToAll(ranks, rt.Stream(), receive, send)
	return theirs.Int32s()
}

// toExperts brings rows, [height(out), width], to their experts.
func (t *traffic) toExperts(x *tensor.Tensor) *tensor.Tensor {
	return t.move(x, t.out, t.in)
}

// back brings results to the ranks of the tokens.
func (t *traffic) back(x *tensor.Tensor) *tensor.Tensor {
	return t.move(x, t.in, t.out)
}

func (t *traffic) move(x *tensor.Tensor, from, to []span) *tensor.Tensor {
	width := x.Dim(1)
	between := func(from, to []span) func(dst, src *tensor.Tensor) {
		return func(dst, src *tensor.Tensor) {
			t.ranks.Exchange(dst.Runtime().Stream(), messages(src, width, from), messages(dst, width, to))
		}
	}
	c := tensor.Collective{Name: "all_to_all", Forward: between(from, to), Backward: between(to, from)}
	return tensor.Together(x, c, height(to), width)
}

// messages are the spans of x that are not empty.
func messages(x *tensor.Tensor, width int, spans []span) (ms []dist.Message) {
	for _, s := range spans {
		if s.hi > s.lo {
			ms = append(ms, dist.Message{Rank: s.rank, Buf: buf(x).Range(s.lo*width, s.hi*width)})
		}
	}
	return ms
}

// buf is a dense tensor's memory.
func buf(t *tensor.Tensor) dist.Buf { return dist.Buf{Ptr: t.Ptr(), Len: t.Len(), Type: t.DType()} }

// spread is what computing rows of h, on all ranks, gives: the results of this
// rank's rows, expert after expert.
func (l *MoELayer) spread(h *tensor.Tensor, rows [][]int32, t *traffic) *tensor.Tensor {
	var all []int32
	for _, tokens := range rows {
		all = append(all, tokens...)
	}
	x := then(pick(h, all, len(all)), t.toExperts)
	defer x.Release()
	var results []*tensor.Tensor
	at := 0
	for e, from := range t.rows {
		n := 0
		for _, k := range from {
			n += k
		}
		if n > 0 {
			results = append(results, then(tensor.Slice(x, 0, at, at+n, 1), l.Experts[e].Forward))
		}
		at += n
	}
	if len(results) == 0 { // what is saved here lets a second run come as far as the others'
		results = append(results, pick(x, nil, 0))
	}
	return then(joined(results), t.back)
}
