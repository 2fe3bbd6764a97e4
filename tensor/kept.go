package tensor

import (
	"cmp"
	"slices"
)

// Kept is one value that a graph keeps for backward.
type Kept struct {
	Op     string // operation that saved it
	Node   uint64 // number of the operation, in the order of the program
	Shape  []int  // nil where a Saver has it, or where it is always made again
	Bytes  uint64 // of the memory that it alone keeps; 0 where that is counted in another line, or does not exist
	How    HowKept
	Recipe string // operation that makes the value again; empty unless How is Remade
}

// HowKept says in what form a value is kept.
type HowKept string

// The forms of kept values.
const (
	Saved   HowKept = "saved"     // as it is
	InSaver HowKept = "packed"    // by a Saver, such as a checkpoint
	Remade  HowKept = "remade"    // not at all: its operation is run again
	Param   HowKept = "parameter" // in memory that lives anyway
	Moved   HowKept = "away"      // in the Store, outside the device
)

// Kept lists what the graph that made t keeps for backward, in the order of
// the operations. Memory that several operations keep is counted in the first
// of them. It is empty for a tensor that no gradient flows through.
func (t *Tensor) Kept() []Kept {
	t.use()
	var list []Kept
	counted := map[*storage]bool{}
	for _, n := range graphOf(t.node) {
		for _, s := range n.saved {
			list = append(list, s.describe(n, counted))
		}
	}
	return list
}

// describe says what s keeps and marks its storage as counted.
func (s *saved) describe(n *node, counted map[*storage]bool) Kept {
	k := Kept{Op: n.name, Node: n.number, How: InSaver}
	switch {
	case s.recipe != nil:
		k.How, k.Recipe = Remade, s.recipe.name
	case s.home != nil && s.home.value == nil:
		k.How, k.Recipe, k.Shape = Remade, s.home.maker.name, s.view.shape
		if s.home.away != nil {
			k.How, k.Recipe = Moved, ""
		}
	case s.home != nil:
		k.count(s.home.value, s.view.shape, counted)
	case s.plain != nil:
		k.count(s.plain, s.plain.shape, counted)
	}
	return k
}

// count describes a value that t holds.
func (k *Kept) count(t *Tensor, shape []int, counted map[*storage]bool) {
	k.How, k.Shape = Saved, shape
	if t.st.persistent {
		k.How = Param
	} else if !counted[t.st] {
		k.Bytes = t.st.block.Size()
	}
	counted[t.st] = true
}

// graphOf lists the nodes that lead to n, n among them, in their order. Nodes
// that only recipes hold are among them.
func graphOf(n *node) []*node {
	var list []*node
	seen := map[*node]bool{nil: true}
	var visit func(n *node)
	visit = func(n *node) {
		if seen[n] {
			return
		}
		seen[n] = true
		list = append(list, n)
		for _, e := range n.inputs {
			visit(e.node)
		}
		for _, s := range n.saved {
			visit(s.recipe)
		}
	}
	visit(n)
	slices.SortFunc(list, func(x, y *node) int { return cmp.Compare(x.number, y.number) })
	return list
}
