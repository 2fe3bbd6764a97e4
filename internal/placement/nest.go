package placement

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// A nest answers: of the items left that live wholly within [from, to), which
// has the largest key? It is a tree over the plane of (first, end), halved by
// turns along each axis; a node knows the box of its items and the largest key
// among them. A query looks only into boxes that reach into the range and
// promise more than it has.
type nest struct {
	items []item
	keys  []float64 // of each item; -Inf when it is removed
	order []int32   // the items; every node has a run of them
	leaf  []int32   // of each item, its leaf's node
	nodes []box     // a full binary tree: the children of i are 2i+1 and 2i+2
	first int       // the first leaf
}

type box struct {
	minFirst, maxFirst, minEnd, maxEnd int32
	lo, hi                             int32 // its run of order
	best                               int32 // item of the largest key left, -1: none
}

// leafSize keeps the tree small; a leaf is searched item by item.
const leafSize = 8

func newNest(items []item) *nest {
	leaves := 1 << bits.Len(uint(len(items)/leafSize))
	n := &nest{
		items: items, keys: make([]float64, len(items)), order: make([]int32, len(items)),
		leaf: make([]int32, len(items)), nodes: make([]box, 2*leaves-1), first: leaves - 1,
	}
	for i := range n.order {
		n.order[i] = int32(i)
	}
	n.build(0, 0, len(items), false)
	return n
}

// build arranges order[lo:hi] below the node.
func (n *nest) build(node, lo, hi int, byEnd bool) {
	run := n.order[lo:hi]
	b := &n.nodes[node]
	*b = box{math.MaxInt32, -1, math.MaxInt32, -1, int32(lo), int32(hi), -1}
	for _, i := range run {
		it := n.items[i]
		b.minFirst, b.maxFirst = min(b.minFirst, it.first), max(b.maxFirst, it.first)
		b.minEnd, b.maxEnd = min(b.minEnd, it.end), max(b.maxEnd, it.end)
	}
	if node >= n.first {
		for _, i := range run {
			n.leaf[i] = int32(node)
		}
		return
	}
	slices.SortFunc(run, func(a, b int32) int {
		x, y := n.items[a], n.items[b]
		if byEnd {
			return cmp.Or(cmp.Compare(x.end, y.end), cmp.Compare(a, b))
		}
		return cmp.Or(cmp.Compare(x.first, y.first), cmp.Compare(a, b))
	})
	mid := lo + (hi-lo)/2
	n.build(2*node+1, lo, mid, !byEnd)
	n.build(2*node+2, mid, hi, !byEnd)
}

// reset puts all items back, with new keys.
func (n *nest) reset(keys []float64) {
	copy(n.keys, keys)
	for node := len(n.nodes) - 1; node >= 0; node-- {
		n.update(node)
	}
}

// update finds the node's best from its children or its run.
func (n *nest) update(node int) {
	b := &n.nodes[node]
	if node < n.first {
		b.best = n.better(n.nodes[2*node+1].best, n.nodes[2*node+2].best)
		return
	}
	b.best = -1
	for _, i := range n.order[b.lo:b.hi] {
		if n.keys[i] > math.Inf(-1) {
			b.best = n.better(b.best, i)
		}
	}
}

func (n *nest) better(a, b int32) int32 {
	if a < 0 || b >= 0 && n.keys[b] > n.keys[a] {
		return b
	}
	return a
}

// remove takes an item out until the next reset.
func (n *nest) remove(i int32) {
	n.keys[i] = math.Inf(-1)
	for node := int(n.leaf[i]); n.nodes[node].best == i; node = (node - 1) / 2 {
		n.update(node)
		if node == 0 {
			break
		}
	}
}

// best returns the item of the largest key within [from, to), or -1.
func (n *nest) best(from, to int32) int32 { return n.search(0, from, to, -1) }

func (n *nest) search(node int, from, to, found int32) int32 {
	b := &n.nodes[node]
	switch {
	case b.best < 0 || b.maxFirst < from || b.minEnd > to || found >= 0 && n.keys[b.best] <= n.keys[found]:
		return found
	case n.items[b.best].first >= from && n.items[b.best].end <= to:
		return b.best
	case node >= n.first:
		for _, i := range n.order[b.lo:b.hi] {
			if it := n.items[i]; it.first >= from && it.end <= to && n.keys[i] > math.Inf(-1) {
				found = n.better(found, i)
			}
		}
		return found
	}
	l, r := 2*node+1, 2*node+2
	if n.better(n.nodes[l].best, n.nodes[r].best) == n.nodes[r].best {
		l, r = r, l
	}
	return n.search(r, from, to, n.search(l, from, to, found))
}
