package dist

import "fmt"

// Axis is one dimension of a Mesh.
type Axis struct {
	Name string // such as "data"
	Size int
}

// Mesh is the ranks of a group laid out in dimensions with names, the last one
// fastest: of the axes data 2, tensor 4, ranks 0 to 3 are one line along tensor,
// and 0 and 4 one along data.
type Mesh struct {
	axes   []Axis
	groups []Group
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
	m := &Mesh{axes: axes}
	stride := n
	for _, a := range axes {
		stride /= a.Size
		first := g.Rank() - g.Rank()/stride%a.Size*stride
		var line []int
		for i := range a.Size {
			line = append(line, first+i*stride)
		}
		sub, err := g.Sub(fmt.Sprintf("%s of %d", a.Name, first), line...)
		if err != nil {
			return nil, err
		}
		m.groups = append(m.groups, sub)
	}
	return m, nil
}

// Along is the group of the ranks that differ from this one along an axis
// alone, whose Rank is the place on it. It panics where there is no such axis.
func (m *Mesh) Along(axis string) Group {
	for i, a := range m.axes {
		if a.Name == axis {
			return m.groups[i]
		}
	}
	panic(fmt.Sprintf("dist: a mesh of %v has no axis %q", m.axes, axis))
}
