package kernel

// microKernels lists the ways to multiply that this processor has, the fastest
// first and plain Go last. It never changes.
var microKernels = append(machineKernels(), goKernel)

// panelSize limits the panels that are packed at once.
type panelSize struct {
	k        int // inner indices, a multiple of sliceK
	elements int
}

// maxWidth is the greatest width of a strip.
const maxWidth = 32

// defaultPanel takes 4 MiB, so that two are a share of the last-level cache.
var defaultPanel = panelSize{k: 1024, elements: 1 << 20}

// microKernel is one way to multiply: the size of its tile and its code.
type microKernel struct {
	name  string
	panel panelSize
	a, b  packer // cut op(A) into strips of a.width rows, op(B) into strips of b.width columns

	// tile sets c = src + Σₖ a·b for a.width rows and b.width columns. Element
	// (i, k) of a lies at i·rs + k·cs, (k, j) of b at k·ldb + j, (i, j) of c at
	// i·ldc + j and of src at i·lds + j. src may be c, or nil for zeros. The
	// sum over k is taken in order, then src is added; k ≥ 1.
	tile func(k int, a *float32, rs, cs int, b *float32, ldb int, c *float32, ldc int, src *float32, lds int)
}
