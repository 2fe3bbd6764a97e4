// Package generate continues texts: requests share one pool of pages for keys
// and values.
//
// # Pages
//
// A token's keys and values are needed as long as its text grows, so they are
// kept. How long a text gets is not known before, so their memory comes in
// pages, as it is needed: of each text at most the last page has room left. A page
// is a block of the runtime's allocator with the keys and values of PageTokens
// tokens in all layers. The scheme is that of Kwon et al., "Efficient Memory
// Management for Large Language Model Serving with PagedAttention" (2023).
//
// Texts that begin alike share the pages of their beginning. Full pages form a
// tree, in which a page hangs below the one before it in its text; a new text
// goes down from the root as far as tokens agree, as in Zheng et al., "SGLang"
// (2024). Where it departs within a page, that page is copied before it is
// written. A page that no text uses stays in the tree until memory is wanted;
// the one that was left longest ago goes first.
//
// # Steps
//
// A step takes some new tokens of several texts through the model at once: of a
// text that is being continued the last token, of a new one a part of its
// prompt. A text that finds no page makes the youngest text lose all of its own;
// that one waits, and later begins again with what it had (mostly from the tree).
// So the oldest text always goes on, and none fails for lack of memory.
//
//	waiting --admitted: pages for all its tokens--> running --end, or max tokens--> done
//	        <------------preempted------------
//
// Every text in waiting came after every text in running.
//
// What a text becomes depends on its prompt and sampling alone: not on its
// neighbours, its preemptions or what it shares, but for the rounding of sums.
package generate

import (
	"context"
	"fmt"
	"slices"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// Options are the choices of an Engine. Zero values are the defaults.
type Options struct {
	PageTokens int  // tokens in a page; 16
	Pages      int  // pages at most; as many as the memory left beside a step's own holds
	Rows       int  // tokens that go through the model in a step at most; 256
	Running    int  // texts that are continued at a time at most; 64, or Rows if that is less
	Alone      bool // texts share no pages
}

// withDefaults replaces zeros.
func (o Options) withDefaults() (Options, error) {
	if min(o.PageTokens, o.Pages, o.Rows, o.Running) < 0 || o.Rows > 0 && o.Running > o.Rows {
		return o, fmt.Errorf("generate: %+v: no number may be under 0, and Running at most Rows", o)
	}
	set := func(n *int, to int) {
		if *n == 0 {
			*n = to
		}
	}
	set(&o.PageTokens, 16)
	set(&o.Rows, max(256, o.Running))
	set(&o.Running, min(64, o.Rows))
	return o, nil
}

// Request is a text to continue.
type Request struct {
	Prompt    []int32
	MaxTokens int     // new tokens at most
	Stop      []int32 // tokens that end the text
	Sampling
}

// Reason says why a text ended.
type Reason string

// The reasons.
const (
	Stopped Reason = "stop"    // a token of Stop came, which is the last one
	Length  Reason = "length"  // MaxTokens came
	Context Reason = "context" // the model sees no more tokens
)

// Token is a new token of a text.
type Token struct {
	Request int // its number
	Token   int32
	End     Reason // empty while the text goes on
}

// text is a request in work.
type text struct {
	Request
	id      int
	tokens  []int32 // the prompt and what came
	pages   []*page
	done    int // tokens whose keys and values are in the pages
	entered int // pages that are in the tree
}

// Engine continues the texts of requests. It is used from one goroutine at a
// time, the one of its runtime.
type Engine struct {
	rt      *tensor.Runtime
	model   Model
	shape   Shape
	o       Options
	mem     *alloc.Pool
	pages   pages
	waiting []*text
	running []*text // oldest first, as in waiting
	stats   Stats
}

// New gives an engine whose pages lie beside the model on rt. Unless o gives a
// number of pages, it runs a step of the largest size, to see how much memory
// that takes, and resets the allocator's peaks. It fails if there is no room for
// a step and a page.
func New(rt *tensor.Runtime, m Model, o Options) (*Engine, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := m.Shape()
	e := &Engine{rt: rt, model: m, shape: s, o: o, mem: rt.Allocator().NewPool(alloc.PoolOptions{})}
	e.pages = pages{mem: e.mem, stream: rt.Stream(), limit: o.Pages,
		layout: tensor.PageLayout{Layers: s.Layers, Heads: s.Heads, D: s.D, Tokens: o.PageTokens}}
	if o.Pages == 0 {
		if err := e.measure(); err != nil {
			e.Close()
			return nil, err
		}
	}
	return e, nil
}

// Close frees the pages. The engine must not be used any more.
func (e *Engine) Close() {
	e.waiting, e.running = nil, nil
	e.mem.Destroy()
}

// measure sets the limit of pages to what the device has room for beside a step.
func (e *Engine) measure() error {
	e.pages.limit = 1
	g, err := e.pages.take()
	if err != nil || g == nil {
		return fmt.Errorf("generate: the device has no room for a page of %d bytes beside the model: %w", e.pages.layout.Bytes(), orNoMemory(err))
	}
	mem := e.rt.Allocator()
	mem.ResetPeaks()
	before := mem.Stats().Live
	err = e.rt.Try(func() { e.largest(g) })
	e.pages.drop(g)
	if err != nil {
		return fmt.Errorf("generate: a step of %d tokens does not fit beside the model; fewer would take less: %w", e.o.Rows, err)
	}
	step := mem.Stats().PeakLive - before
	mem.ResetPeaks()
	const unit = 512 // of the allocator's blocks
	info, bytes := mem.Device().Info(), (e.pages.layout.Bytes()+unit-1)/unit*unit
	if taken := mem.Stats().Live + step + info.Granularity; taken < info.Capacity {
		e.pages.limit = max(1, int((info.Capacity-taken)/bytes))
	}
	return nil
}

func orNoMemory(err error) error {
	if err == nil {
		return device.ErrOutOfMemory
	}
	return err
}

// largest runs a step of the largest size, all of it in one page.
func (e *Engine) largest(g *page) {
	t := tensor.PagedText{Rows: e.o.Rows, Pages: make([]device.Ptr, e.pages.need(e.o.Rows))}
	for i := range t.Pages {
		t.Pages[i] = g.block.Ptr()
	}
	zeros := make([]int32, e.o.Rows)
	e.logits(zeros, zeros, zeros[:e.o.Running], []tensor.PagedText{t})
}

// logits runs the rows of some texts through the model and gives what comes
// after those that last names, one after the other.
func (e *Engine) logits(tokens, positions, last []int32, texts []tensor.PagedText) (out []float32) {
	e.rt.NoGrad(func() {
		batch := e.rt.PagedBatch(e.pages.layout, texts)
		defer batch.Release()
		var in [3]*tensor.Tensor
		for i, v := range [][]int32{tokens, positions, last} {
			in[i] = e.rt.FromInt32s(trace.Input, v, len(v))
			defer in[i].Release()
		}
		y := e.model.Logits(in[0], in[1], in[2], batch.SelfAttention)
		defer y.Release()
		out = y.Float32s()
	})
	return out
}

// Add queues a request and gives its number, which counts from 0. It fails for a
// request that could never run.
func (e *Engine) Add(r Request) (int, error) {
	if err := e.check(r); err != nil {
		return 0, err
	}
	t := &text{Request: r, id: e.stats.Requests, tokens: slices.Clone(r.Prompt)}
	e.stats.Requests++
	e.stats.PromptTokens += len(r.Prompt)
	e.waiting = append(e.waiting, t)
	return t.id, nil
}

func (e *Engine) check(r Request) error {
	if err := r.Validate(); err != nil {
		return err
	}
	if len(r.Prompt) == 0 || r.MaxTokens < 1 {
		return fmt.Errorf("generate: a prompt of %d tokens to continue by at most %d: both must be at least 1", len(r.Prompt), r.MaxTokens)
	}
	if len(r.Prompt) > e.shape.Context {
		return fmt.Errorf("generate: the prompt has %d tokens, the model sees at most %d", len(r.Prompt), e.shape.Context)
	}
	for _, t := range r.Prompt {
		if t < 0 || int(t) >= e.shape.Vocab {
			return fmt.Errorf("generate: token %d of the prompt is not in the model's vocabulary of %d", t, e.shape.Vocab)
		}
	}
	if most := e.longest(r); e.pages.need(most) > e.pages.limit {
		return fmt.Errorf("generate: a text of %d tokens to keep needs %d pages of %d bytes, and there is room for %d: give the device more memory, or ask for fewer tokens",
			most, e.pages.need(most), e.pages.layout.Bytes(), e.pages.limit)
	}
	return nil
}

// longest is how many tokens of a text get keys and values at most.
func (e *Engine) longest(r Request) int {
	return min(len(r.Prompt)+r.MaxTokens-1, e.shape.Context)
}

// Run takes steps until all requests are done or ctx ends, whose error it then
// gives; Run may be called again to go on. each is told every token as it comes;
// those of one text come in order.
func (e *Engine) Run(ctx context.Context, each func(Token)) error {
	for len(e.waiting)+len(e.running) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		tokens, err := e.Step()
		if err != nil {
			return err
		}
		for _, t := range tokens {
			each(t)
		}
	}
	return nil
}
