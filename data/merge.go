package data

const noRank = -1

// merger does the byte-pair encoding of one piece after the other. Parts of the
// piece are named by the offset of their first byte and form a linked list;
// next of the last part is the length of the piece. rank[i] is the id of the
// token that part i and its successor would make, or noRank. The heap has an
// entry for each rank; one that a merge nearby has made wrong stays in it and
// is skipped. So a piece of n bytes takes O(n log n).
type merger struct {
	ids   map[string]int32
	cache map[string][]int32

	prev, next, rank []int32
	heap             minHeap
}

// encode appends the tokens of a piece.
func (m *merger) encode(dst []int32, piece []byte) []int32 {
	if id, ok := m.ids[string(piece)]; ok {
		return append(dst, id)
	}
	if len(piece) > cachedLen {
		return m.merge(dst, piece)
	}
	tokens, ok := m.cache[string(piece)]
	if !ok {
		tokens = m.merge(nil, piece)
		if len(m.cache) == cacheSize {
			clear(m.cache)
		}
		m.cache[string(piece)] = tokens
	}
	return append(dst, tokens...)
}

func (m *merger) merge(dst []int32, piece []byte) []int32 {
	n := int32(len(piece))
	m.start(piece)
	for len(m.heap) > 0 {
		rank, i := m.heap.pop()
		if m.rank[i] != rank {
			continue
		}
		j := m.next[i] // part i takes in part j
		m.rank[j] = noRank
		m.next[i] = m.next[j]
		m.prev[m.next[j]] = i
		m.rate(piece, i)
		if p := m.prev[i]; p >= 0 {
			m.rate(piece, p)
		}
	}
	for i := int32(0); i < n; i = m.next[i] {
		dst = append(dst, m.ids[string(piece[i:m.next[i]])])
	}
	return dst
}

// start makes every byte a part.
func (m *merger) start(piece []byte) {
	m.prev, m.next, m.rank = m.prev[:0], m.next[:0], m.rank[:0]
	for i := range int32(len(piece) + 1) {
		m.prev = append(m.prev, i-1)
		m.next = append(m.next, i+1)
		m.rank = append(m.rank, noRank)
	}
	for i := range int32(len(piece)) {
		m.rate(piece, i)
	}
}

// rate sets the rank of part i with its successor.
func (m *merger) rate(piece []byte, i int32) {
	m.rank[i] = noRank
	j := m.next[i]
	if int(j) == len(piece) {
		return
	}
	if id, ok := m.ids[string(piece[i:m.next[j]])]; ok {
		m.rank[i] = id
		m.heap.push(id, i)
	}
}

// minHeap is a binary heap of pairs, the lowest rank first, then the lowest
// offset. A pair is one number: rank<<32 | offset.
type minHeap []uint64

func (h *minHeap) push(rank, offset int32) {
	*h = append(*h, uint64(rank)<<32|uint64(offset))
	s := *h
	for i := len(s) - 1; i > 0 && s[i] < s[(i-1)/2]; i = (i - 1) / 2 {
		s[i], s[(i-1)/2] = s[(i-1)/2], s[i]
	}
}

func (h *minHeap) pop() (rank, offset int32) {
	s := *h
	top, end := s[0], len(s)-1
	s[0] = s[end]
	s = s[:end]
	*h = s
	for i := 0; 2*i+1 < end; {
		child := 2*i + 1
		if child+1 < end && s[child+1] < s[child] {
			child++
		}
		if s[i] <= s[child] {
			break
		}
		s[i], s[child] = s[child], s[i]
		i = child
	}
	return int32(top >> 32), int32(top & 0xffffffff)
}
