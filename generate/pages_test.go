package generate

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
)

// recount checks the books of an engine between two steps.
func recount(t *testing.T, e *Engine) {
	t.Helper()
	users := map[*page]int{}
	for _, x := range e.running {
		for i, g := range x.pages {
			users[g]++
			at := i * e.o.PageTokens
			if i < x.entered != (g.parent != nil) || g.parent != nil && !slices.Equal(g.tokens, x.tokens[at:at+e.o.PageTokens]) {
				t.Fatalf("page %d of text %d, of which %d are entered, has tokens %v in the tree", i, x.id, x.entered, g.tokens)
			}
		}
		if len(x.pages) != e.pages.need(x.done) {
			t.Fatalf("text %d has %d pages for %d tokens", x.id, len(x.pages), x.done)
		}
	}
	nodes := 0
	var walk func(g *page)
	walk = func(g *page) {
		for i, c := range g.next {
			nodes++
			if c.parent != g || c.users != users[c] || (c.idle != nil) != (c.users == 0) || c.users > g.users && g.parent != nil {
				t.Fatalf("a page of the tree with %d users, %d by count (idle: %v), below one with %d", c.users, users[c], c.idle != nil, g.users)
			}
			if len(g.tokens) < e.o.PageTokens && g.parent != nil {
				t.Fatalf("a page with %d of %d tokens is continued", len(g.tokens), e.o.PageTokens)
			}
			for _, other := range g.next[:i] {
				if slices.Equal(other.tokens, c.tokens) {
					t.Fatalf("tokens %v are twice below a page", c.tokens)
				}
			}
			delete(users, c)
			walk(c)
		}
	}
	walk(&e.pages.root)
	if held := nodes + len(users); held != e.pages.held || held > e.pages.limit {
		t.Fatalf("%d pages in the tree and %d beside it, %d held of %d", nodes, len(users), e.pages.held, e.pages.limit)
	}
	if s := e.mem.Stats(); s.Blocks != uint64(e.pages.held) {
		t.Fatalf("%d blocks for %d pages", s.Blocks, e.pages.held)
	}
}

// TestBooks plays random requests with few pages and recounts after each step.
func TestBooks(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	dev, err := device.Open("null:64MiB")
	if err != nil {
		t.Fatal(err)
	}
	mem, _ := alloc.New(dev, alloc.Options{})
	stream, _ := dev.NewStream()
	m := nn.NewGPT2(tensor.New(mem, stream), nn.GPT2Config{Vocab: 3, Context: 40, Width: 2, Layers: 1, Heads: 1}, 1)
	for range 10 {
		o := Options{PageTokens: 1 + r.IntN(6), Rows: 1 + r.IntN(30)}
		o.Pages = (40+o.PageTokens-1)/o.PageTokens + r.IntN(20)
		e, err := New(m.WTE.Runtime(), GPT2(m), o)
		if err != nil {
			t.Fatal(err)
		}
		for left := 20; left > 0 || len(e.waiting)+len(e.running) > 0; {
			if left > 0 && r.IntN(3) == 0 {
				left--
				prompt := make([]int32, 1+r.IntN(20))
				for i := range prompt {
					prompt[i] = int32(r.IntN(8) / 7) // many begin alike
				}
				if _, err := e.Add(Request{Prompt: prompt, MaxTokens: 1 + r.IntN(20)}); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := e.Step(); err != nil {
				t.Fatal(err)
			}
			recount(t, e)
		}
		e.Close()
	}
	nn.Release(m)
	if err := mem.Close(); err != nil {
		t.Error(err)
	}
	if err := stream.Close(); err != nil {
		t.Error(err)
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}
