package alloc

// tree holds blocks of one kind, ordered by size, then by address, so that the
// first that fits is the best fit at the lowest address.
//
// It is a treap: a search tree by that order which is a heap by priority. The
// priority is a hash of the address, so the shape depends on the content
// alone and is balanced for all but contrived addresses (Seidel and Aragon,
// Randomized Search Trees, 1996). The links are fields of the blocks: no
// operation allocates.
type tree struct{ root *Block }

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
	b.tree, b.priority = t, hash(b.addr)
	link := &t.root
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
	link := &t.root
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
}

// fit gives the best fit for r, or nil.
func (t *tree) fit(r *request) *Block { return fit(t.root, r) }

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
func (t *tree) collect(list []*Block, size uint64) []*Block { return collect(t.root, list, size) }

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
	n := t.root
	for n != nil && n.right != nil {
		n = n.right
	}
	return n
}
