package alloc

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/trace"
)

// model is the slow twin of an allocator: the list of live blocks.
type model struct {
	t     testing.TB
	dev   *lagging
	a     *Allocator
	page  uint64 // 0 without virtual memory
	limit uint64
	live  []*Block
	users map[*Block][]*lagStream
}

// play lets an allocator and its model do what data says: each operation is
// two bytes, what and with what.
func play(t testing.TB, data []byte) *model {
	m := newModel(t, data)
	for data = data[min(2, len(data)):]; len(data) >= 2; data = data[2:] {
		m.step(data[0], int(data[1]))
		m.check()
	}
	return m
}

// newModel opens a device and an allocator of the kind that the first two
// bytes say.
func newModel(t testing.TB, data []byte) *model {
	kind, limit := byte(0), uint64(0)
	if len(data) >= 2 {
		kind, limit = data[0], uint64(data[1]%16)<<20
	}
	o := device.NullOptions{Capacity: 16 << 20, Virtual: kind%4 != 0, Granularity: 64 << 10 << (kind / 4 % 6)}
	m := &model{t: t, dev: newLagging(t, o), limit: o.Capacity, users: map[*Block][]*lagStream{}}
	if o.Virtual {
		m.page = o.Granularity
	}
	if limit > 0 {
		m.limit = limit
	}
	var err error
	if m.a, err = New(m.dev, Options{Limit: limit}); err != nil {
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
		m.alloc(m.size(what/8, arg), m.stream(arg))
	case 3, 4:
		if len(m.live) > 0 {
			m.free(arg % len(m.live))
		}
	case 5:
		if len(m.live) > 0 {
			b, s := m.live[arg%len(m.live)], m.stream(arg/16)
			b.Use(s)
			m.users[b] = append(m.users[b], s)
			m.dev.share(s, b.addr, b.end())
		}
	case 6:
		m.stream(arg).advance(arg / 8)
	case 7:
		if what/8%4 == 0 {
			m.trim()
		}
	}
}

// size gives sizes of every kind: tiny, small, odd, whole pages, too large.
func (m *model) size(kind byte, arg int) uint64 {
	n := uint64(arg) + 1
	switch kind % 6 {
	case 0:
		return n
	case 1:
		return n * 512
	case 2:
		return n * 7777
	case 3:
		return max(m.page, 64<<10) * (n % 8)
	case 4:
		return n << 14
	}
	return n << 18
}

func (m *model) alloc(n uint64, s *lagStream) {
	n = max(n, 1)
	before := m.a.Stats()
	b, err := m.a.Alloc(n, trace.Purpose(n%uint64(trace.NumPurposes)), s)
	if err != nil {
		m.failed(n, before, err)
		return
	}
	if b.Size() != n || b.size < n || b.size >= n+512 || uint64(b.Ptr()) != b.addr || b.Purpose() != trace.Purpose(n%uint64(trace.NumPurposes)) {
		m.t.Fatalf("block of %d bytes is %d at %#x, %d inside", n, b.Size(), b.Ptr(), b.size)
	}
	for _, other := range m.live {
		if b.addr < other.end() && other.addr < b.end() {
			m.t.Fatalf("block %#x-%#x overlaps %#x-%#x", b.addr, b.end(), other.addr, other.end())
		}
	}
	m.live = append(m.live, b)
	m.dev.touch(s, b.addr, b.end())
}

// failed checks that a request failed rightly: that no memory was left for it,
// and that nothing has changed.
func (m *model) failed(n uint64, before Stats, err error) {
	var oom *OutOfMemoryError
	if !errors.As(err, &oom) || !errors.Is(err, device.ErrOutOfMemory) {
		m.t.Fatalf("Alloc(%d): %v", n, err)
	}
	after := m.a.Stats()
	if after.Live != before.Live || after.Blocks != before.Blocks || m.page > 0 && after.Reserved != before.Reserved {
		m.t.Fatalf("a failed request changed the figures from %+v to %+v", before, after)
	}
	if need := roundUp(n, 512); m.left(need) >= need {
		m.t.Fatalf("Alloc(%d) failed while %d bytes were left: %v", n, m.left(need), err)
	}
}

// left is the memory that could be given to a block of need bytes whatever the
// addresses: the limit without the pages that live blocks touch; without
// virtual memory, without the segments that hold live blocks.
func (m *model) left(need uint64) uint64 {
	used := map[uint64]uint64{}
	for _, b := range m.live {
		if m.page == 0 {
			used[b.seg.base] = b.seg.size
			continue
		}
		for p := b.addr / m.page; p <= (b.end()-1)/m.page; p++ {
			used[p] = m.page
		}
	}
	left := m.limit
	if m.page > 0 {
		left = roundDown(left, m.page)
	}
	for _, n := range used {
		left -= n
	}
	return left
}

func (m *model) free(i int) {
	b := m.live[i]
	m.live = slices.Delete(m.live, i, i+1)
	m.dev.share(m.dev.streams[b.stream.id], b.addr, b.end()) // the last work on it
	for _, s := range m.users[b] {
		m.dev.share(s, b.addr, b.end())
	}
	delete(m.users, b)
	b.Free()
}

func (m *model) trim() {
	before := m.a.Stats()
	freed, err := m.a.Trim(0)
	after := m.a.Stats()
	if err != nil || after.Reserved+freed != before.Reserved || after.Live != before.Live {
		m.t.Fatalf("Trim() = %d, %v: reserved from %d to %d", freed, err, before.Reserved, after.Reserved)
	}
	if m.page > 0 && after.Pending == 0 {
		if left := m.left(0); after.Reserved != roundDown(m.limit, m.page)-left {
			m.t.Fatalf("after Trim %d bytes are reserved, the pages of live blocks have %d", after.Reserved, roundDown(m.limit, m.page)-left)
		}
	}
}

func (m *model) check() {
	if m.dev.err != nil {
		m.t.Fatal(m.dev.err)
	}
	if err := m.a.Check(); err != nil {
		m.t.Fatal(err)
	}
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
	if s.Reserved > m.limit || s.PeakReserved < s.Reserved && s.Allocs > 0 && s.Trims == 0 && s.OOMs == 0 || s.PeakLive < live || s.Live+s.Pending+s.Cached != s.Reserved {
		m.t.Fatalf("limit %d, figures %+v", m.limit, s)
	}
}

// end frees everything and closes; nothing must be left on the device.
func (m *model) end() {
	for len(m.live) > 0 {
		m.free(len(m.live) - 1)
		m.check()
	}
	if err := m.a.Close(); err != nil {
		m.t.Fatal(err)
	}
	if err := m.dev.Close(); err != nil {
		m.t.Fatal(err)
	}
	if m.dev.err != nil {
		m.t.Fatal(m.dev.err)
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

func TestRandomOperations(t *testing.T) {
	for seed := range uint64(150) {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) { play(t, randomOperations(seed, 400)).end() })
	}
}

func FuzzAllocator(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(randomOperations(seed, 60))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1000 {
			t.Skip("longer than needed")
		}
		play(t, data).end()
	})
}
