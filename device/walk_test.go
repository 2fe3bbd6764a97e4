package device

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
)

// model is the oracle for the states of memory: lists, searched from end to
// end.
type model struct {
	info    Info
	plain   []piece // allocations
	ranges  []piece // reservations
	handles []held
}

type piece struct {
	p    Ptr
	size uint64
}

// held is a handle with the addresses where it is mapped, and the stamp that
// was last written to its memory.
type held struct {
	h     Handle
	at    []Ptr
	stamp uint64
}

func (m *model) used() uint64 {
	used := uint64(len(m.handles)) * m.info.Granularity
	for _, a := range m.plain {
		used += a.size
	}
	return used
}

// starts finds the piece that starts at p.
func starts(pieces []piece, p Ptr) int {
	for i, a := range pieces {
		if a.p == p {
			return i
		}
	}
	return -1
}

// mappedAt finds the handle that is mapped at p.
func (m *model) mappedAt(p Ptr) *held {
	for i := range m.handles {
		if slices.Contains(m.handles[i].at, p) {
			return &m.handles[i]
		}
	}
	return nil
}

func (m *model) find(h Handle) *held {
	for i := range m.handles {
		if m.handles[i].h == h {
			return &m.handles[i]
		}
	}
	return nil
}

// span says whether n granules from p on lie in one range.
func (m *model) span(p Ptr, n int) bool {
	size := uint64(n) * m.info.Granularity
	for _, r := range m.ranges {
		if p >= r.p && uint64(p-r.p)+size <= r.size && uint64(p-r.p)%m.info.Granularity == 0 {
			return n > 0
		}
	}
	return false
}

func (m *model) mayRelease(p Ptr) bool {
	i := starts(m.ranges, p)
	if i < 0 {
		return false
	}
	for _, h := range m.handles {
		for _, at := range h.at {
			if at >= p && uint64(at-p) < m.ranges[i].size {
				return false
			}
		}
	}
	return true
}

func (m *model) mayMap(p Ptr, handles []Handle) bool {
	for i, h := range handles {
		x := m.find(h)
		if x == nil || m.mappedAt(p+Ptr(uint64(i)*m.info.Granularity)) != nil {
			return false
		}
		if !m.info.Alias && (len(x.at) > 0 || slices.Contains(handles[:i], h)) {
			return false
		}
	}
	return m.span(p, len(handles))
}

func (m *model) mayUnmap(p Ptr, n int) bool {
	for i := range n {
		if m.mappedAt(p+Ptr(uint64(i)*m.info.Granularity)) == nil {
			return false
		}
	}
	return m.span(p, n)
}

// walker takes steps on a device and the model alike.
type walker struct {
	*testing.T
	d     Device
	b     *book
	model model
	next  func(n int) int // a choice of 0 … n−1
	stamp uint64
	steps [8]int // that succeeded, by kind
	twice int    // mappings beyond the first of their handle
}

// judge fails the test if the device and the model disagree.
func (w *walker) judge(what string, err error, allowed bool) bool {
	w.Helper()
	if (err == nil) != allowed {
		w.Fatalf("%s: device says %v, model says allowed=%v", what, err, allowed)
	}
	return allowed
}

// pick gives an address: mostly the start of a piece, sometimes a granule in
// it, rarely another.
func (w *walker) pick(pieces []piece) Ptr {
	if len(pieces) == 0 || w.next(20) == 0 {
		return Ptr(w.next(4)) * 512
	}
	a := pieces[w.next(len(pieces))]
	if w.next(2) == 0 {
		return a.p
	}
	return a.p + Ptr(uint64(w.next(int(a.size/w.model.info.Granularity+1)))*w.model.info.Granularity)
}

// pickMapped gives an address, mostly one with memory.
func (w *walker) pickMapped() Ptr {
	if x := w.model.find(w.pickHandle()); x != nil && len(x.at) > 0 {
		return x.at[w.next(len(x.at))]
	}
	return w.pick(w.model.ranges)
}

// choose picks the kind of the next step. With many pieces around, it rather
// gives them back, so that every state stays likely.
func (w *walker) choose() int {
	kind := w.next(8)
	if crowded := map[int]int{0: len(w.model.plain) - 3, 2: len(w.model.ranges) - 4, 6: w.b.mapped - 8}[kind]; crowded > 0 {
		return kind + 1
	}
	return kind
}

func (w *walker) pickHandle() Handle {
	if len(w.model.handles) == 0 || w.next(20) == 0 {
		return Handle(w.next(40))
	}
	return w.model.handles[w.next(len(w.model.handles))].h
}

func (w *walker) step() {
	m := &w.model
	kind, ok := w.choose(), false
	switch kind {
	case 0:
		size := uint64(w.next(9)) * m.info.Granularity / 2
		p, err := w.d.Alloc(size)
		full := m.used()+size > m.info.Capacity
		if ok = w.judge("Alloc", err, size > 0 && !full); ok {
			m.plain = append(m.plain, piece{p, size})
		} else if size > 0 && !errors.Is(err, ErrOutOfMemory) {
			w.Fatalf("Alloc: %v", err)
		}
	case 1:
		p := w.pick(m.plain)
		i := starts(m.plain, p)
		if ok = w.judge("Free", w.d.Free(p), i >= 0); ok {
			m.plain = append(m.plain[:i], m.plain[i+1:]...)
		}
	case 2:
		size := uint64(w.next(10)) * m.info.Granularity
		p, err := w.d.Reserve(size)
		if ok = w.judge("Reserve", err, size > 0); ok {
			m.ranges = append(m.ranges, piece{p, size})
		}
	case 3:
		p := w.pick(m.ranges)
		if ok = w.judge("Release", w.d.Release(p), m.mayRelease(p)); ok {
			i := starts(m.ranges, p)
			m.ranges = append(m.ranges[:i], m.ranges[i+1:]...)
		}
	case 4:
		h, err := w.d.Create()
		if ok = w.judge("Create", err, m.used()+m.info.Granularity <= m.info.Capacity); ok {
			m.handles = append(m.handles, held{h: h})
		}
	case 5:
		h := w.pickHandle()
		x := m.find(h)
		if ok = w.judge("Destroy", w.d.Destroy(h), x != nil && len(x.at) == 0); ok {
			*x = m.handles[len(m.handles)-1]
			m.handles = m.handles[:len(m.handles)-1]
		}
	case 6:
		p, handles := w.pick(m.ranges), make([]Handle, w.next(3))
		for i := range handles {
			handles[i] = w.pickHandle()
		}
		if ok = w.judge("Map", w.d.Map(p, handles), m.mayMap(p, handles)); ok {
			w.mapped(p, handles)
		}
	case 7:
		p, n := w.pickMapped(), w.next(4)
		if ok = w.judge("Unmap", w.d.Unmap(p, n), m.mayUnmap(p, n)); ok {
			for i := range n {
				at := p + Ptr(uint64(i)*m.info.Granularity)
				x := m.mappedAt(at)
				x.at = slices.DeleteFunc(x.at, func(q Ptr) bool { return q == at })
			}
		}
	}
	if ok {
		w.steps[kind]++
	}
	w.compare()
}

// mapped enters a Map and, where there are data, reads each handle's stamp at
// its new address and writes another at any of its addresses.
func (w *walker) mapped(p Ptr, handles []Handle) {
	for i, h := range handles {
		x := w.model.find(h)
		at := p + Ptr(uint64(i)*w.model.info.Granularity)
		if x.at = append(x.at, at); len(x.at) > 1 {
			w.twice++
		}
		if w.model.info.Kind == Null {
			continue
		}
		w.stamp++
		for _, end := range w.ends(at) {
			if got := binary.LittleEndian.Uint64(end); x.stamp != 0 && got != x.stamp {
				w.Fatalf("handle %d holds %d at %#x, want %d", h, got, at, x.stamp)
			}
		}
		for _, end := range w.ends(x.at[w.next(len(x.at))]) {
			binary.LittleEndian.PutUint64(end, w.stamp)
		}
		x.stamp = w.stamp
	}
}

// ends gives the first and the last 8 bytes of the granule at p.
func (w *walker) ends(p Ptr) [][]byte {
	granule := Bytes(p, int(w.model.info.Granularity))
	return [][]byte{granule[:8], granule[len(granule)-8:]}
}

func (w *walker) compare() {
	w.Helper()
	if w.b.used != w.model.used() || len(w.b.plain) != len(w.model.plain) || len(w.b.ranges) != len(w.model.ranges) || w.b.handles.live != len(w.model.handles) {
		w.Fatalf("book has %d bytes in %d allocations and %d handles, %d ranges; the model %d, %d, %d, %d", w.b.used, len(w.b.plain),
			w.b.handles.live, len(w.b.ranges), w.model.used(), len(w.model.plain), len(w.model.handles), len(w.model.ranges))
	}
	if err := w.b.check(); err != nil {
		w.Fatal(err)
	}
}

// walk takes steps on d until more says to stop.
func walk(t *testing.T, d Device, b *book, next func(n int) int, more func() bool) *walker {
	w := &walker{T: t, d: d, b: b, model: model{info: d.Info()}, next: next}
	for more() {
		w.step()
	}
	return w
}

// openWalks gives null devices and those host devices that have virtual memory.
func openWalks(t *testing.T) map[string]*memory {
	all := map[string]*memory{}
	for name, alias := range map[string]bool{"null": false, "null with aliases": true} {
		null, err := OpenNull(NullOptions{Capacity: 24 * 4096, Virtual: true, Alias: alias, Granularity: 4096})
		if err != nil {
			t.Fatal(err)
		}
		all[name] = &null.(*nullDevice).memory
	}
	host, err := OpenHost(HostOptions{Capacity: 24 * 2 << 20, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = host.Close() })
	if host.Info().Virtual {
		all["host"] = &host.memory
	}
	shared, err := OpenSharedHost(HostOptions{Capacity: 24 * 2 << 20, Workers: 1})
	if errors.Is(err, errors.ErrUnsupported) {
		return all
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = shared.Close() })
	shared.plain = &addressSpace{next: firstAddress, granularity: 4096} // no walk touches it, and Go memory is slow to make
	all["shared host"] = &shared.memory
	return all
}

// walkable lets a memory without streams stand for its device.
type walkable struct{ *memory }

func (walkable) NewStream() (Stream, error) { return nil, errors.ErrUnsupported }
func (walkable) Close() error               { return errors.ErrUnsupported }

func TestRandomWalk(t *testing.T) {
	for seed := range uint64(4) {
		for name, m := range openWalks(t) {
			random, left := rand.New(rand.NewPCG(seed, 0)), 3000
			w := walk(t, walkable{m}, &m.book, random.IntN, func() bool { left--; return left > 0 })
			t.Log(name, "seed", seed, "steps by kind", w.steps, "aliases", w.twice)
			if m.Info().Alias != (w.twice >= 20) {
				t.Errorf("%s, seed %d: only %d aliases", name, seed, w.twice)
			}
			for kind, n := range w.steps {
				if n < 20 {
					t.Errorf("%s, seed %d: only %d steps of kind %d succeeded", name, seed, n, kind)
				}
			}
		}
	}
}

func FuzzBook(f *testing.F) {
	f.Add([]byte{4, 4, 2, 3, 6, 0, 0, 1, 7, 0, 0, 1})
	f.Fuzz(func(t *testing.T, choices []byte) {
		alias := len(choices)%2 == 1
		d, err := OpenNull(NullOptions{Capacity: 24 * 4096, Virtual: true, Alias: alias, Granularity: 4096})
		if err != nil {
			t.Fatal(err)
		}
		next := func(n int) int {
			if len(choices) == 0 {
				return 0
			}
			c := int(choices[0]) % n
			choices = choices[1:]
			return c
		}
		walk(t, d, &d.(*nullDevice).book, next, func() bool { return len(choices) > 0 })
	})
}
