package alloc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/placement"
	"github.com/headroom-go/headroom/trace"
)

// Lifetime is a block of a program: Size bytes that are handed out at Start
// and taken back at End, in any unit of time. What ends at one time is taken
// back before something starts there.
type Lifetime struct {
	Size       uint64
	Start, End int
}

// MakePlan places the blocks, which are in the order of their requests, on
// pages of page bytes, a power of two. It looks for the fewest pages until ctx
// ends, which is no error, or nothing better is to be expected. It fails where blocks
// need more pages than a plan can have, which is 4 Mi.
func MakePlan(ctx context.Context, blocks []Lifetime, page uint64) (*Plan, error) {
	return makePlan(ctx, blocks, page, 0)
}

// makePlan is MakePlan with a bound on the solver's work, 0 for its default.
func makePlan(ctx context.Context, blocks []Lifetime, page uint64, work int) (*Plan, error) {
	if page < unit || page&(page-1) != 0 {
		return nil, fmt.Errorf("pages of %d bytes: that is no power of two of %d or more", page, unit)
	}
	for i, b := range blocks {
		if b.Size == 0 || b.Size > 1<<50 || b.End <= b.Start {
			return nil, fmt.Errorf("block %d of %d bytes from %d to %d: its size is 0 or absurd, or it ends before it starts", i, b.Size, b.Start, b.End)
		}
	}
	best, least, err := staticPlan(ctx, blocks, page, work)
	if err != nil {
		return nil, err
	}
	for _, backwards := range []bool{true, false} {
		if best.pages <= least || ctx.Err() != nil {
			break
		}
		p, err := rehearse(ctx, blocks, page, backwards)
		if err != nil {
			return nil, err
		}
		if p != nil && p.pages < best.pages {
			best = p
		}
	}
	return best, nil
}

// staticPlan places the blocks in one range, and gives the number of pages that
// no plan gets below.
func staticPlan(ctx context.Context, blocks []Lifetime, page uint64, work int) (*Plan, int, error) {
	buffers := make([]placement.Buffer, len(blocks))
	for i, b := range blocks {
		buffers[i] = placement.Buffer{Lower: b.Start, Upper: b.End, Size: roundUp(b.Size, unit)}
	}
	least := roundUp(placement.LowerBound(buffers), page)
	solved, err := placement.Solve(ctx, buffers, placement.Options{Align: unit, Capacity: least, Work: work})
	if conflict := (*placement.ConflictError)(nil); err != nil && !errors.As(err, &conflict) {
		return nil, 0, fmt.Errorf("placing %d blocks: %w", len(blocks), err)
	}
	p := &Plan{page: page, pages: int(roundUp(solved.Peak, page) / page), blocks: make([]plannedBlock, len(blocks))}
	if p.pages > maxPlanPages {
		return nil, 0, fmt.Errorf("the blocks need %d pages of %d bytes: a plan has at most %d", p.pages, page, maxPlanPages)
	}
	for i, b := range buffers {
		at := solved.Offsets[i]
		first := int(at / page)
		p.blocks[i] = plannedBlock{size: b.Size, offset: at % page, runs: []pageRun{{first, int((at+b.Size-1)/page) - first + 1}}}
	}
	return p, int(least / page), nil
}

// rehearse lets an allocator play the program on a null device and notes where
// it puts the blocks on pages of size bytes. It gives nil when ctx ends.
func rehearse(ctx context.Context, blocks []Lifetime, size uint64, backwards bool) (*Plan, error) {
	dev, err := device.OpenNull(device.NullOptions{Capacity: 1 << 46, Granularity: size, Virtual: true, Alias: true})
	if err != nil {
		return nil, err
	}
	r := rehearsal{plan: &Plan{page: size, blocks: make([]plannedBlock, len(blocks))}, live: make([]*Block, len(blocks)), number: map[*page]int{}}
	if r.stream, err = dev.NewStream(); err != nil {
		return nil, err
	}
	if r.a, err = New(dev, Options{}); err != nil {
		return nil, err
	}
	for i, e := range moments(blocks, backwards) {
		if i%1024 == 0 && ctx.Err() != nil {
			return nil, nil
		}
		if err := r.play(blocks, e); err != nil {
			return nil, err
		}
	}
	r.plan.pages = len(r.number)
	return r.plan, nil
}

// moment is the start or the end of a block.
type moment struct {
	time, block int
	start       bool
}

// moments lists the starts and ends in their order, or in the reverse order
// with their roles exchanged.
func moments(blocks []Lifetime, backwards bool) []moment {
	list := make([]moment, 0, 2*len(blocks))
	for i, b := range blocks {
		list = append(list, moment{b.Start, i, true}, moment{b.End, i, false})
	}
	slices.SortStableFunc(list, func(x, y moment) int {
		if c := cmp.Compare(x.time, y.time); c != 0 || x.start == y.start {
			return c
		}
		if x.start {
			return 1
		}
		return -1
	})
	if backwards {
		slices.Reverse(list)
		for i := range list {
			list[i].start = !list[i].start
		}
	}
	return list
}

// rehearsal is a program played for a plan.
type rehearsal struct {
	a      *Allocator
	stream device.Stream
	plan   *Plan
	live   []*Block
	number map[*page]int // of the pages in the plan
}

func (r *rehearsal) play(blocks []Lifetime, m moment) error {
	if !m.start {
		r.live[m.block].Free()
		return nil
	}
	b, err := r.a.Alloc(blocks[m.block].Size, trace.Other, r.stream)
	if err != nil {
		return err
	}
	r.live[m.block] = b
	r.plan.blocks[m.block] = r.place(b)
	return nil
}

// place says on which pages a block lies.
func (r *rehearsal) place(b *Block) plannedBlock {
	planned := plannedBlock{size: b.size}
	pages, offset := b.pages()
	planned.offset = offset
	for _, p := range pages {
		n, known := r.number[p]
		if !known {
			n = len(r.number)
			r.number[p] = n
		}
		if last := len(planned.runs) - 1; last >= 0 && planned.runs[last].first+planned.runs[last].n == n {
			planned.runs[last].n++
			continue
		}
		planned.runs = append(planned.runs, pageRun{n, 1})
	}
	return planned
}
