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
	s := &a.stats
	s.Live, s.Pending, s.Requested, s.Blocks = 0, 0, 0, 0
	for p := range s.ByPurpose {
		s.ByPurpose[p].Live = 0
	}
	a.segments, a.pending, a.unused, a.scratch, a.pools = nil, nil, nil, nil, nil
}

// leakSites is the number of places of allocation that a leak report names.
const leakSites = 10

// leaks gives an error that names the live blocks, or nil.
func (a *Allocator) leaks() error {
	if a.stats.Blocks == 0 {
		return nil
	}
	var s strings.Builder
	fmt.Fprintf(&s, "%d blocks of %s are still live:", a.stats.Blocks, size.Format(a.stats.Live))
	for p, n := range a.stats.LiveByPurpose() {
		if n > 0 {
			fmt.Fprintf(&s, " %s %s", trace.Purpose(p), size.Format(n))
		}
	}
	for _, site := range a.sites(leakSites) {
		fmt.Fprintf(&s, "\n\t%s", site)
	}
	return errors.New(s.String())
}

// Site is what is live of one purpose from one place.
type Site struct {
	Purpose trace.Purpose
	Stack   *trace.Stack // of the allocations
	Blocks  int
	Bytes   uint64
}

// String says what is live and from where.
func (s Site) String() string {
	return fmt.Sprintf("%d blocks of %s, %s, from%s", s.Blocks, size.Format(s.Bytes), s.Purpose, place(s.Stack))
}

// sites lists the n places whose live blocks hold most bytes, of those whose
// stacks were recorded.
func (a *Allocator) sites(n int) []Site {
	var list []Site
	index := map[Site]int{}
	for b := range a.liveBlocks {
		if b.stack == nil {
			continue
		}
		key := Site{Purpose: b.purpose, Stack: b.stack}
		i, known := index[key]
		if !known {
			i = len(list)
			index[key] = i
			list = append(list, key)
		}
		list[i].Blocks++
		list[i].Bytes += b.size
	}
	slices.SortFunc(list, func(x, y Site) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(y.Blocks, x.Blocks), cmp.Compare(x.Purpose, y.Purpose), strings.Compare(place(x.Stack), place(y.Stack)))
	})
	return list[:min(n, len(list))]
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

// place writes the innermost lines of a stack.
func place(stack *trace.Stack) string {
	var s strings.Builder
	for i, f := range stack.Frames() {
		if i == 3 {
			break
		}
		fmt.Fprintf(&s, " %s (%s:%d)", f.Func, f.File, f.Line)
	}
	return s.String()
}
