package alloc

import "math/bits"

// tree holds blocks of one kind, ordered by size, then by address, so that the
// first that fits is the best fit at the lowest address.
//
// Sizes are divided into bins, 32 for each doubling, and a bitmap tells which
// have blocks: a search looks into the bin of the size, and then takes the
// first of the next bin that is not empty. The blocks of a bin form a treap: a
// search tree by the order above which is a heap by priority. The priority is
// a hash of the address, so the shape depends on the content alone and is
// balanced for all but contrived addresses (Seidel and Aragon, Randomized
// Search Trees, 1996). The links are fields of the blocks: no operation
// allocates.
type tree struct {
	roots [words]*[64]*Block // nil where there never was a block
	full  [words]uint64      // bins that are not empty
	some  uint64             // words of full that are not 0
}

const (
	binBits = 5 // log of the bins for each doubling
	bins    = (64-9-binBits)<<binBits + 1<<binBits
	words   = (bins + 63) / 64
)

// bin is the bin of a size, which is at least unit.
func bin(size uint64) int {
	units := size / unit
	shift := max(bits.Len64(units)-binBits-1, 0)
	return shift<<binBits + int(units>>shift)
}

// root is where the treap of a bin begins that has or had blocks.
func (t *tree) root(i int) **Block { return &t.roots[i/64][i%64] }

// next gives the first bin from i on that is not empty, or -1.
func (t *tree) next(i int) int {
	w := i / 64
	if w < len(t.full) {
		if rest := t.full[w] >> (i % 64); rest != 0 {
			return i + bits.TrailingZeros64(rest)
		}
	}
	rest := t.some >> (w + 1)
	if rest == 0 {
		return -1
	}
	w += 1 + bits.TrailingZeros64(rest)
	return w*64 + bits.TrailingZeros64(t.full[w])
}

// less is the order of a tree.
func less(x, y *Block) bool {
	return x.size < y.size || x.size == y.size && x.addr < y.addr
}

// hash scatters addresses (the finalizer of SplitMix64).
func hash(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// insert adds b, which is in no tree.
func (t *tree) insert(b *Block) {
	i := bin(b.size)
	t.full[i/64] |= 1 << (i % 64)
	t.some |= 1 << (i / 64)
	if t.roots[i/64] == nil {
		t.roots[i/64] = new([64]*Block)
	}
	b.tree, b.priority = t, hash(b.addr)
	link := t.root(i)
	for *link != nil && (*link).priority >= b.priority {
		if less(b, *link) {
			link = &(*link).left
		} else {
			link = &(*link).right
		}
	}
	below := *link
	*link = b
	left, right := &b.left, &b.right
	for below != nil { // split what was here around b
		if less(below, b) {
			*left, left, below = below, &below.right, below.right
		} else {
			*right, right, below = below, &below.left, below.left
		}
	}
	*left, *right = nil, nil
}

// remove takes out b, which is in the tree.
func (t *tree) remove(b *Block) {
	i := bin(b.size)
	link := t.root(i)
	for *link != b {
		if less(b, *link) {
			link = &(*link).left
		} else {
			link = &(*link).right
		}
	}
	left, right := b.left, b.right
	for left != nil && right != nil { // join the two below b
		if left.priority >= right.priority {
			*link, link, left = left, &left.right, left.right
		} else {
			*link, link, right = right, &right.left, right.left
		}
	}
	if left == nil {
		left = right
	}
	*link = left
	b.tree, b.left, b.right = nil, nil, nil
	if *t.root(i) == nil {
		t.clear(i)
	}
}

// clear notes that bin i is empty.
func (t *tree) clear(i int) {
	t.full[i/64] &^= 1 << (i % 64)
	if t.full[i/64] == 0 {
		t.some &^= 1 << (i / 64)
	}
}

// fit gives the best fit for r, or nil.
func (t *tree) fit(r *request) *Block {
	for i := t.next(bin(r.size)); i >= 0; i = t.next(i + 1) {
		if b := fit(*t.root(i), r); b != nil {
			return b
		}
	}
	return nil
}

func fit(n *Block, r *request) *Block {
	for n != nil {
		if n.size >= r.size {
			if b := fit(n.left, r); b != nil {
				return b
			}
			if _, ok := r.start(n); ok {
				return n
			}
		}
		n = n.right
	}
	return nil
}

// collect appends the blocks of at least size bytes to list, in order.
func (t *tree) collect(list []*Block, size uint64) []*Block {
	for i := t.next(bin(max(size, unit))); i >= 0; i = t.next(i + 1) {
		list = collect(*t.root(i), list, size)
	}
	return list
}

func collect(n *Block, list []*Block, size uint64) []*Block {
	for n != nil {
		if n.size >= size {
			list = append(collect(n.left, list, size), n)
		}
		n = n.right
	}
	return list
}

// last gives the largest block, or nil.
func (t *tree) last() *Block {
	w := bits.Len64(t.some) - 1
	if w < 0 {
		return nil
	}
	n := *t.root(w*64 + bits.Len64(t.full[w]) - 1)
	for n.right != nil {
		n = n.right
	}
	return n
}
