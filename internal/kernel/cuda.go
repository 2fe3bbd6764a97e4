package kernel

import (
	"embed"
	"fmt"
	"slices"

	"github.com/headroom-go/headroom/device"
)

// The CUDA versions of the kernels.
//
// Their code is CUDA C in the folder cuda, compiled to PTX by generate.sh. What
// is here says, for each kernel, with which grids its functions run and what
// they find in the launch beside what the host's version does. Grids follow
// from shapes alone, as do the parts into which sums are cut, so that results
// are the same on all GPUs, to the last bit where their arithmetic is.

//go:embed cuda/*.ptx
var ptx embed.FS

// newCUDACode is the code of a file for GPUs of a compute capability or newer.
// For those with tensor cores for bfloat16 some files have a second version.
func newCUDACode(name string, oldest int) *device.CUDACode {
	return &device.CUDACode{Name: name, PTX: func(capability int) (string, error) {
		if capability < oldest {
			return "", fmt.Errorf("the GPU has compute capability %d.%d: the kernels of %s need %d.%d or newer",
				capability/10, capability%10, name, oldest/10, oldest%10)
		}
		if capability >= tensorCores {
			if text, err := ptx.ReadFile("cuda/" + name + "_80.ptx"); err == nil {
				return string(text), nil
			}
		}
		text, err := ptx.ReadFile("cuda/" + name + ".ptx")
		return string(text), err
	}}
}

var (
	attentionCode     = newCUDACode("attention", 70)
	attentionHalfCode = newCUDACode("attention_half", tensorCores)
	channelsCode      = newCUDACode("channels", 70)
	combineCode       = newCUDACode("combine", 70)
	elementwiseCode   = newCUDACode("elementwise", 70)
	gemmCode          = newCUDACode("gemm", 70)
	imageCode         = newCUDACode("image", 70)
	indexCode         = newCUDACode("index", 70)
	optimCode         = newCUDACode("optim", 70)
	pack8Code         = newCUDACode("pack8", 70)
	pagedCode         = newCUDACode("paged", 70)
	reduceCode        = newCUDACode("reduce", 70)
	rowsCode          = newCUDACode("rows", 70)
)

// tensorCores is the oldest compute capability whose tensor cores are used.
const tensorCores = 80

// threads are those of a block, in all but a few kernels.
const threads = 256

// cudaFunc queues a launch.
type cudaFunc = func(l *device.Launch, q *device.CUDAQueue)

// blocks covers n elements with blocks of so many.
func blocks(n, each int) int { return (n + each - 1) / each }

// sweep is the grid for n elements, of which a thread takes several.
func sweep(n int) device.Grid {
	return device.Grid{X: min(blocks(n, 4*threads), 4096), Block: threads}
}

// cudaElements runs a function over Int[0] elements.
func cudaElements(code *device.CUDACode, function string) cudaFunc {
	return func(l *device.Launch, q *device.CUDAQueue) { q.Run(code, function, sweep(l.Int[0]), l) }
}

// cudaTable runs a function over as many elements as Int[0] times Int[i].
func cudaTable(code *device.CUDACode, function string, i int) cudaFunc {
	return func(l *device.Launch, q *device.CUDAQueue) { q.Run(code, function, sweep(l.Int[0]*l.Int[i]), l) }
}

// cudaWarps runs a function with a warp for each of Int[0] rows.
func cudaWarps(code *device.CUDACode, function string) cudaFunc {
	return func(l *device.Launch, q *device.CUDAQueue) { q.Run(code, function, warps(l.Int[0]), l) }
}

func warps(n int) device.Grid { return device.Grid{X: blocks(n, threads/32), Block: threads} }

// cudaRows runs a function with a block for each of Int[0] rows.
func cudaRows(code *device.CUDACode, function string) cudaFunc {
	return func(l *device.Launch, q *device.CUDAQueue) {
		q.Run(code, function, device.Grid{X: l.Int[0], Block: threads}, l)
	}
}

// cudaNest runs a function over a nest that the launch holds. Where all
// operands are dense along the row, it works on packs of eight elements, and
// sizes and strides count packs.
func cudaNest(function string, operands int) cudaFunc {
	return func(l *device.Launch, q *device.CUDAQueue) {
		n := loadNest(l)
		pack := 1
		if n.packs(l.Ptr[:operands]) {
			pack = packLen
			n.pack()
			n.store(l)
		}
		l.Int[nestInts+1], l.Int[nestInts+2] = pack, n.elements()
		q.Run(elementwiseCode, function, device.Grid{X: min(blocks(n.elements(), threads), 1<<14), Block: threads}, l)
	}
}

// aligned says whether all addresses are multiples of 16.
func aligned(ptrs ...device.Ptr) bool {
	var all device.Ptr
	for _, p := range ptrs {
		all |= p
	}
	return all%16 == 0
}

// packLen is the number of elements of a pack: 16 bytes of those of 16 bits.
const packLen = 8

// packs says whether the nest can be taken in packs.
func (n *nest) packs(ptrs []device.Ptr) bool {
	if !aligned(ptrs...) {
		return false
	}
	last := n.dims - 1
	for k := range n.stride {
		for i, s := range n.stride[k][:n.dims] {
			if i == last && s != 1 || i < last && s%packLen != 0 {
				return false
			}
		}
	}
	return n.size[last]%packLen == 0
}

func (n *nest) pack() {
	last := n.dims - 1
	n.size[last] /= packLen
	for k := range n.stride {
		for i := range last {
			n.stride[k][i] /= packLen
		}
	}
}

// Sums are cut into parts so that there are about so many blocks, each part
// with so many terms or more.
const (
	cudaParts     = 1024
	cudaPartTerms = 256
)

// cudaSum is SumTo: see cuda/reduce.cu for what the functions find where.
func cudaSum(l *device.Launch, q *device.CUDAQueue) {
	n, accumulate := loadNest(l), l.Int[nestInts]
	rowKept := n.step(0) != 0
	sum, kept := *l, 0
	results, terms := 1, 1
	place := 6
	for _, keep := range []bool{true, false} {
		for i := range n.dims {
			if (n.stride[0][i] != 0) != keep {
				continue
			}
			sum.Int[place], sum.Int[place+1], sum.Int[place+2] = n.size[i], n.stride[0][i], n.stride[1][i]
			place += 3
			if keep {
				kept++
				results *= n.size[i]
			} else {
				terms *= n.size[i]
			}
		}
	}
	units := results // warps, or blocks of 32 results
	if rowKept {
		units = blocks(results, 32)
	}
	parts := max(1, min(cudaParts/max(1, units), terms/cudaPartTerms))
	copy(sum.Int[:], []int{kept, n.dims - kept, accumulate, parts, results, terms})
	if n.denseColumns(l.Ptr[1]) {
		cudaDenseColumns(&sum, q)
		return
	}
	if parts > 1 {
		sum.Ptr[2] = q.Workspace(4 * parts * results)
	}
	if rowKept {
		q.Run(reduceCode, "sum_columns", device.Grid{X: units, Y: parts, Block: threads}, &sum)
	} else {
		q.Run(reduceCode, "sum_rows", warps(results*parts), &sum)
	}
	if parts > 1 {
		q.Run(reduceCode, "sum_fold", warps(results), &sum)
	}
}

// denseColumns says whether the nest is the sum of a matrix's columns that lie
// in packs.
func (n *nest) denseColumns(src device.Ptr) bool {
	return n.dims == 2 && n.stride[0] == [MaxDims]int{0, 1} && n.stride[1][1] == 1 &&
		src%16 == 0 && n.size[1]%packLen == 0 && n.stride[1][0]%packLen == 0
}

// The most blocks that sum columns in packs, four for each multiprocessor of an
// H200, which run at once; and a number of rows of which each warp of a block
// loads four at a time.
const (
	cudaColumnBlocks = 528
	cudaColumnRows   = 32
)

// cudaDenseColumns sums columns in packs. l has what cudaSum puts there.
func cudaDenseColumns(l *device.Launch, q *device.CUDAQueue) {
	cols, rows := l.Int[4], l.Int[5]
	units := blocks(cols, threads)
	each := max(2, blocks(blocks(rows, cudaColumnRows), max(1, cudaColumnBlocks/units))) * cudaColumnRows
	l.Int[3], l.Int[7] = max(1, blocks(rows, each)), each
	if l.Int[3] > 1 {
		l.Ptr[2] = q.Workspace(4 * l.Int[3] * cols)
	}
	q.Run(reduceCode, "dense_columns", device.Grid{X: units, Y: l.Int[3], Block: threads}, l)
	if l.Int[3] > 1 {
		q.Run(reduceCode, "column_fold", device.Grid{X: blocks(cols, 32), Block: 1024}, l)
	}
}

// Chunks of updates, and of sums of squares, of which each leaves one sum.
const (
	cudaUpdateChunk = 1 << 12
	cudaSquareChunk = 1 << 14
)

// cudaUpdates runs a function over the chunks of parameters.
func cudaUpdates(function string) cudaFunc {
	return func(l *device.Launch, q *device.CUDAQueue) {
		l.Int[1] = cudaUpdateChunk
		q.Run(optimCode, function, cudaChunks(l.Members, cudaUpdateChunk), l)
	}
}

func cudaSumSquares(l *device.Launch, q *device.CUDAQueue) {
	g := cudaChunks(l.Members, cudaSquareChunk)
	l.Int[1], l.Int[2], l.Ptr[1] = cudaSquareChunk, g.X, q.Workspace(4*g.X)
	q.Run(reduceCode, "sum_squares", g, l)
	l.Members = nil
	q.Run(reduceCode, "sum_squares_fold", device.Grid{X: 1, Block: 1024}, l)
}

func cudaClipScale(l *device.Launch, q *device.CUDAQueue) {
	q.Run(reduceCode, "clip_scale", device.Grid{X: 1, Block: 32}, l)
}

func cudaLayerNorm(l *device.Launch, q *device.CUDAQueue) {
	q.Run(rowsCode, normFunction(l, 768, "layer_norm", "layer_norm_768", "layer_norm_1792", 0, 3), warps(l.Int[0]), l)
}

func cudaAddLayerNorm(l *device.Launch, q *device.CUDAQueue) {
	q.Run(rowsCode, normFunction(l, 1024, "add_layer_norm", "add_layer_norm_1024", "add_layer_norm_1792", 0, 3, 6, 7), warps(l.Int[0]), l)
}

// normFunction chooses the function of a layer normalisation. Of mixed precision, with
// the operands numbered in low of bfloat16, there are versions that hold rows in
// registers: short for up to few elements, long for up to 1792.
func normFunction(l *device.Launch, few int, plain, short, long string, low ...int) string {
	cols := l.Int[1]
	fits := l.Ptr[0] != 0 && cols%packLen == 0 && aligned(l.Ptr[4], l.Ptr[5]) && l.Type[4] == device.Float32 && l.Type[5] == device.Float32
	for _, i := range low {
		fits = fits && l.Type[i] == device.BFloat16 && aligned(l.Ptr[i])
	}
	switch {
	case !fits || cols > 1792:
		return plain
	case cols <= few:
		return short
	}
	return long
}

// normGradAll gives the function that computes all gradients of a layer
// normalisation in one pass, and how many warps it has; "" where the types or
// sizes are none's.
func normGradAll(l *device.Launch) (string, int) {
	type types = [4]device.DType
	packs := aligned(l.Ptr[0], l.Ptr[3], l.Ptr[4], l.Ptr[7]) && l.Int[1]%packLen == 0 && l.Int[1] <= longestNormGrad
	switch kinds := (types{l.Type[0], l.Type[3], l.Type[4], l.Type[7]}); {
	case !packs:
		return "", 0
	case kinds == types{device.BFloat16, device.BFloat16, device.BFloat16, device.Float32}:
		return "layer_norm_grad_bfloat16", 21
	case slices.Contains([]types{
		{device.Float32, device.Float32, device.Float32, device.Float32},
		{device.Float32, device.Float32, device.BFloat16, device.Float32},
		{device.Float32, device.BFloat16, device.BFloat16, device.Float32},
	}, kinds):
		return "layer_norm_grad_float32", 16
	}
	return "", 0
}

// The longest rows of normGradAll's functions, a pack for each thread of 16
// warps, and their most blocks, one for each multiprocessor of an H200.
const (
	longestNormGrad = 16 * 32 * packLen
	normGradBlocks  = 132
)

// cudaLayerNormGrad computes all gradients in one pass where it can, otherwise
// the parameters' first, since dx may be dy.
func cudaLayerNormGrad(l *device.Launch, q *device.CUDAQueue) {
	rows, cols := l.Int[0], l.Int[1]
	params := l.Ptr[1] != 0 || l.Ptr[2] != 0
	fold := func(function string, g device.Grid, parts int) {
		l.Int[5], l.Ptr[8] = parts, q.Workspace(8*parts*cols)
		q.Run(rowsCode, function, g, l)
		q.Run(rowsCode, "layer_norm_fold", device.Grid{X: blocks(cols, 32), Block: 1024}, l)
	}
	if all, warps := normGradAll(l); params && all != "" {
		wide := blocks(cols, 32*packLen) // warps of a row
		groups := warps / wide
		parts := max(1, min(blocks(rows, groups), normGradBlocks))
		fold(all, device.Grid{X: parts, Block: 32 * wide * groups}, parts)
		return
	}
	if params {
		parts := max(1, min(cudaParts/blocks(cols, 32), rows/64))
		fold("layer_norm_params", device.Grid{X: blocks(cols, 32), Y: parts, Block: threads}, parts)
	}
	if l.Ptr[0] != 0 {
		q.Run(rowsCode, "layer_norm_grad", warps(rows), l)
	}
}

func cudaCrossEntropy(l *device.Launch, q *device.CUDAQueue) {
	l.Ptr[5] = q.Workspace(4 * l.Int[0])
	q.Run(rowsCode, "cross_entropy", device.Grid{X: l.Int[0], Block: threads}, l)
	q.Run(rowsCode, "cross_entropy_fold", device.Grid{X: 1, Block: 1024}, l)
}

func cudaCrossEntropyGrad(l *device.Launch, q *device.CUDAQueue) {
	l.Ptr[5] = q.Workspace(4)
	q.Run(rowsCode, "cross_entropy_scale", device.Grid{X: 1, Block: 1024}, l)
	q.Run(rowsCode, "cross_entropy_grad", device.Grid{X: l.Int[0], Block: threads}, l)
}

func cudaRowSums(l *device.Launch, q *device.CUDAQueue) {
	q.Run(rowsCode, "row_sums", device.Grid{X: l.Int[0], Block: 512}, l)
}

// heldSpare is the shared memory that a block of cross_entropy_held takes beside its row.
// Rows are held where a multiprocessor has room for two: while one is read, the other is
// computed.
const heldSpare = 2 << 10

func cudaCrossEntropyOver(l *device.Launch, q *device.CUDAQueue) {
	function, grid := "cross_entropy_over", device.Grid{X: l.Int[0], Block: 512}
	if l.Type[2] == device.BFloat16 && l.Ptr[2]%16 == 0 && l.Int[4]%packLen == 0 {
		function = "cross_entropy_packs"
		if row := 2 * l.Int[4]; l.Ptr[1] != 0 && q.Capability() >= tensorCores && 2*(row+heldSpare) <= q.SharedMemory() {
			function, grid.Shared = "cross_entropy_held", row
		}
	}
	l.Ptr[5] = q.Workspace(4 + 4*l.Int[0])
	q.Run(rowsCode, "cross_entropy_divisor", device.Grid{X: 1, Block: 1024}, l)
	q.Run(rowsCode, function, grid, l)
	q.Run(rowsCode, "cross_entropy_part", device.Grid{X: blocks(l.Int[0], l.Int[9]), Block: threads}, l)
}

func cudaEmbeddingGrad(l *device.Launch, q *device.CUDAQueue) {
	n := l.Int[0]
	l.Ptr[3] = q.Workspace(2 * n)
	clear := device.Launch{Kernel: l.Kernel}
	clear.Ptr[0], clear.Int[0] = l.Ptr[3], blocks(2*n, 4) // whole words
	q.Run(elementwiseCode, "fill", sweep(clear.Int[0]), &clear)
	q.Run(indexCode, "embedding_links", warps(n), l)
	q.Run(indexCode, "embedding_grad", device.Grid{X: l.Int[0], Y: blocks(l.Int[1], threads), Block: threads}, l)
}

// cudaPack8 has a warp for each block of elements.
func cudaPack8(l *device.Launch, q *device.CUDAQueue) {
	q.Run(pack8Code, "pack8", warps(blocks(l.Int[0], pack8Block)), l)
}

// cudaMatMul multiplies by cuBLASLt, or where that can't by its own function.
func cudaMatMul(l *device.Launch, q *device.CUDAQueue) {
	g := loadGemm(l)
	p := device.Product{
		M: g.M, N: g.N, K: g.K, Batch: g.Batch, TransA: g.TransA, TransB: g.TransB,
		LDA: g.LDA, LDB: g.LDB, LDD: g.LDC, StrideA: g.StrideA, StrideB: g.StrideB, StrideD: g.StrideC,
		A: g.A.Ptr, B: g.B.Ptr, D: g.C.Ptr, Bias: g.Bias.Ptr, Accumulate: g.Accumulate,
		TypeA: g.A.Type, TypeB: g.B.Type, TypeD: g.C.Type, TypeBias: g.Bias.Type,
	}
	if g.Bias.given() && g.Bias.Type != g.C.Type && g.N <= maxCastBias {
		p.Bias, p.TypeBias = castBias(g, l, q), g.C.Type
	}
	if g.K > 0 && q.Product(&p) {
		return
	}
	const tile = 64
	q.Run(gemmCode, "matmul", device.Grid{X: blocks(g.N, tile), Y: blocks(g.M, tile), Z: g.Batch, Block: threads}, l)
}

// maxCastBias is the length of the longest bias that has room beside a product.
const maxCastBias = 64 << 10

// castBias gives the bias in the type of C, which is all that cuBLASLt takes.
func castBias(g *Gemm, l *device.Launch, q *device.CUDAQueue) device.Ptr {
	cast := device.Launch{Kernel: l.Kernel}
	cast.Ptr[0], cast.Type[0] = q.Aside(4*g.N), g.C.Type
	cast.Ptr[1], cast.Type[1] = g.Bias.Ptr, g.Bias.Type
	cast.Int[0], cast.Float[0] = g.N, 1
	q.Run(elementwiseCode, "scale", sweep(g.N), &cast)
	return cast.Ptr[0]
}
