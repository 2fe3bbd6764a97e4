package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/headroom-go/headroom/device"
)

// somePages is on addresses of no memory.
var somePages = Paged{Texts: 1, Rows: 1, Heads: 1, D: 4, PageTokens: 2, Columns: 1, QKV: 512, O: 1024, Table: 512, Spans: 512, Scale: 1}

// pagedCase is some texts whose keys and values lie in pages, in random order.
type pagedCase struct {
	Paged
	spans              []int32
	pages              [][]int // of each text
	qkv, o, cache      *array
	table, spansMemory *array
}

// newPagedCase draws texts of up to most rows; the second shares the first
// page of the first one where both begin behind it.
func newPagedCase(t *testing.T, r *rand.Rand, texts, most int) (*testCase, *pagedCase) {
	x := &pagedCase{Paged: Paged{Texts: texts, Heads: 1 + r.IntN(3), D: 1 + r.IntN(40), PageTokens: 1 + r.IntN(20), Scale: r.Float32()}}
	half := x.Heads * x.PageTokens * x.D
	size, layers := 2*half, 1+r.IntN(3)
	x.Offset = r.IntN(layers) * size
	pages := 0
	for i := range texts {
		rows, start := r.IntN(most+1), r.IntN(3*most)
		x.spans = append(x.spans, int32(x.Rows), int32(rows), int32(start))
		var own []int
		for j := range ceilDiv(start+rows, x.PageTokens) {
			if i == 1 && j == 0 && min(start, int(x.spans[2])) >= x.PageTokens && len(x.pages[0]) > 0 {
				own = append(own, x.pages[0][0])
				continue
			}
			own = append(own, pages)
			pages++
		}
		x.pages = append(x.pages, own)
		x.Rows += rows
		x.Keys += start + rows
		x.Pairs += rows*start + rows*(rows+1)/2
		x.Columns = max(x.Columns, len(own))
	}
	c := &testCase{t: t}
	order := r.Perm(pages)
	for _, own := range x.pages {
		for j := range own {
			own[j] = order[own[j]] * layers * size
		}
	}
	x.qkv = c.input(randoms(r, x.Rows*3*x.Heads*x.D))
	x.cache = c.inout(randoms(r, pages*layers*size))
	x.o = c.output(x.Rows * x.Heads * x.D)
	x.spansMemory = c.indices(x.spans)
	x.table = c.indices(x.addresses())
	x.QKV, x.O, x.Table, x.Spans = x.qkv.ptr().Ptr, x.o.ptr().Ptr, x.table.ptr().Ptr, x.spansMemory.ptr().Ptr
	return c, x
}

// addresses is the page table.
func (x *pagedCase) addresses() []int32 {
	words := make([]int32, 0, 2*x.Texts*x.Columns)
	for _, own := range x.pages {
		for j := range x.Columns {
			var at uint64
			if j < len(own) {
				at = uint64(x.cache.ptr().Ptr) + 4*uint64(own[j])
			}
			words = append(words, int32(uint32(at)), int32(uint32(at>>32)))
		}
	}
	return words
}

// at is where an element of a key (part 0) or value (1) lies in the cache.
func (x *pagedCase) at(text, pos, part, head, d int) int {
	return x.pages[text][pos/x.PageTokens] + x.Offset + ((part*x.Heads+head)*x.PageTokens+pos%x.PageTokens)*x.D + d
}

// TestPagedWrite compares the pages with those that were written element by
// element; nothing else in them changes.
func TestPagedWrite(t *testing.T) {
	r := seeded(t)
	for range trials(40) {
		c, x := newPagedCase(t, r, 1+r.IntN(4), 1+r.IntN(20))
		want := fromFloats(x.cache.before)
		for text := range x.Texts {
			first, rows, start := int(x.spans[3*text]), int(x.spans[3*text+1]), int(x.spans[3*text+2])
			for i := range rows * 2 * x.Heads * x.D {
				row, part, head, d := i/(2*x.Heads*x.D), i/(x.Heads*x.D)%2, i/x.D%x.Heads, i%x.D
				want[x.at(text, start+row, part, head, d)] = x.qkv.start((((first+row)*3+1+part)*x.Heads+head)*x.D + d)
			}
		}
		x.o.output = false // it stays as it is
		c.run(func(s device.Stream) { PagedWrite(s, x.Paged) })
		c.equal("cache", x.cache, 0, func(i int) float64 { return want[i] })
		c.cost(4*x.Rows*x.Heads*x.D, 0)
	}
}

// TestPagedAttention compares with attention by its definition, with few new
// tokens and with blocks of them.
func TestPagedAttention(t *testing.T) {
	r := seeded(t)
	for i := range trials(40) {
		most := []int{1, fewQueries, 30, 150}[i%4]
		c, x := newPagedCase(t, r, 1+r.IntN(4), most)
		x.check(c)
	}
}

func (x *pagedCase) check(c *testCase) {
	c.t.Helper()
	x.cache.output = false
	want := x.want()
	run := func(host func(l *device.Launch, w *device.Workers), name string) {
		k := &device.Kernel{Name: "paged_attention", Host: host}
		c.run(func(s device.Stream) { PagedAttention(using{s, k}, x.Paged) })
		c.near(fmt.Sprintf("O of %s %+v, spans %v", name, x.Paged, x.spans), x.o, 2e-6, 5, func(i int) float64 { return want[i] })
		c.cost(2*x.Heads*x.D*(x.Rows+x.Keys), 4*x.Heads*x.D*x.Pairs)
	}
	for _, kn := range microKernels {
		run(kn.pagedAttention, kn.name)
	}
	eachSIMD(c.t, func(t *testing.T) { run(microKernels[0].pagedAttention, t.Name()) })
}

// want is the result by the oracle of attention without pages.
func (x *pagedCase) want() []float64 {
	want := make([]float64, len(x.o.before))
	for i := range x.Texts * x.Heads {
		text, head := i/x.Heads, i%x.Heads
		first, rows, start := int(x.spans[3*text]), int(x.spans[3*text+1]), int(x.spans[3*text+2])
		y := &oracle{T: rows, S: start + rows, D: x.D, causal: true, scale: float64(x.Scale),
			q: func(row, d int) float64 { return x.qkv.start(((first+row)*3*x.Heads+head)*x.D + d) },
			k: func(row, d int) float64 { return float64(x.cache.before[x.at(text, row, 0, head, d)]) },
			v: func(row, d int) float64 { return float64(x.cache.before[x.at(text, row, 1, head, d)]) }}
		y.forward()
		for row := range rows {
			copy(want[((first+row)*x.Heads+head)*x.D:], y.o[row])
		}
	}
	return want
}

// BenchmarkPagedAttention is one new token for each of 16 texts of 512 tokens,
// with GPT-2's heads.
func BenchmarkPagedAttention(b *testing.B) {
	const texts, heads, d, page, tokens = 16, 12, 64, 16, 512
	memory := make([]float32, texts*tokens*2*heads*d)
	qkv, o := make([]float32, texts*3*heads*d), make([]float32, texts*heads*d)
	p := Paged{Texts: texts, Rows: texts, Heads: heads, D: d, PageTokens: page, Columns: tokens / page, Scale: 0.125,
		Keys: texts * tokens, Pairs: texts * tokens}
	c := &testCase{}
	at := c.input(memory)
	copy(at.data, memory)
	table, spans := []int32{}, []int32{}
	for i := range texts {
		spans = append(spans, int32(i), 1, tokens-1)
		for j := range tokens / page {
			a := uint64(at.ptr().Ptr) + uint64(4*(i*tokens/page+j)*page*2*heads*d)
			table = append(table, int32(uint32(a)), int32(uint32(a>>32)))
		}
	}
	in, out, t, n := c.input(qkv), c.output(len(o)), c.indices(table), c.indices(spans)
	for _, a := range c.arrays {
		copy(a.data, a.before)
	}
	p.QKV, p.O, p.Table, p.Spans = in.ptr().Ptr, out.ptr().Ptr, t.ptr().Ptr, n.ptr().Ptr
	s := &inline{w: device.NewWorkers(2)}
	defer s.w.Close()
	for b.Loop() {
		PagedAttention(s, p)
	}
	b.SetBytes(int64(s.last.Bytes))
	if math.IsNaN(float64(out.data[0])) {
		b.Fatal("no result")
	}
}
