package alloc

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/trace"
)

// model is the slow twin of an allocator: the list of live blocks and of the
// memory that each of them has had from the beginning.
type model struct {
	t      testing.TB
	dev    *lagging
	flaky  *flaky // between the allocator and dev
	a      *Allocator
	page   uint64 // 0 without virtual memory
	limit  uint64
	live   []*Block
	users  map[*Block][]*lagStream
	memory map[*Block][]interval // physical
	pools  []*Pool
	owner  map[*Block]*Pool
	freed  uint64         // size of the last block that was
	seen   map[string]int // what happened how often
}

// play lets an allocator and its model do what data says: each operation is
// two bytes, what and with what.
func play(t testing.TB, data []byte) *model {
	m := newModel(t, data, 0)
	for data = data[min(2, len(data)):]; len(data) >= 2; data = data[2:] {
		m.step(data[0], int(data[1]))
		m.check()
	}
	return m
}

// newModel opens a device, of which every nth call fails, and an allocator of
// the kind that the first two bytes say.
func newModel(t testing.TB, data []byte, nth int) *model {
	kind, limit := byte(0), uint64(0)
	if len(data) >= 2 {
		kind, limit = data[0], uint64(data[1]%16)<<20
	}
	o := device.NullOptions{Capacity: 16 << 20, Virtual: kind%4 != 0, Alias: kind%4 > 1, Granularity: 64 << 10 << (kind / 4 % 6)}
	m := &model{t: t, dev: newLagging(t, o), limit: o.Capacity, users: map[*Block][]*lagStream{}, memory: map[*Block][]interval{}, owner: map[*Block]*Pool{}, seen: map[string]int{}}
	if o.Virtual {
		m.page = o.Granularity
	}
	if limit > 0 {
		m.limit = limit
	}
	m.flaky = &flaky{Device: m.dev, nth: nth, err: errInjected}
	var err error
	if m.a, err = New(m.flaky, Options{Limit: limit}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := m.dev.NewStream(); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func (m *model) stream(arg int) *lagStream { return m.dev.streams[arg%len(m.dev.streams)] }

func (m *model) step(what byte, arg int) {
	switch what % 8 {
	case 0, 1, 2:
		m.alloc(m.size(what/8, arg), m.stream(arg), nil)
	case 3, 4:
		if len(m.live) > 0 {
			m.free(arg % len(m.live))
		}
	case 5:
		if len(m.live) > 0 && what/8%2 == 0 {
			m.free(arg % len(m.live))
		} else if len(m.live) > 0 {
			b, s := m.live[arg%len(m.live)], m.stream(arg/16)
			b.Use(s)
			m.users[b] = append(m.users[b], s)
			m.dev.share(s, b.addr, b.end())
		}
	case 6:
		m.stream(arg).advance(arg / 8)
	case 7:
		m.seldom(what/8, arg)
	}
}

// seldom does what programs do seldom.
func (m *model) seldom(what byte, arg int) {
	switch {
	case what < 5:
		m.trim(uint64(arg) % 2 * m.limit / 4)
	case what < 6:
		m.reserve(m.limit / 256 * uint64(arg))
	case what == 6:
		m.follow(arg)
	case what == 7:
		m.compact(arg)
	case what < 10 && len(m.pools) < 3:
		m.pools = append(m.pools, m.a.NewPool(PoolOptions{Keep: what == 9}))
	case what < 10:
		m.destroy(arg % len(m.pools))
	case what < 13:
		if err := m.a.Step(); err != nil {
			m.t.Fatal(err)
		}
	case len(m.pools) > 0:
		m.alloc(m.size(what, arg), m.stream(arg), m.pools[arg/8%len(m.pools)])
	}
}

// size gives sizes of every kind: tiny, small, odd, whole pages, half pages,
// what the plan or an earlier step has next. Some come again and again.
func (m *model) size(kind byte, arg int) uint64 {
	n, page := uint64(arg)+1, max(m.page, 64<<10)
	if p := m.a.planned; p != nil && kind%2 == 1 && p.next < len(p.plan.blocks) {
		return p.plan.blocks[p.next].size
	}
	if t := m.a.steps.last; t != nil && t.next != nil && arg%2 == 1 {
		return t.next.size
	}
	switch kind % 8 {
	case 0:
		return n
	case 1:
		return n * 512
	case 2:
		return n * 7777
	case 3:
		return page * (n % 8)
	case 4:
		return n << 14
	case 5:
		return n << 16
	case 6:
		return page / 2 * (n % 12)
	}
	return m.freed
}

func (m *model) alloc(n uint64, s *lagStream, from *Pool) {
	n = max(n, 1)
	before, faults, left, planned := m.a.Stats(), m.flaky.faults, m.left(), m.a.planned != nil
	give := m.a.Alloc
	if from != nil {
		give = from.Alloc
	}
	b, err := give(n, trace.Purpose(n%uint64(trace.NumPurposes)), s)
	if err != nil {
		m.failed(n, left, before, err, m.flaky.faults-faults, planned)
		return
	}
	if b.Size() != n || b.size < n || b.size >= n+512 || uint64(b.Ptr()) != b.addr || b.Purpose() != trace.Purpose(n%uint64(trace.NumPurposes)) {
		m.t.Fatalf("block of %d bytes is %d at %#x, %d inside", n, b.Size(), b.Ptr(), b.size)
	}
	memory, ok := m.dev.physical(b.addr, b.end())
	if !ok {
		m.t.Fatalf("block %#x-%#x is not on memory alone", b.addr, b.end())
	}
	m.live = append(m.live, b)
	m.memory[b], m.owner[b] = memory, from
	m.note(b, memory)
	m.dev.touch(s, b.addr, b.end())
}

// note counts what is remarkable about a new block.
func (m *model) note(b *Block, memory []interval) {
	if b.view == nil {
		return
	}
	m.seen["view"]++
	first, last := memory[0], memory[len(memory)-1]
	if len(memory) > 1 && first.from/m.page == (last.to-1)/m.page {
		m.seen["view of both ends of one page"]++
	}
	if b.size <= smallMax {
		m.seen["view of a small block"]++
	}
	if b.view.pool.private {
		m.seen["view of a plan"]++
	}
	for _, p := range b.view.pages {
		if p.seg.pool != m.a.pools[1] {
			m.seen["view of another pool's pages"]++
			break
		}
	}
}

// failed checks that a request failed rightly: that no memory was left for it
// or so many driver calls failed meanwhile, and that nothing has changed. Where
// a plan was followed it was given up, and pages may have been taken for it.
func (m *model) failed(n, left uint64, before Stats, err error, faults int, planned bool) {
	var oom *OutOfMemoryError
	if short := errors.As(err, &oom) && errors.Is(err, device.ErrOutOfMemory); !short && !errors.Is(err, errInjected) || faults == 0 && errors.Is(err, errInjected) {
		m.t.Fatalf("Alloc(%d), in which %d calls failed: %v", n, faults, err)
	}
	after := m.a.Stats()
	if after.Live != before.Live || after.Blocks != before.Blocks || m.page > 0 && faults < 2 && !planned && after.Reserved != before.Reserved {
		m.t.Fatalf("a failed request of %d bytes, in which %d calls failed (%v), changed the figures from %+v to %+v", n, faults, err, before, after)
	}
	m.seen["failed"]++
	if need := roundUp(n, 512); faults == 0 && left >= need {
		m.t.Fatalf("Alloc(%d) failed while %d bytes were left: %v", n, left, err)
	}
}

// left is the memory that could be given to a block whatever the addresses:
// the limit without what is occupied.
func (m *model) left() uint64 {
	left := m.limit
	if m.page > 0 {
		left = roundDown(left, m.page)
	}
	return left - min(left, m.occupied(m.live))
}

// occupied is the memory that only blocks can have been given for: the pages
// that they touch, and those kept for pools; without virtual memory, the
// segments that hold them.
func (m *model) occupied(blocks []*Block) uint64 {
	used := map[uint64]uint64{} // by handle or segment
	for _, b := range blocks {
		if m.page == 0 {
			used[b.seg.base] = b.seg.size
			continue
		}
		memory, _ := m.dev.physical(b.addr, b.end())
		for _, part := range memory {
			for p := part.from / m.page; p <= (part.to-1)/m.page; p++ {
				used[p] = m.page
			}
		}
	}
	for _, seg := range m.a.segments {
		if !seg.pool.keep {
			continue
		}
		if m.page == 0 {
			used[seg.base] = seg.size
		}
		for _, p := range seg.pages {
			if p != nil {
				used[uint64(p.handle)] = m.page
			}
		}
	}
	var sum uint64
	for _, n := range used {
		sum += n
	}
	return sum
}

func (m *model) free(i int) {
	b := m.live[i]
	m.freed = b.Size()
	m.forget(i)
	b.Free()
	if b.view != nil && b.state == pending {
		m.seen["view pending"]++
	}
}

// forget queues the last work on a live block and strikes it off.
func (m *model) forget(i int) {
	b := m.live[i]
	m.live = slices.Delete(m.live, i, i+1)
	m.dev.share(m.dev.streams[b.stream.id], b.addr, b.end())
	for _, s := range m.users[b] {
		m.dev.share(s, b.addr, b.end())
	}
	delete(m.users, b)
	delete(m.memory, b)
	delete(m.owner, b)
}

// destroy ends a pool, which frees its blocks.
func (m *model) destroy(i int) {
	p := m.pools[i]
	m.pools = slices.Delete(m.pools, i, i+1)
	for j := len(m.live) - 1; j >= 0; j-- {
		if m.owner[m.live[j]] == p {
			m.forget(j)
			m.seen["block freed with its pool"]++
		}
	}
	p.Destroy()
}

// follow lets the allocator follow a plan of random places, or none.
func (m *model) follow(arg int) {
	r, page := rand.New(rand.NewPCG(uint64(arg), 2)), max(m.page, 64<<10)
	p := &Plan{page: page, pages: 8}
	for range 10 {
		n := 1 + r.IntN(3)
		b := plannedBlock{offset: unit * r.Uint64N(page/unit)}
		b.size = uint64(n)*page - b.offset
		if cut := unit * r.Uint64N(page/unit); cut < b.size {
			b.size -= cut
		}
		for _, first := range r.Perm(p.pages)[:n] {
			b.runs = append(b.runs, pageRun{first, 1})
		}
		p.blocks = append(p.blocks, b)
	}
	if arg%4 == 0 {
		p = nil
	}
	faults := m.flaky.faults
	if err := m.a.Follow(p); err != nil && m.page > 0 && m.flaky.faults == faults {
		m.t.Fatal(err)
	}
}

// compact lets two of three blocks move.
func (m *model) compact(arg int) {
	var movable []*Block
	for i, b := range m.live {
		if (i+arg)%3 > 0 {
			movable = append(movable, b)
			for _, s := range m.users[b] {
				m.dev.share(s, b.addr, b.end())
			}
		}
	}
	for _, move := range m.a.Compact(movable) {
		i, to := slices.Index(m.live, move.From), move.To
		if i < 0 || !slices.Contains(movable, move.From) || slices.Contains(m.live, to) || to.Size() == 0 {
			m.t.Fatalf("Compact moved %+v to %+v", move.From, to)
		}
		delete(m.users, move.From)
		delete(m.memory, move.From)
		m.live[i], m.owner[to] = to, nil
		m.memory[to], _ = m.dev.physical(to.addr, to.end())
		m.seen["compacted"]++
	}
}

func (m *model) reserve(n uint64) {
	before, faults := m.a.Stats().Reserved, m.flaky.faults
	err := m.a.Reserve(n)
	after := m.a.Stats().Reserved
	if faults = m.flaky.faults - faults; faults == 0 && err == nil && after < n || err != nil && faults < 2 && after != before || faults == 0 && err != nil && roundUp(n, max(m.page, plainUnit)) <= m.limit {
		m.t.Fatalf("Reserve(%d), in which %d calls failed: %v; %d are reserved, were %d", n, faults, err, after, before)
	}
}

func (m *model) trim(keep uint64) {
	before, faults := m.a.Stats(), m.flaky.faults
	freed, err := m.a.Trim(keep)
	after := m.a.Stats()
	if err != nil && m.flaky.faults == faults || after.Reserved+freed != before.Reserved || after.Live != before.Live {
		m.t.Fatalf("Trim(%d) = %d, %v: reserved from %d to %d", keep, freed, err, before.Reserved, after.Reserved)
	}
	if err != nil || m.page == 0 {
		return
	}
	occupied := m.occupied(slices.Concat(m.live, m.a.pending))
	if want := min(before.Reserved, max(occupied, roundDown(keep, m.page))); after.Reserved != want {
		m.t.Fatalf("after Trim(%d) %d bytes are reserved, want %d: the pages of blocks have %d", keep, after.Reserved, want, occupied)
	}
}

// check compares the allocator with its own equations and with the model.
func (m *model) check() {
	if m.dev.err != nil {
		m.t.Fatal(m.dev.err)
	}
	if err := m.a.Check(); err != nil {
		m.t.Fatal(err)
	}
	m.checkMemory()
	var live, requested uint64
	var by PurposeBytes
	for _, b := range m.live {
		live += b.size
		requested += b.Size()
		by[b.Purpose()] += b.size
	}
	s := m.a.Stats()
	if s.Live != live || s.Requested != requested || s.LiveByPurpose() != by || s.Blocks != uint64(len(m.live)) {
		m.t.Fatalf("live %d requested %d by purpose %v blocks %d, want %d %d %v %d", s.Live, s.Requested, s.LiveByPurpose(), s.Blocks, live, requested, by, len(m.live))
	}
	if s.Reserved > m.limit || s.PeakLive < live || s.Live+s.Pending+s.Cached != s.Reserved {
		m.t.Fatalf("limit %d, figures %+v", m.limit, s)
	}
}

// checkMemory checks that every live block still has the memory that it was
// given, that no byte is in two live or pending blocks, and that the device
// holds what the figures say.
func (m *model) checkMemory() {
	var all []interval
	for _, b := range slices.Concat(m.live, m.a.pending) {
		memory, ok := m.dev.physical(b.addr, b.end())
		if given := m.memory[b]; !ok || given != nil && !slices.Equal(memory, given) {
			m.t.Fatalf("block %#x-%#x is on memory %v, was given %v", b.addr, b.end(), memory, given)
		}
		all = append(all, memory...)
	}
	slices.SortFunc(all, func(x, y interval) int { return cmp.Compare(x.from, y.from) })
	for i := 1; i < len(all); i++ {
		if all[i-1].overlaps(all[i]) {
			m.t.Fatalf("memory %v and %v belongs to two blocks", all[i-1], all[i])
		}
	}
	s := m.a.Stats()
	held, mapped := uint64(len(m.dev.handles))*m.page, uint64(len(m.dev.behind))
	for _, n := range m.dev.plain {
		held += n
	}
	if held != s.Reserved || mapped != s.Maps-s.Unmaps+s.ViewMaps-s.ViewUnmaps {
		m.t.Fatalf("the device holds %d bytes, %d pages are mapped, figures are %+v", held, mapped, s)
	}
}

// end frees everything and closes; nothing must be left on the device.
func (m *model) end() {
	for len(m.live) > 0 {
		m.free(len(m.live) - 1)
	}
	for len(m.pools) > 0 {
		m.destroy(0)
	}
	if err := m.a.Follow(nil); err != nil && m.page > 0 {
		m.t.Fatal(err)
	}
	m.check()
	for _, s := range m.dev.streams { // nobody waits for what waits for him
		s.Sync()
	}
	if freed, err := m.a.Trim(0); err != nil || m.a.Stats().Reserved != 0 {
		m.t.Fatalf("Trim = %d, %v with nothing live: figures %+v", freed, err, m.a.Stats())
	}
	m.check()
	if err := errors.Join(m.a.Close(), m.dev.Close(), m.dev.err); err != nil {
		m.t.Fatal(err)
	}
}

func randomOperations(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	data := make([]byte, 2*n)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	return data
}

// TestRandomOperations plays random programs, and checks that together they
// have been everywhere.
func TestRandomOperations(t *testing.T) {
	total := tally{}
	for seed := range uint64(150) {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			m := play(t, randomOperations(seed, 400))
			m.end()
			total.add(m)
		})
	}
	t.Log(total)
	total.least(t, 50, "stitches_total", "stitch_reuses_total", "unmaps_total", "view_unmaps_total", "destroys_total",
		"planned_total", "repeats_total", "waits_total", "syncs_total", "settles_total", "borrows_total", "ooms_total")
	total.least(t, 1, "view pending", "view of both ends of one page", "view of another pool's pages", "view of a plan", "block freed with its pool", "compacted")
}

// tally counts what happened in several programs.
type tally map[string]uint64

// add counts what happened in a program.
func (c tally) add(m *model) {
	for _, row := range m.a.Stats().Table() {
		if strings.HasSuffix(row.Name, "_total") {
			c[row.Name] += row.Value
		}
	}
	for what, n := range m.seen {
		c[what] += uint64(n)
	}
}

// least wants things to have happened at least n times.
func (c tally) least(t *testing.T, n uint64, things ...string) {
	for _, what := range things {
		if c[what] < n {
			t.Errorf("%s: only %d in all programs", what, c[what])
		}
	}
}

func FuzzAllocator(f *testing.F) {
	for seed := range uint64(16) {
		data := randomOperations(seed, 60)
		data[0] = byte(seed) // devices of every kind
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1000 {
			t.Skip("longer than needed")
		}
		play(t, data).end()
	})
}
