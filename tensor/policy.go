package tensor

import "math"

// Schedules by a rule, for programs that run without a planner. Each is made
// from a Record of one step, and is followed in the steps after it (Follow).

// Keep gives a Schedule under which the results of the operations for which
// keep is true stay for backward, and those of the others are let go and made
// again from what stayed. The usual choice keeps what is dear to compute and
// small, the matrix products:
//
//	r.Keep(func(op string) bool { return op == "matmul" || op == "linear" })
//
// An operation that cannot run again keeps its result.
func (r *Record) Keep(keep func(op string) bool) *Schedule {
	return r.schedule(func(op int) bool { return keep(r.Ops[op].Name) })
}

// Segments cuts the operations into n parts and gives a Schedule that keeps
// what goes from one part to a later one, so that backward makes one part at a
// time again. With n = 0 it takes √N parts of N operations, which needs the least
// memory where all results are alike (Chen et al., "Training Deep Nets with
// Sublinear Memory Cost", 2016). Each cut is made, near where parts are of equal
// length, at the place over which the fewest bytes go.
func (r *Record) Segments(n int) *Schedule {
	forward := r.forwardOps()
	if n <= 0 {
		n = int(math.Round(math.Sqrt(float64(len(forward)))))
	}
	n = max(1, min(n, len(forward)))
	last := r.lastReaders(len(forward))
	crossing := make([]int64, len(forward)+1) // before each place
	for v, value := range r.Values {
		for at := r.Ops[value.Op].Node + 1; at <= last[v]; at++ {
			crossing[at] += value.Bytes
		}
	}
	part := make([]int, len(forward))
	for i := 1; i < n; i++ {
		for at := cheapestCut(crossing, i*len(forward)/n, len(forward)/(2*n)); at < len(part); at++ {
			part[at] = i
		}
	}
	crosses := make([]bool, len(forward))
	for v, value := range r.Values {
		at := r.Ops[value.Op].Node
		crosses[at] = part[at] != part[last[v]]
	}
	return r.schedule(func(op int) bool { return crosses[r.Ops[op].Node] })
}

// cheapestCut gives the place less than reach from middle over which the
// fewest bytes go; of equal ones the first.
func cheapestCut(crossing []int64, middle, reach int) int {
	best := middle
	for at := max(1, middle-reach); at < min(len(crossing), middle+reach); at++ {
		if crossing[at] < crossing[best] {
			best = at
		}
	}
	return best
}

// forwardOps lists the forward operations.
func (r *Record) forwardOps() (ops []int) {
	for i, op := range r.Ops {
		if !op.Back {
			ops = append(ops, i)
		}
	}
	return ops
}

// lastReaders gives for each value the last forward operation that reads it:
// when it is made again, or in its backward.
func (r *Record) lastReaders(n int) []int {
	last := make([]int, len(r.Values))
	for v, value := range r.Values {
		last[v] = r.Ops[value.Op].Node
	}
	for _, op := range r.Ops {
		for _, values := range [][]int{op.From, op.Reads} {
			for _, v := range values {
				last[v] = max(last[v], min(op.Node, n-1))
			}
		}
	}
	return last
}

// schedule keeps the results of the forward operations that keep says.
func (r *Record) schedule(keep func(op int) bool) *Schedule {
	s := &Schedule{}
	for _, i := range r.forwardOps() {
		w := Wait{Op: r.Ops[i].Name}
		if r.Ops[i].Remade && !keep(i) {
			w.Reads = []int{0}
		}
		s.Waits = append(s.Waits, w)
	}
	return s
}
