// Plans.
//
// A training step repeats. If it is known beforehand when each of its blocks is
// handed out and taken back, all can be placed at once, better than any rule
// can that sees one request at a time (Robson, An Estimate of the Store Size
// Necessary for Dynamic Storage Allocation, 1971, has the bounds).
//
// A plan says for each request, in their order, on which of its pages the
// block lies. Two ways lead to one, and the better is taken (planner.go):
//
//	static    offsets in one range, found by a solver. Nearly always at the
//	          bound, and nothing is ever mapped twice.
//	stitched  the allocator itself plays the program on a null device, in the
//	          order of time or against it: a placement is as valid when time
//	          runs backwards, and blocks that grow step by step, which leave
//	          holes that are always a little too small, then shrink.
//
// An allocator that follows a plan (planned.go) gives each request its bytes if
// they are free, whatever else goes on; where the program departs from the
// plan, requests are served as without one. So a wrong plan costs memory and
// never correctness.

package alloc

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Plan says where the blocks of a repeating sequence of requests lie. It is
// not changed by its use and may serve several allocators.
type Plan struct {
	page   uint64 // bytes
	pages  int
	blocks []plannedBlock
}

// plannedBlock is where one request lies.
type plannedBlock struct {
	size   uint64 // a multiple of unit
	offset uint64 // in the first page
	runs   []pageRun
}

// pageRun is neighbouring pages of a plan.
type pageRun struct{ first, n int }

// Pages is the number of pages that the plan needs, and their size in bytes.
func (p *Plan) Pages() (n int, size uint64) { return p.pages, p.page }

// Requests is the number of requests.
func (p *Plan) Requests() int { return len(p.blocks) }

// planFile is a plan as JSON: blocks are [size, offset, first page, number of
// pages, …].
type planFile struct {
	Format  string     `json:"format"`
	Version int        `json:"version"`
	Page    uint64     `json:"page_bytes"`
	Pages   int        `json:"pages"`
	Blocks  [][]uint64 `json:"blocks"`
}

const (
	planFormat = "headroom-plan"
	// maxPlanPages bounds what a plan, whose blocks may be a stranger's, can make an
	// allocator set up.
	maxPlanPages = 1 << 22
)

// Write writes the plan as JSON, for ReadPlan.
func (p *Plan) Write(w io.Writer) error {
	f := planFile{Format: planFormat, Version: 1, Page: p.page, Pages: p.pages, Blocks: make([][]uint64, len(p.blocks))}
	for i, b := range p.blocks {
		f.Blocks[i] = append(f.Blocks[i], b.size, b.offset)
		for _, r := range b.runs {
			f.Blocks[i] = append(f.Blocks[i], uint64(r.first), uint64(r.n))
		}
	}
	return json.NewEncoder(w).Encode(f)
}

// ReadPlan reads what Write wrote. The content is not trusted: an error says
// what is wrong with it.
func ReadPlan(r io.Reader) (*Plan, error) {
	var f planFile
	if err := json.NewDecoder(r).Decode(&f); err != nil {
		return nil, fmt.Errorf("reading a plan: %w", err)
	}
	if f.Format != planFormat || f.Version != 1 {
		return nil, fmt.Errorf("reading a plan: format %q version %d is not %s version 1", f.Format, f.Version, planFormat)
	}
	if f.Page < unit || f.Page&(f.Page-1) != 0 || f.Page > 1<<40 || f.Pages < 0 || f.Pages > maxPlanPages {
		return nil, fmt.Errorf("reading a plan: %d pages of %d bytes", f.Pages, f.Page)
	}
	p := &Plan{page: f.Page, pages: f.Pages, blocks: make([]plannedBlock, len(f.Blocks))}
	for i, numbers := range f.Blocks {
		if err := p.blocks[i].parse(p, numbers); err != nil {
			return nil, fmt.Errorf("reading a plan: request %d: %w", i, err)
		}
	}
	return p, nil
}

// parse fills b with numbers of a file.
func (b *plannedBlock) parse(p *Plan, numbers []uint64) error {
	if len(numbers) < 4 || len(numbers)%2 != 0 {
		return fmt.Errorf("%d numbers, which are no size, offset and pages", len(numbers))
	}
	b.size, b.offset = numbers[0], numbers[1]
	var n uint64
	for i := 2; i < len(numbers); i += 2 {
		first, count := numbers[i], numbers[i+1]
		if count == 0 || count > uint64(p.pages) || first > uint64(p.pages)-count {
			return fmt.Errorf("%d pages from %d on are not among %d", count, first, p.pages)
		}
		b.runs = append(b.runs, pageRun{int(first), int(count)})
		n += count
	}
	if err := b.checkApart(p); err != nil {
		return err
	}
	if b.size == 0 || (b.size|b.offset)%unit != 0 || b.offset >= p.page || n > maxPlanPages || b.size > n*p.page || n != (b.offset+b.size+p.page-1)/p.page {
		return fmt.Errorf("%d bytes at %d do not fill %d pages", b.size, b.offset, n)
	}
	return nil
}

// checkApart finds bytes of a page that b would lie on twice. The end and the
// beginning of one page are apart.
func (b *plannedBlock) checkApart(p *Plan) error {
	type bytes struct{ from, to uint64 }
	var list []bytes
	left, offset := b.size, b.offset
	for _, r := range b.runs {
		from := uint64(r.first)*p.page + offset
		n := min(left, uint64(r.n)*p.page-min(offset, uint64(r.n)*p.page))
		list = append(list, bytes{from, from + n})
		left, offset = left-n, 0
	}
	slices.SortFunc(list, func(x, y bytes) int { return cmp.Compare(x.from, y.from) })
	for i := 1; i < len(list); i++ {
		if list[i].from < list[i-1].to {
			return fmt.Errorf("it lies twice on page %d", list[i].from/p.page)
		}
	}
	return nil
}

// errPlan says that a plan is not for this device.
var errPlan = errors.New("the plan is for other pages than the device's")
