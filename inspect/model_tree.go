package inspect

// tree holds the free or the unmapped blocks of a pool, ordered by stream, by
// rank and by address. It is a treap whose priorities are hashes of the
// addresses, so that its shape depends on its content alone (Seidel and
// Aragon, Randomized Search Trees, 1996). The links are fields of the blocks.
type tree struct{ root *block }

// before is the order of a tree. Streams are handles, which PyTorch compares
// as unsigned numbers.
func before(x, y *block) bool { return x.follows(y.seg.stream, y.rank, y.addr) > 0 }

// follows compares a place in the order with the block's: above 0 if the place
// comes after the block, 0 if it is the block's, below 0 if it comes before.
func (b *block) follows(stream int, rank, addr uint64) int {
	switch s := b.seg.stream; {
	case s != stream:
		return sign(uint64(s) < uint64(stream))
	case b.rank != rank:
		return sign(b.rank < rank)
	case b.addr != addr:
		return sign(b.addr < addr)
	}
	return 0
}

func sign(positive bool) int {
	if positive {
		return 1
	}
	return -1
}

// scatter is the finalizer of SplitMix64.
func scatter(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// insert adds b, whose rank is set and which is in no tree.
func (t *tree) insert(b *block) {
	b.priority = scatter(b.addr)
	link := &t.root
	for *link != nil && (*link).priority >= b.priority {
		link = (*link).toward(b)
	}
	below := *link
	*link = b
	left, right := &b.left, &b.right
	for below != nil { // split what was here around b
		if before(below, b) {
			*left, left, below = below, &below.right, below.right
		} else {
			*right, right, below = below, &below.left, below.left
		}
	}
	*left, *right = nil, nil
}

// toward is the link on the side of n where b belongs.
func (n *block) toward(b *block) **block {
	if before(b, n) {
		return &n.left
	}
	return &n.right
}

// remove takes out b, which is in the tree.
func (t *tree) remove(b *block) {
	link := &t.root
	for *link != b {
		link = (*link).toward(b)
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
	b.left, b.right = nil, nil
}

// ceiling gives the first block that is not before the place, or nil.
func (t *tree) ceiling(stream int, rank, addr uint64) (found *block) {
	for n := t.root; n != nil; {
		if n.follows(stream, rank, addr) > 0 {
			n = n.right
		} else {
			found, n = n, n.left
		}
	}
	return found
}

// floor gives the last block before the place, or nil.
func (t *tree) floor(stream int, rank, addr uint64) (found *block) {
	for n := t.root; n != nil; {
		if n.follows(stream, rank, addr) > 0 {
			found, n = n, n.right
		} else {
			n = n.left
		}
	}
	return found
}

// after gives the next block, or nil.
func (t *tree) after(b *block) *block { return t.ceiling(b.seg.stream, b.rank, b.addr+1) }

// all lists the blocks in order.
func (t *tree) all() []*block { return collect(t.root, nil) }

func collect(n *block, list []*block) []*block {
	for ; n != nil; n = n.right {
		list = append(collect(n.left, list), n)
	}
	return list
}
