package remat

import "fmt"

// Program is what is to be planned: operations in the order in which they run
// without a plan.
type Program struct {
	Ops    []Op
	Values []Value
	// Outputs are the values that must exist together at the end, in the order
	// in which a runtime without foresight would ask for them.
	Outputs []int
	// OutRate and BackRate are the speeds, in bytes per second, of copies to slower
	// memory and back, which run beside the operations. 0 forbids moves.
	OutRate  int64
	BackRate int64
	// Room is the most bytes that all values that move may have; 0 is no limit.
	Room int64
}

// Op is one operation.
type Op struct {
	Name string
	Cost int64 // time of one run in ns, ≥ 0
	Args []int // values that it reads
	Outs []int // values that it makes, each made by one operation alone
	// Workspace is the bytes that it needs while it runs, besides Args and Outs.
	Workspace int64
	// View says that each of Outs is another form of Args[0], the only argument,
	// in the same memory. Views are lost with that memory.
	View bool
	// Once forbids a second run, because it would change something else or give
	// other values.
	Once bool
}

// Value is a tensor.
type Value struct {
	Bytes int64 // of its own memory; not used for views
	// Pinned values stay in memory once they are there. Those that no operation
	// makes are there from the start, and count as pinned.
	Pinned bool
	// Stays forbids moves of the value to slower memory.
	Stays bool
	// Held is the number of operations after which a program without a plan lets
	// go of the value; 0 stands for its last use. It matters for the peak without
	// a plan and for runtimes without foresight; a plan drops values earlier.
	Held int
}

// Check returns an error if p is no program.
func (p *Program) Check() error {
	for i, v := range p.Values {
		if v.Bytes < 0 || v.Bytes >= maxBytes {
			return fmt.Errorf("remat: value %d has %d bytes", i, v.Bytes)
		}
	}
	there, err := p.atStart()
	if err != nil {
		return err
	}
	for i, op := range p.Ops {
		if err := op.check(there); err != nil {
			return fmt.Errorf("remat: operation %d (%s) %w", i, op.Name, err)
		}
	}
	for _, v := range p.Outputs {
		if v < 0 || v >= len(p.Values) {
			return fmt.Errorf("remat: output %d of %d values", v, len(p.Values))
		}
	}
	return nil
}

// atStart says which values are there before the first operation.
func (p *Program) atStart() ([]bool, error) {
	there := make([]bool, len(p.Values))
	for v := range there {
		there[v] = true
	}
	for i, op := range p.Ops {
		for _, v := range op.Outs {
			if v < 0 || v >= len(there) {
				return nil, fmt.Errorf("remat: operation %d (%s) makes value %d of %d", i, op.Name, v, len(there))
			}
			there[v] = false
		}
	}
	return there, nil
}

// check returns an error unless op can run where these values are there, and adds
// those that it makes.
func (op *Op) check(there []bool) error {
	if op.Cost < 0 || op.Workspace < 0 || op.Workspace >= maxBytes || op.Cost >= maxBytes {
		return fmt.Errorf("takes %d ns and %d bytes of workspace", op.Cost, op.Workspace)
	}
	if op.View && len(op.Args) != 1 {
		return fmt.Errorf("is a view of %d values; a view has one argument", len(op.Args))
	}
	for _, v := range op.Args {
		if v < 0 || v >= len(there) || !there[v] {
			return fmt.Errorf("reads value %d before it is made", v)
		}
	}
	for _, v := range op.Outs {
		if there[v] {
			return fmt.Errorf("makes value %d, which is there already", v)
		}
		there[v] = true
	}
	return nil
}

// maxBytes bounds sizes and times so that no sum overflows.
const maxBytes = 1 << 44

// roots returns for each value the one whose memory it lies in.
func (p *Program) roots() []int {
	root := make([]int, len(p.Values))
	for i := range root {
		root[i] = i
	}
	for _, op := range p.Ops {
		if op.View {
			for _, v := range op.Outs {
				root[v] = root[op.Args[0]]
			}
		}
	}
	return root
}

// PlainCost is the time of the program without a plan, in ns.
func (p *Program) PlainCost() int64 {
	var sum int64
	for _, op := range p.Ops {
		sum += op.Cost
	}
	return sum
}

// PlainPeak is the largest number of bytes that the program without a plan has
// live at one time.
func (p *Program) PlainPeak() int64 {
	root, made, last := p.roots(), p.makers(), p.lastHeld(false)
	drop := make([][]int, len(p.Ops)+1)
	var live, peak int64
	for v := range p.Values {
		if root[v] == v && made[v] < 0 {
			live += p.Values[v].Bytes
		} else if root[v] == v {
			drop[last[v]] = append(drop[last[v]], v)
		}
	}
	peak = live
	for i, op := range p.Ops {
		if !op.View {
			for _, v := range op.Outs {
				live += p.Values[v].Bytes
			}
		}
		peak = max(peak, live+op.Workspace)
		for _, v := range drop[i] {
			live -= p.Values[v].Bytes
		}
	}
	return peak
}

// makers returns the operation that makes each value, or -1.
func (p *Program) makers() []int {
	made := make([]int, len(p.Values))
	for v := range made {
		made[v] = -1
	}
	for i, op := range p.Ops {
		for _, v := range op.Outs {
			made[v] = i
		}
	}
	return made
}

// lastHeld returns the operation after which a program without a plan drops the
// memory of each root; len(p.Ops) stands for never. pin keeps pinned values, as
// every runtime with a budget does here.
func (p *Program) lastHeld(pin bool) []int {
	root := p.roots()
	last := make([]int, len(p.Values))
	for i, op := range p.Ops {
		for _, v := range op.Outs {
			last[root[v]] = max(last[root[v]], i)
		}
		for _, v := range op.Args {
			last[root[v]] = max(last[root[v]], i)
		}
	}
	for v, val := range p.Values {
		last[root[v]] = max(last[root[v]], val.Held-1)
		if val.Pinned && (pin || val.Held == 0) {
			last[root[v]] = len(p.Ops)
		}
	}
	for _, v := range p.Outputs {
		last[root[v]] = len(p.Ops)
	}
	return last
}
