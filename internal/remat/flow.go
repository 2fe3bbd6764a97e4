package remat

// network finds least cuts by greatest flows (Dinic, 1970). Flow goes along
// edges of least distance from the source until there is no more of it, then
// distances are taken anew.
type network struct {
	first []int32 // node → its last edge, or -1
	next  []int32 // edge → the one before of the same node, or -1
	to    []int32 // edge → node; edge e^1 leads back
	most  []int64 // edge → capacity
	left  []int64 // edge → what it still takes
	far   []int32 // node → distance from the source, or -1
	try   []int32 // node → edge to go on with
	queue []int32
}

// endless is the capacity of edges that no least cut cuts.
const endless = 1 << 60

func newNetwork(nodes int) *network {
	f := &network{first: make([]int32, nodes), far: make([]int32, nodes), try: make([]int32, nodes)}
	for i := range f.first {
		f.first[i] = -1
	}
	return f
}

// edge adds one and returns its number.
func (f *network) edge(from, to int32, capacity int64) int32 {
	e := int32(len(f.to))
	f.to = append(f.to, to, from)
	f.most = append(f.most, capacity, 0)
	f.next = append(f.next, f.first[from], f.first[to])
	f.first[from], f.first[to] = e, e+1
	return e
}

// cut returns the capacity of a least cut between the two nodes, and about how
// many steps it took. What is on the source's side then has a distance.
func (f *network) cut(source, sink int32) (capacity int64, work int) {
	f.left = append(f.left[:0], f.most...)
	for f.measure(source, sink) {
		copy(f.try, f.first)
		capacity += f.push(source, sink, endless)
		work += len(f.to) / 8
	}
	return capacity, work
}

// within says whether the last cut left node on the source's side.
func (f *network) within(node int32) bool { return f.far[node] >= 0 }

// measure takes distances and says whether the sink can be reached.
func (f *network) measure(source, sink int32) bool {
	for i := range f.far {
		f.far[i] = -1
	}
	f.far[source] = 0
	f.queue = append(f.queue[:0], source)
	for k := 0; k < len(f.queue); k++ {
		at := f.queue[k]
		for e := f.first[at]; e >= 0; e = f.next[e] {
			if to := f.to[e]; f.left[e] > 0 && f.far[to] < 0 {
				f.far[to] = f.far[at] + 1
				f.queue = append(f.queue, to)
			}
		}
	}
	return f.far[sink] >= 0
}

// push sends up to most from node at to the sink and returns what went.
func (f *network) push(at, sink int32, most int64) (sent int64) {
	if at == sink {
		return most
	}
	for ; f.try[at] >= 0; f.try[at] = f.next[f.try[at]] {
		e := f.try[at]
		if f.left[e] <= 0 || f.far[f.to[e]] != f.far[at]+1 {
			continue
		}
		some := f.push(f.to[e], sink, min(most-sent, f.left[e]))
		f.left[e] -= some
		f.left[e^1] += some
		if sent += some; sent == most {
			break
		}
	}
	return sent
}
