package tensor

// Letting values go when memory is short.
//
// Under an Online schedule every operation keeps what its result can be made
// again from, weakly: that holds no memory which nobody else holds. When the
// allocator has none left for a request, values that nobody is working with go,
// those first that cost the least for what they give:
//
//	score = seconds to make it again / (bytes × operations until it is read)
//
// It is the rule of Kirisame et al., "Dynamic Tensor Rematerialization" (2021),
// with the time to the next use, which is known since backward comes in the
// order of the program turned round, in the place of the time since the last.
// The memory that is freed need not lie together where the device's addresses
// and memory are separate: the allocator stitches it.

// enterEvictable enters a value that has a copy.
func (w *waiting) enterEvictable(h *home) {
	if w.online && h.returns() && !h.listed {
		h.listed = true
		w.evictable = append(w.evictable, h)
	}
}

// evict is the allocator's Evictor.
func (w *waiting) evict(need uint64) bool {
	var freed uint64
	for freed < need {
		h := w.cheapest()
		if h == nil {
			break
		}
		freed += h.value.st.block.Size()
		h.letGo()
	}
	return freed > 0
}

// cheapest gives the value to let go next, or nil, and forgets those that have
// no copy.
func (w *waiting) cheapest() (best *home) {
	least := 0.0
	rest := w.evictable[:0]
	for _, h := range w.evictable {
		if h.value == nil {
			h.listed = false
			continue
		}
		rest = append(rest, h)
		if h.value.st.refs > 1 { // somebody works with it
			continue
		}
		if score := h.score(w.place); best == nil || score < least {
			best, least = h, score
		}
	}
	clear(w.evictable[len(rest):])
	w.evictable = rest
	return best
}

// score is what it costs to let h's value go, for what it gives.
func (h *home) score(place int) float64 {
	bytes := float64(h.value.Bytes()) + 1
	seconds := h.maker.wait.Seconds
	if seconds == 0 {
		seconds = bytes // all that is known: it takes longer the larger it is
	}
	return seconds / (bytes * float64(1+max(place-h.reader, 0)))
}
