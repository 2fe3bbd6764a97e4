package device

import "math/bits"

// A handleTable numbers handles from 1 on. It gives the lowest free number, so
// that memory created together has numbers in a row: the system keeps one
// record for neighbours that lie side by side in the same order.
// Numbers are at most firstImport - 1.
type handleTable struct {
	maps []int    // how many addresses each handle has, by number − 1
	used []uint64 // a bit for each number − 1: the handle exists
	low  int      // no word of used before this one has a free bit
	live int
}

func (t *handleTable) take() Handle {
	for t.low < len(t.used) && t.used[t.low] == ^uint64(0) {
		t.low++
	}
	if t.low == len(t.used) {
		t.used = append(t.used, 0)
		t.maps = append(t.maps, make([]int, 64)...)
	}
	bit := bits.TrailingZeros64(^t.used[t.low])
	t.used[t.low] |= 1 << bit
	t.live++
	return Handle(t.low*64 + bit + 1)
}

func (t *handleTable) drop(h Handle) {
	word := int(h-1) / 64
	t.used[word] &^= 1 << ((h - 1) % 64)
	t.low = min(t.low, word)
	t.live--
}

func (t *handleTable) has(h Handle) bool {
	return h > 0 && h <= Handle(len(t.maps)) && t.used[(h-1)/64]>>((h-1)%64)&1 == 1
}

// places points to the number of addresses of h; nil if h does not exist.
func (t *handleTable) places(h Handle) *int {
	if !t.has(h) {
		return nil
	}
	return &t.maps[h-1]
}
