package alloc

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/trace"
)

// Close waits for all work that was queued on the allocator's streams and
// gives all memory and addresses back to the device. If blocks are still live
// the error names them by purpose and, where stacks were recorded, by the
// place of their allocation; their memory is gone all the same. Streams and
// device must still be open. Close of a closed allocator does nothing.
func (a *Allocator) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil
	}
	a.closed = true
	for _, s := range a.streams {
		if s != nil {
			s.dev.Record().Sync()
		}
	}
	leaks := a.leaks()
	err := a.source.close()
	a.bury()
	return errors.Join(leaks, err)
}

// bury makes all blocks dead, so that a late Free is noticed.
func (a *Allocator) bury() {
	for _, seg := range a.segments {
		for b := seg.first; b != nil; b = b.next {
			b.state, b.seg = dead, nil
		}
	}
	a.segments, a.pending, a.unused, a.scratch, a.pools = nil, nil, nil, nil, [2]pool{}
}

// leakSites is the number of places of allocation that a leak report names.
const leakSites = 10

// leak is what is live of one purpose from one place.
type leak struct {
	purpose trace.Purpose
	stack   *trace.Stack
	blocks  int
	bytes   uint64
}

// leaks gives an error that names the live blocks, or nil.
func (a *Allocator) leaks() error {
	if a.stats.Blocks == 0 {
		return nil
	}
	list := a.live()
	var s strings.Builder
	fmt.Fprintf(&s, "%d blocks of %s are still live:", a.stats.Blocks, size.Format(a.stats.Live))
	for p, n := range a.stats.LiveByPurpose() {
		if n > 0 {
			fmt.Fprintf(&s, " %s %s", trace.Purpose(p), size.Format(n))
		}
	}
	for i, l := range list {
		if i == leakSites {
			fmt.Fprintf(&s, "\n\tand %d more places", len(list)-i)
			break
		}
		if l.stack != nil {
			fmt.Fprintf(&s, "\n\t%d blocks of %s, %s, from%s", l.blocks, size.Format(l.bytes), l.purpose, site(l.stack))
		}
	}
	return errors.New(s.String())
}

// live lists the live blocks by purpose and place, the most bytes first.
func (a *Allocator) live() []*leak {
	var list []*leak
	index := map[leak]*leak{}
	for b := range a.liveBlocks {
		key := leak{purpose: b.purpose, stack: b.stack}
		l := index[key]
		if l == nil {
			l = &leak{purpose: b.purpose, stack: b.stack}
			index[key] = l
			list = append(list, l)
		}
		l.blocks++
		l.bytes += b.size
	}
	slices.SortStableFunc(list, func(x, y *leak) int { return cmp.Compare(y.bytes, x.bytes) })
	return list
}

// liveBlocks gives the live blocks, in no order.
func (a *Allocator) liveBlocks(yield func(*Block) bool) {
	for _, seg := range a.segments {
		for b := seg.first; b != nil; b = b.next {
			if b.state == live && !yield(b) {
				return
			}
		}
	}
	for w := range a.views.all {
		if w.block.state == live && !yield(&w.block) {
			return
		}
	}
}

// site writes the innermost lines of a stack.
func site(stack *trace.Stack) string {
	var s strings.Builder
	for i, f := range stack.Frames() {
		if i == 3 {
			break
		}
		fmt.Fprintf(&s, " %s (%s:%d)", f.Func, f.File, f.Line)
	}
	return s.String()
}
