package kernel

import "github.com/headroom-go/headroom/device"

// Kernels over many arrays. A model has hundreds of parameters, most of them
// short, and launching work for each costs a GPU more than the work. So a launch
// takes up to device.MaxMembers of them. On a GPU they are cut into chunks of the
// same length, one for each block of threads, whatever the lengths of the arrays.

// nextMembers splits off the first of xs, as many as a launch takes, and gives
// members to be filled for them.
func nextMembers[T any](xs []T) (some, rest []T, m *device.Members) {
	n := min(len(xs), device.MaxMembers)
	m = newMembers()
	m.N = int64(n)
	return xs[:n], xs[n:], m
}

// newMembers gives members on the heap, as what leaves a function is. The
// compiler would not know that the launch keeps them (noescape).
//
//go:noinline
func newMembers() *device.Members { return new(device.Members) }

// floatsOf is array i of a member, of float32.
func floatsOf(m *device.Member, i int) []float32 { return device.Float32s(m.Ptr[i], int(m.Len)) }

// typedOf is a member's first array, of any type.
func typedOf(m *device.Member) numbers { return Array{m.Ptr[0], m.Type}.numbers(int(m.Len)) }

// cudaChunks numbers the members' chunks of so many elements, and gives the grid
// with a block for each.
func cudaChunks(m *device.Members, elements int) device.Grid {
	n := 0
	for i := range m.Of[:m.N] {
		m.Of[i].First = int32(n)
		n += blocks(int(m.Of[i].Len), elements)
	}
	return device.Grid{X: n, Block: threads}
}
