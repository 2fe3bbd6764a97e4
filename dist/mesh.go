package dist

import (
	"fmt"
	"slices"
	"strings"
)

// Axis is one dimension of a Mesh.
type Axis struct {
	Name string // such as "data"
	Size int
}

// Mesh is the ranks of a group laid out in dimensions with names, the last one
// fastest: of the axes data 2, tensor 4, ranks 0 to 3 are one line along tensor,
// and 0 and 4 one along data.
type Mesh struct {
	group Group
	axes  []Axis
}

// NewMesh lays g out. Every rank of g calls it with the same axes, whose sizes
// multiply to g's.
func NewMesh(g Group, axes ...Axis) (*Mesh, error) {
	n := 1
	for _, a := range axes {
		if a.Size < 1 {
			return nil, fmt.Errorf("axis %s of a mesh has size %d: want 1 or more", a.Name, a.Size)
		}
		n *= a.Size
	}
	if n != g.Size() {
		return nil, fmt.Errorf("a mesh of %d ranks %v: the group has %d", n, axes, g.Size())
	}
	return &Mesh{g, axes}, nil
}

// Along makes the group of the ranks that differ from this one along some axes
// alone, in the order of the whole group. Every rank calls it, once for the same
// axes; where they hold all ranks, it is the whole group itself. It panics where
// there is no such axis.
func (m *Mesh) Along(axes ...string) (Group, error) {
	for _, name := range axes {
		if !slices.ContainsFunc(m.axes, func(a Axis) bool { return a.Name == name }) {
			panic(fmt.Sprintf("dist: a mesh of %v has no axis %q", m.axes, name))
		}
	}
	var ranks []int
	for r := range m.group.Size() {
		if m.differ(r, axes) {
			ranks = append(ranks, r)
		}
	}
	if len(ranks) == m.group.Size() {
		return m.group, nil
	}
	return m.group.Sub(strings.Join(axes, " and "), ranks...)
}

// differ says whether a rank is where this one is, but for some axes.
func (m *Mesh) differ(rank int, axes []string) bool {
	stride := m.group.Size()
	for _, a := range m.axes {
		stride /= a.Size
		if rank/stride%a.Size != m.group.Rank()/stride%a.Size && !slices.Contains(axes, a.Name) {
			return false
		}
	}
	return true
}
