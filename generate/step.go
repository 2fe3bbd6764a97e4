package generate

import (
	"errors"
	"fmt"
	"slices"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/tensor"
)

// turn is what a step takes of a text: so many of its tokens, from done on.
type turn struct {
	*text
	rows int
}

// end says that the turn reaches the end of the text, so that a new token comes.
func (t turn) end() bool { return t.done+t.rows == len(t.tokens) }

// Step takes one step and gives the tokens that came, those of older requests
// first. Without requests it does nothing. After an error the texts are as
// before.
func (e *Engine) Step() ([]Token, error) {
	batch, err := e.schedule()
	if err != nil || len(batch) == 0 {
		return nil, err
	}
	batch, logits, err := e.forward(batch)
	if err != nil {
		return nil, err
	}
	out, err := e.choose(batch, logits)
	if err == nil {
		e.settle(batch, out)
	}
	return out, err
}

// schedule gives every running text a turn, the rest of the rows to the oldest
// of them that have a prompt to go through, and then to waiting texts.
func (e *Engine) schedule() (batch []turn, err error) {
	left := e.o.Rows
	for i := 0; i < len(e.running); i++ {
		t := e.running[i]
		rows := min(len(t.tokens)-t.done, left-(len(e.running)-1-i))
		if there, err := e.makeRoom(t, rows); err != nil {
			return nil, err
		} else if !there {
			break // t was the youngest
		}
		batch = append(batch, turn{t, rows})
		left -= rows
	}
	for len(e.waiting) > 0 && len(e.running) < e.o.Running && left > 0 {
		t := e.waiting[0]
		rows, err := e.admit(t, left)
		if err != nil {
			return nil, err
		}
		if rows == 0 {
			break
		}
		e.waiting, e.running = e.waiting[1:], append(e.running, t)
		batch = append(batch, turn{t, rows})
		left -= rows
	}
	return batch, nil
}

// makeRoom gives a running text pages for so many rows more, for which the
// youngest may lose theirs. It says whether t is still running.
func (e *Engine) makeRoom(t *text, rows int) (bool, error) {
	for {
		if there, err := e.grow(t, t.done+rows); there || err != nil {
			return there, err
		}
		if len(e.running) == 1 {
			return false, fmt.Errorf("generate: the device has no memory for the %d pages of a single text: %w", e.pages.need(t.done+rows), device.ErrOutOfMemory)
		}
		if e.preempt() == t {
			return false, nil
		}
	}
}

// grow gives t pages for n tokens, if there are any.
func (e *Engine) grow(t *text, n int) (bool, error) {
	for len(t.pages) < e.pages.need(n) {
		g, err := e.pages.take()
		if g == nil {
			return false, err
		}
		t.pages = append(t.pages, g)
	}
	return true, nil
}

// preempt makes the youngest running text wait, without its pages.
func (e *Engine) preempt() *text {
	last := len(e.running) - 1
	t := e.running[last]
	e.running = e.running[:last]
	e.waiting = slices.Insert(e.waiting, 0, t)
	e.leave(t)
	e.stats.Preemptions++
	return t
}

// admit gives a waiting text what the tree has of it and pages for its first
// rows, and says how many these are: 0 if it must wait on. It may take what is
// free or idle, as long as there is enough for all its tokens and the next, and
// beyond that a page for each running text that may want one.
func (e *Engine) admit(t *text, left int) (rows int, err error) {
	there, err := e.inherit(t)
	rows = min(len(t.tokens)-t.done, left)
	if there {
		there, err = e.grow(t, t.done+rows)
	}
	if there {
		e.stats.HitTokens += t.done
		return rows, nil
	}
	e.leave(t)
	if err == nil && len(e.running) == 0 {
		err = fmt.Errorf("generate: the device has no memory for the %d pages of a single text: %w", e.pages.need(t.done+rows), device.ErrOutOfMemory)
	}
	return 0, err
}

// inherit gives t what the tree has of it: pages to share, and a copy of one
// that it departs from. The last token is left to compute, since what comes
// after it is wanted. It says whether there is room for the rest.
func (e *Engine) inherit(t *text) (there bool, err error) {
	var part *page
	n := 0
	if !e.o.Alone {
		t.pages, part, n = e.pages.find(t.tokens[:len(t.tokens)-1])
		t.entered, t.done = len(t.pages), len(t.pages)*e.o.PageTokens
	}
	if part != nil {
		defer e.pages.drop(part)
	}
	if len(e.running) > 0 && e.pages.need(min(len(t.tokens)+1, e.longest(t.Request)))-len(t.pages)+e.growing() > e.pages.available() {
		return false, nil
	}
	if part == nil {
		return true, nil
	}
	c, err := e.pages.copyOf(part)
	if c != nil {
		t.pages, t.done = append(t.pages, c), n
	}
	return err == nil, err
}

// growing is the number of running texts that may want another page.
func (e *Engine) growing() (n int) {
	for _, t := range e.running {
		if len(t.pages) < e.pages.need(e.longest(t.Request)) {
			n++
		}
	}
	return n
}

// leave takes t's pages away. What the last one holds is entered in the tree.
func (e *Engine) leave(t *text) {
	if k := t.done / e.o.PageTokens; t.done%e.o.PageTokens > 0 && t.entered == k && !e.o.Alone {
		e.enter(t, t.done)
	}
	for _, g := range slices.Backward(t.pages) {
		e.pages.drop(g)
	}
	t.pages, t.done, t.entered = nil, 0, 0
}

// enter enters the next page of t, up to a token, in the tree.
func (e *Engine) enter(t *text, end int) {
	k, up := t.entered, &e.pages.root
	if k > 0 {
		up = t.pages[k-1]
	}
	t.pages[k] = e.pages.enter(up, t.pages[k], t.tokens[k*e.o.PageTokens:end])
	t.entered++
}

// forward runs a batch and gives the logits of the turns that end. If the step
// itself finds no memory, idle pages go, then the youngest texts, and the last
// one takes fewer rows.
func (e *Engine) forward(batch []turn) (_ []turn, logits []float32, err error) {
	for {
		tokens, positions, last, texts := rowsOf(batch)
		err = e.rt.Try(func() { logits = e.logits(tokens, positions, last, texts) })
		switch {
		case !errors.Is(err, device.ErrOutOfMemory):
			return batch, logits, err
		case e.pages.evict():
			for e.pages.evict() {
			}
		case len(e.running) > 1:
			t := e.preempt()
			batch = slices.DeleteFunc(batch, func(b turn) bool { return b.text == t })
		case batch[0].rows > 1:
			batch[0].rows /= 2
		default:
			return nil, nil, err
		}
	}
}

// rowsOf is the input of a batch: its tokens, their positions, the rows after
// which tokens come, and the texts.
func rowsOf(batch []turn) (tokens, positions, last []int32, texts []tensor.PagedText) {
	for _, t := range batch {
		tokens = append(tokens, t.tokens[t.done:t.done+t.rows]...)
		for i := range t.rows {
			positions = append(positions, int32(t.done+i))
		}
		if t.end() {
			last = append(last, int32(len(tokens)-1))
		}
		p := tensor.PagedText{Start: t.done, Rows: t.rows}
		for _, g := range t.pages {
			p.Pages = append(p.Pages, g.block.Ptr())
		}
		texts = append(texts, p)
	}
	return tokens, positions, last, texts
}

// choose gives the tokens that come after the turns that end.
func (e *Engine) choose(batch []turn, logits []float32) (out []Token, err error) {
	for _, t := range batch {
		if !t.end() {
			continue
		}
		next, err := t.choose(logits[:e.shape.Vocab], len(t.tokens))
		if err != nil {
			return nil, err
		}
		logits = logits[e.shape.Vocab:]
		out = append(out, Token{t.id, next, t.reason(next, e.shape.Context)})
	}
	return out, nil
}

// settle enters what a batch has computed, and the tokens that come, and lets
// texts go that have ended.
func (e *Engine) settle(batch []turn, came []Token) {
	e.stats.Generated += len(came)
	var ended []*text
	for _, t := range batch {
		if t.end() {
			t.tokens = append(t.tokens, came[0].Token)
			if came[0].End != "" {
				ended = append(ended, t.text)
			}
			came = came[1:]
		}
		t.done += t.rows
		e.stats.Computed += t.rows
		for !e.o.Alone && (t.entered+1)*e.o.PageTokens <= t.done {
			e.enter(t.text, (t.entered+1)*e.o.PageTokens)
		}
	}
	e.stats.note(e)
	for _, t := range ended {
		e.leave(t)
	}
	e.running = slices.DeleteFunc(e.running, func(t *text) bool { return slices.Contains(ended, t) })
}

// reason says why the text ends with a token, if it does.
func (t *text) reason(next int32, context int) Reason {
	switch {
	case slices.Contains(t.Stop, next):
		return Stopped
	case len(t.tokens)+1-len(t.Prompt) == t.MaxTokens:
		return Length
	case len(t.tokens) == context:
		return Context
	}
	return ""
}
