package tensor

import (
	"math"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/kernel"
	"github.com/headroom-go/headroom/trace"
)

// PageLayout says how keys and values lie in a page of memory: those of so many
// tokens that follow each other in a text, for all layers.
type PageLayout struct {
	Layers, Heads int
	D             int // elements of a head
	Tokens        int
}

// Bytes is the size of a page.
func (l PageLayout) Bytes() uint64 { return uint64(l.Layers) * uint64(l.layer()) * 4 }

// layer is the elements of one layer in a page.
func (l PageLayout) layer() int { return 2 * l.Heads * l.Tokens * l.D }

// PagedText is a text that gets new tokens.
type PagedText struct {
	Start int          // tokens before the new ones, whose keys and values are in the pages
	Rows  int          // new tokens
	Pages []device.Ptr // in the order of the text, with room for all Start+Rows tokens
}

// PagedBatch is some texts whose keys and values lie in pages, while new tokens
// of theirs go through a model. The rows of the new tokens lie one text after
// the other.
type PagedBatch struct {
	rt           *Runtime
	l            PageLayout
	table, spans *Tensor
	p            kernel.Paged
}

// PagedBatch tells the device of texts. It must be released.
func (rt *Runtime) PagedBatch(l PageLayout, texts []PagedText) *PagedBatch {
	b := &PagedBatch{rt: rt, l: l, p: kernel.Paged{Texts: len(texts), Heads: l.Heads, D: l.D, PageTokens: l.Tokens,
		Scale: float32(1 / math.Sqrt(float64(l.D)))}}
	spans := make([]int32, 0, 3*len(texts))
	for _, t := range texts {
		if t.Start < 0 || t.Rows < 0 || len(t.Pages)*l.Tokens < t.Start+t.Rows {
			fail("PagedBatch: %d tokens after %d in %d pages of %d", t.Rows, t.Start, len(t.Pages), l.Tokens)
		}
		spans = append(spans, int32(b.p.Rows), int32(t.Rows), int32(t.Start))
		b.p.Rows += t.Rows
		b.p.Keys += t.Start + t.Rows
		b.p.Pairs += t.Rows*t.Start + t.Rows*(t.Rows+1)/2
		b.p.Columns = max(b.p.Columns, len(t.Pages))
	}
	b.spans = rt.FromInt32s(trace.Input, spans, len(texts), 3)
	b.table = rt.FromInt32s(trace.Input, pageTable(texts, b.p.Columns), len(texts), b.p.Columns, 2)
	b.p.Spans, b.p.Table = b.spans.ptr().Ptr, b.table.ptr().Ptr
	return b
}

// pageTable is the addresses of all pages, low halves first.
func pageTable(texts []PagedText, columns int) []int32 {
	words := make([]int32, 2*columns*len(texts))
	for i, t := range texts {
		for j, at := range t.Pages {
			to := words[2*(i*columns+j):]
			to[0], to[1] = int32(uint32(at)), int32(uint32(at>>32))
		}
	}
	return words
}

// Release frees what the device was told; the pages are the caller's.
func (b *PagedBatch) Release() { releaseAll(b.table, b.spans) }

// SelfAttention is causal attention of the new tokens, whose queries, keys and
// values lie side by side in qkv, [rows, 3·heads·D], to all tokens of their
// text up to themselves; it gives [rows, heads·D]. It leaves their keys and values in the
// pages, for the layer of this number. It has no gradient.
func (b *PagedBatch) SelfAttention(layer int, qkv *Tensor) *Tensor {
	width := b.l.Heads * b.l.D
	if len(qkv.shape) != 2 || qkv.shape[0] != b.p.Rows || qkv.shape[1] != 3*width || layer < 0 || layer >= b.l.Layers || qkv.NeedsGrad() || qkv.dtype != Float32 {
		fail("PagedBatch.SelfAttention of layer %d of qkv %v (gradient wanted: %v), for %d rows in pages of %+v", layer, qkv, qkv.NeedsGrad(), b.p.Rows, b.l)
	}
	d := qkv.contiguous()
	defer d.Release()
	y := b.rt.Empty(Float32, trace.Activation, b.p.Rows, width)
	p := b.p
	p.QKV, p.O, p.Offset = d.ptr().Ptr, y.ptr().Ptr, layer*b.l.layer()
	kernel.PagedWrite(b.rt.stream, p)
	kernel.PagedAttention(b.rt.stream, p)
	return y
}
