package trace

// memo holds values by number. Pickles number them from 0 on, one after the
// other; numbers out of the order stand in sparse.
type memo struct {
	pages  [][]uint32
	n      int
	sparse map[uint32]uint32
}

// memoPage is the number of values that the memo allocates at once, but for
// the first page, which grows.
const memoPage = 1 << 16

func (m *memo) put(at, packed uint32) {
	switch {
	case int(at) < m.n:
		m.pages[at/memoPage][at%memoPage] = packed
	case int(at) > m.n:
		if m.sparse == nil {
			m.sparse = make(map[uint32]uint32)
		}
		m.sparse[at] = packed
	default:
		m.push(packed)
	}
}

func (m *memo) push(packed uint32) {
	page := m.n / memoPage
	if page == len(m.pages) {
		var empty []uint32
		if page > 0 {
			empty = make([]uint32, 0, memoPage)
		}
		m.pages = append(m.pages, empty)
	}
	m.pages[page] = append(m.pages[page], packed)
	m.n++
}

func (m *memo) get(at uint32) (packed uint32, ok bool) {
	if int(at) < m.n {
		return m.pages[at/memoPage][at%memoPage], true
	}
	packed, ok = m.sparse[at]
	return packed, ok
}
