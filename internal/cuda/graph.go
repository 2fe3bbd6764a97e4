package cuda

import "unsafe"

// Graph is work that was captured from a stream.
type Graph uintptr

// GraphExec is a graph that can be launched.
type GraphExec uintptr

// Captures says whether the driver has what capturing streams takes: CUDA 12.
func (c *Context) Captures() bool {
	for i := cuStreamBeginCapture; i <= cuGraphLaunch; i++ {
		if c.Address(i) == 0 {
			return false
		}
	}
	return true
}

// BeginCapture makes a stream collect what is queued on it until EndCapture,
// instead of running it. Other threads, and calls that don't queue, are free to
// go on as they like.
func (c *Context) BeginCapture(s Stream) error {
	const relaxed = 2
	return c.plainIn(cuStreamBeginCapture, uintptr(s), relaxed)
}

// EndCapture sets *g, which is not on a stack, to what was collected, or to 0
// where that fails. Then what was collected is lost.
func (c *Context) EndCapture(s Stream, g *Graph) error {
	*g = 0
	return c.plainIn(cuStreamEndCapture, uintptr(s), uintptr(unsafe.Pointer(g)))
}

// Instantiate makes what can be launched of a graph.
func (c *Context) Instantiate(g Graph) (e GraphExec, err error) {
	err = c.in(cuGraphInstantiateWithFlags, uintptr(unsafe.Pointer(&e)), uintptr(g), 0)
	return e, err
}

// UpdateInfo is CUgraphExecUpdateResultInfo, of which nothing is read.
type UpdateInfo [3]uintptr

// Update makes later launches of e those of g, and says false where e must be
// made anew for that. info is not on a stack.
func (c *Context) Update(e GraphExec, g Graph, info *UpdateInfo) (bool, error) {
	const failed = 910 // CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
	switch code := c.code(cuGraphExecUpdate, uintptr(e), uintptr(g), uintptr(unsafe.Pointer(info))); code {
	case 0:
		return true, nil
	case failed:
		return false, nil
	default:
		return false, c.failure(cuGraphExecUpdate, code)
	}
}

// LaunchGraph queues the work of e.
func (c *Context) LaunchGraph(e GraphExec, s Stream) error {
	return c.plainIn(cuGraphLaunch, uintptr(e), uintptr(s))
}

// DestroyGraph frees a graph. What was made of it stays.
func (c *Context) DestroyGraph(g Graph) error { return c.plainIn(cuGraphDestroy, uintptr(g)) }

// DestroyExec frees what was made of a graph, once its launches are done,
// without waiting for that.
func (c *Context) DestroyExec(e GraphExec) error { return c.plainIn(cuGraphExecDestroy, uintptr(e)) }
