package kernel

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/headroom-go/headroom/device"
)

// How keys and values lie in pages (Kwon et al., "Efficient Memory Management
// for Large Language Model Serving with PagedAttention", 2023).
//
// A page holds the keys and values of PageTokens tokens in a row of one text,
// for all layers: of each layer [2, Heads, PageTokens, D], keys first. The pages
// of a text may lie anywhere; its row of the table names their addresses in the
// order of the text, and several texts may name the same page. A launch is for
// one layer and for some texts at once, each with some new tokens, whose rows
// lie one text after the other in QKV:
//
//	Spans[i] = first row, number of rows, position in the text of the first row
//
// PagedWrite puts the keys and values of the new tokens where they belong.
// PagedAttention, after it, lets each new token see all tokens of its text up to
// itself. A page that several texts name must be full of tokens that they have
// in common, so that none of them writes it.

// Paged describes attention of new tokens to keys and values in pages.
type Paged struct {
	Texts      int
	Rows       int // new tokens of all texts
	Heads, D   int
	PageTokens int
	Columns    int        // addresses in a row of Table
	Offset     int        // elements from the start of a page to the keys of this layer
	QKV        device.Ptr // [Rows, 3, Heads, D]
	O          device.Ptr // [Rows, Heads, D]
	Table      device.Ptr // [Texts, Columns] addresses of 64 bits
	Spans      device.Ptr // [Texts, 3] of int32
	Scale      float32

	// What the spans come to, for the cost of the launch: keys seen by some
	// token, and pairs of a token and a key that it sees.
	Keys, Pairs int
}

var (
	pagedWriteKernel     = &device.Kernel{Name: "paged_write", Host: pagedWriteHost, CUDA: cudaPagedWrite}
	pagedAttentionKernel = &device.Kernel{Name: "paged_attention", Host: microKernels[0].pagedAttention, CUDA: cudaPagedAttention}
)

// PagedWrite copies the keys and values of the new tokens into their pages.
func PagedWrite(s device.Stream, p Paged) {
	p.check("PagedWrite", p.QKV, p.Table, p.Spans)
	l := device.Launch{Kernel: pagedWriteKernel, Bytes: bytesOf(4 * p.Rows * p.Heads * p.D)}
	p.store(&l)
	queue(s, &l)
}

// PagedAttention computes O from the queries of the new tokens and what is in
// the pages.
func PagedAttention(s device.Stream, p Paged) {
	p.check("PagedAttention", p.QKV, p.O, p.Table, p.Spans)
	width := p.Heads * p.D
	l := device.Launch{Kernel: pagedAttentionKernel, Flops: 4 * uint64(width) * uint64(p.Pairs), Bytes: bytesOf(2 * width * (p.Rows + p.Keys))}
	p.store(&l)
	queue(s, &l)
}

func (p *Paged) check(op string, operands ...device.Ptr) {
	if p.Texts < 0 || p.Rows < 0 || p.Heads < 1 || p.D < 1 || p.PageTokens < 1 || p.Columns < 0 || p.Offset < 0 {
		panic(fmt.Sprintf("kernel.%s: %d texts with %d rows of %d heads of %d elements, at element %d of pages of %d tokens, %d of them a text",
			op, p.Texts, p.Rows, p.Heads, p.D, p.Offset, p.PageTokens, p.Columns))
	}
	if i := slices.Index(operands, 0); i >= 0 && p.Rows > 0 {
		panic(fmt.Sprintf("kernel.%s: operand %d of %d rows has no address", op, i, p.Rows))
	}
}

func (p *Paged) store(l *device.Launch) {
	l.Ptr = [device.MaxPtrs]device.Ptr{p.QKV, p.O, p.Table, p.Spans}
	l.Int = [device.MaxInts]int{p.Texts, p.Rows, p.Heads, p.D, p.PageTokens, p.Columns, p.Offset}
	l.Float[0] = p.Scale
}

func loadPaged(l *device.Launch) *Paged {
	n := &l.Int
	return &Paged{Texts: n[0], Rows: n[1], Heads: n[2], D: n[3], PageTokens: n[4], Columns: n[5], Offset: n[6], Scale: l.Float[0],
		QKV: l.Ptr[0], O: l.Ptr[1], Table: l.Ptr[2], Spans: l.Ptr[3]}
}

// pagedText is one text of a launch on the host.
type pagedText struct {
	*Paged
	pages []uint64
	first int // row
	rows  int
	start int // position of the first row
}

func (p *Paged) text(i int) pagedText {
	span := device.Int32s(p.Spans, 3*p.Texts)[3*i:]
	table := unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(device.Int32s(p.Table, 2*p.Texts*p.Columns)))), p.Texts*p.Columns)
	return pagedText{p, table[i*p.Columns:][:p.Columns], int(span[0]), int(span[1]), int(span[2])}
}

// row is the queries (part 0), keys (1) or values (2) of a head in a new token.
func (t *pagedText) row(i, part, head int) []float32 {
	at := ((t.first+i)*3+part)*t.Heads + head
	return device.Float32s(t.QKV+device.Ptr(4*at*t.D), t.D)
}

// out is the result of a head for a new token.
func (t *pagedText) out(i, head int) []float32 {
	return device.Float32s(t.O+device.Ptr(4*((t.first+i)*t.Heads+head)*t.D), t.D)
}

// page is the keys (part 0) or values (1) of a head in page i of the text, dense.
func (t *pagedText) page(i, part, head int) []float32 {
	at := t.Offset + (part*t.Heads+head)*t.PageTokens*t.D
	return device.Float32s(device.Ptr(t.pages[i])+device.Ptr(4*at), t.PageTokens*t.D)
}

func pagedWriteHost(l *device.Launch, w *device.Workers) {
	p := loadPaged(l)
	w.For(p.Texts*p.Heads, 1, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			t, head := p.text(i/p.Heads), i%p.Heads
			for r := range t.rows {
				page, at := (t.start+r)/p.PageTokens, (t.start+r)%p.PageTokens*p.D
				copy(t.page(page, 0, head)[at:], t.row(r, 1, head))
				copy(t.page(page, 1, head)[at:], t.row(r, 2, head))
			}
		}
	})
}
