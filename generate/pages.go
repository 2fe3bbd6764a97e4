package generate

import (
	"container/list"
	"errors"
	"fmt"
	"slices"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// page is memory for the keys and values of some tokens in a row, in all
// layers. Once it is full, or its text has ended, it is a node of the tree of
// prefixes: the tokens from the root to it are those that its content depends
// on. A page in the tree is never written again.
type page struct {
	block *alloc.Block
	users int // texts that it is a page of

	parent *page // nil: it is not in the tree
	next   []*page
	tokens []int32       // what it holds, as many as a page has room for if it has a next
	idle   *list.Element // its place among the idle pages; nil while it has users
}

// pages is the pool. Every page is used by texts, or idle:
//
//	held = pages with users + idle ≤ limit
//
// Idle pages are kept for texts that begin like the ones they came from. They
// are in the order in which they lost their last user; a text gives its pages
// back from the last to the first, so that a page comes before the one that it
// continues, and the first idle page has no next.
type pages struct {
	mem    *alloc.Pool
	stream device.Stream
	layout tensor.PageLayout
	limit  int

	root    page
	held    int
	idle    list.List
	evicted int
}

// take gives a page with one user and no content, or nil if there is none.
func (p *pages) take() (*page, error) {
	for {
		if p.held < p.limit {
			b, err := p.mem.Alloc(p.layout.Bytes(), trace.Activation, p.stream)
			if err == nil {
				p.held++
				return &page{block: b, users: 1}, nil
			}
			if !errors.Is(err, device.ErrOutOfMemory) {
				return nil, err
			}
		}
		if !p.evict() {
			return nil, nil
		}
	}
}

// evict frees the page that has been idle longest, if any is.
func (p *pages) evict() bool {
	e := p.idle.Front()
	if e == nil {
		return false
	}
	g := p.idle.Remove(e).(*page)
	if len(g.next) > 0 {
		panic(fmt.Sprintf("generate: a page that %d others continue is idle longer than they", len(g.next)))
	}
	up := g.parent
	up.next = slices.Delete(up.next, slices.Index(up.next, g), slices.Index(up.next, g)+1)
	p.evicted++
	p.free(g)
	return true
}

func (p *pages) free(g *page) {
	g.block.Free()
	p.held--
}

// use adds a user.
func (p *pages) use(g *page) {
	g.users++
	if g.idle != nil {
		p.idle.Remove(g.idle)
		g.idle = nil
	}
}

// drop takes a user away.
func (p *pages) drop(g *page) {
	g.users--
	switch {
	case g.users > 0:
	case g.parent == nil:
		p.free(g)
	default:
		g.idle = p.idle.PushBack(g)
	}
}

// closest gives the page after g that has most tokens in common with the
// beginning of tokens, the oldest of several, and how many.
func (g *page) closest(tokens []int32) (best *page, common int) {
	for _, c := range g.next {
		n := 0
		for n < len(c.tokens) && n < len(tokens) && c.tokens[n] == tokens[n] {
			n++
		}
		if n > common {
			best, common = c, n
		}
	}
	return best, common
}

// find gives the whole pages that hold the beginning of tokens and, in part, if
// not nil, the next few tokens; n are found in all. The pages get a user more.
func (p *pages) find(tokens []int32) (whole []*page, part *page, n int) {
	at := &p.root
	for {
		g, common := at.closest(tokens[n:])
		n += common
		if g != nil {
			p.use(g)
		}
		if common < p.layout.Tokens {
			return whole, g, n
		}
		whole, at = append(whole, g), g
	}
}

// enter makes g the page that holds tokens after those of up. If there is such a
// page already, g loses its user to it.
func (p *pages) enter(up, g *page, tokens []int32) *page {
	if same, common := up.closest(tokens); common == len(tokens) {
		p.use(same)
		p.drop(g)
		return same
	}
	g.parent, g.tokens = up, slices.Clone(tokens)
	up.next = append(up.next, g)
	return g
}

// copyOf gives a page with the content of g, or nil if there is none.
func (p *pages) copyOf(g *page) (*page, error) {
	c, err := p.take()
	if c != nil {
		p.stream.Copy(c.block.Ptr(), g.block.Ptr(), p.layout.Bytes())
	}
	return c, err
}

// available is how many pages can be taken without a text losing any, if the
// device has the memory.
func (p *pages) available() int { return p.limit - p.held + p.idle.Len() }

// need is how many pages n tokens take.
func (p *pages) need(n int) int { return (n + p.layout.Tokens - 1) / p.layout.Tokens }
