package kernel

import (
	"embed"
	"fmt"

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

func newCUDACode(name string) *device.CUDACode {
	return &device.CUDACode{Name: name, PTX: func(capability int) (string, error) {
		const oldest = 70
		if capability < oldest {
			return "", fmt.Errorf("the GPU has compute capability %d.%d: the kernels need %d.%d or newer",
				capability/10, capability%10, oldest/10, oldest%10)
		}
		text, err := ptx.ReadFile(fmt.Sprintf("cuda/%s_sm%d.ptx", name, oldest))
		return string(text), err
	}}
}

var (
	attentionCode   = newCUDACode("attention")
	elementwiseCode = newCUDACode("elementwise")
	gemmCode        = newCUDACode("gemm")
	indexCode       = newCUDACode("index")
	optimCode       = newCUDACode("optim")
	reduceCode      = newCUDACode("reduce")
	rowsCode        = newCUDACode("rows")
)

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
// operands are dense along the row, it works on packs of four elements, and
// sizes and strides count packs.
func cudaNest(function string, operands int) cudaFunc {
	return func(l *device.Launch, q *device.CUDAQueue) {
		n := loadNest(l)
		pack := 1
		if n.packs(l.Ptr[:operands]) {
			pack = 4
			n.pack()
			n.store(l)
		}
		l.Int[nestInts+1], l.Int[nestInts+2] = pack, n.elements()
		q.Run(elementwiseCode, function, device.Grid{X: min(blocks(n.elements(), threads), 1<<14), Block: threads}, l)
	}
}

// packs says whether the nest can be taken in packs of four elements.
func (n *nest) packs(ptrs []device.Ptr) bool {
	last := n.dims - 1
	for _, p := range ptrs {
		if p%16 != 0 {
			return false
		}
	}
	for k := range n.stride {
		for i, s := range n.stride[k][:n.dims] {
			if i == last && s != 1 || i < last && s%4 != 0 {
				return false
			}
		}
	}
	return n.size[last]%4 == 0
}

func (n *nest) pack() {
	last := n.dims - 1
	n.size[last] /= 4
	for k := range n.stride {
		for i := range last {
			n.stride[k][i] /= 4
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
	if parts > 1 {
		sum.Ptr[2] = q.Workspace(4 * parts * results)
	}
	if rowKept {
		q.Run(reduceCode, "sum_columns_f32", device.Grid{X: units, Y: parts, Block: threads}, &sum)
	} else {
		q.Run(reduceCode, "sum_rows_f32", warps(results*parts), &sum)
	}
	if parts > 1 {
		q.Run(reduceCode, "sum_fold_f32", warps(results), &sum)
	}
}

func cudaSumSquares(l *device.Launch, q *device.CUDAQueue) {
	g := sweep(l.Int[0])
	g.X = max(1, min(g.X, cudaParts))
	l.Int[2], l.Ptr[2] = g.X, q.Workspace(4*cudaParts)
	q.Run(reduceCode, "sum_squares_f32", g, l)
	q.Run(reduceCode, "sum_squares_fold_f32", device.Grid{X: 1, Block: threads}, l)
}

func cudaClipScale(l *device.Launch, q *device.CUDAQueue) {
	q.Run(reduceCode, "clip_scale_f32", device.Grid{X: 1, Block: 32}, l)
}

// cudaLayerNormGrad computes the parameters' gradients first, since dx may be dy.
func cudaLayerNormGrad(l *device.Launch, q *device.CUDAQueue) {
	rows, cols := l.Int[0], l.Int[1]
	if l.Ptr[1] != 0 || l.Ptr[2] != 0 {
		parts := max(1, min(cudaParts/blocks(cols, 32), rows/64))
		l.Int[5], l.Ptr[8] = parts, q.Workspace(8*parts*cols)
		q.Run(rowsCode, "layer_norm_params_f32", device.Grid{X: blocks(cols, 32), Y: parts, Block: threads}, l)
		q.Run(rowsCode, "layer_norm_fold_f32", device.Grid{X: blocks(2*cols, threads), Block: threads}, l)
	}
	if l.Ptr[0] != 0 {
		q.Run(rowsCode, "layer_norm_grad_f32", warps(rows), l)
	}
}

func cudaCrossEntropy(l *device.Launch, q *device.CUDAQueue) {
	l.Ptr[5] = q.Workspace(4 * l.Int[0])
	q.Run(rowsCode, "cross_entropy_f32", device.Grid{X: l.Int[0], Block: threads}, l)
	q.Run(rowsCode, "cross_entropy_fold_f32", device.Grid{X: 1, Block: 1024}, l)
}

func cudaCrossEntropyGrad(l *device.Launch, q *device.CUDAQueue) {
	l.Ptr[5] = q.Workspace(4)
	q.Run(rowsCode, "cross_entropy_scale_f32", device.Grid{X: 1, Block: 1024}, l)
	q.Run(rowsCode, "cross_entropy_grad_f32", device.Grid{X: l.Int[0], Block: threads}, l)
}

func cudaEmbeddingGrad(l *device.Launch, q *device.CUDAQueue) {
	q.Run(indexCode, "embedding_grad_f32", device.Grid{X: l.Int[0], Y: blocks(l.Int[1], threads), Block: threads}, l)
}

// cudaMatMul multiplies by cuBLASLt, or where that can't by its own function.
func cudaMatMul(l *device.Launch, q *device.CUDAQueue) {
	g := loadGemm(l)
	if g.K > 0 && q.Product(&device.Product{
		M: g.M, N: g.N, K: g.K, Batch: g.Batch, TransA: g.TransA, TransB: g.TransB,
		LDA: g.LDA, LDB: g.LDB, LDD: g.LDC, StrideA: g.StrideA, StrideB: g.StrideB, StrideD: g.StrideC,
		A: g.A, B: g.B, D: g.C, Bias: g.Bias, Accumulate: g.Accumulate,
	}) {
		return
	}
	const tile = 64
	q.Run(gemmCode, "matmul_f32", device.Grid{X: blocks(g.N, tile), Y: blocks(g.M, tile), Z: g.Batch, Block: threads}, l)
}

// attentionShape is one of the shapes of cuda/attention.cu: rows of a tile, and
// the greatest length of a head's rows.
type attentionShape struct{ rows, d int }

func cudaAttentionShape(d int) attentionShape {
	for _, s := range []attentionShape{{64, 64}, {32, 128}, {16, 256}} {
		if d <= s.d {
			return s
		}
	}
	panic(fmt.Sprintf("kernel.Attention: heads of %d elements; CUDA devices take up to 256", d))
}

// grid is that of n rows of each head, with so many tiles of operands and one
// of scores in shared memory.
func (s attentionShape) grid(n, heads, tiles int) device.Grid {
	return device.Grid{X: blocks(n, s.rows), Y: heads, Block: threads, Shared: 4 * s.rows * (tiles*(s.d+4) + s.rows + 4)}
}

func cudaAttention(l *device.Launch, q *device.CUDAQueue) {
	a := loadAttention(l)
	s := cudaAttentionShape(a.D)
	q.Run(attentionCode, fmt.Sprintf("attention_%d_f32", s.d), s.grid(a.T, a.Batch*a.Heads, 2), l)
}

func cudaAttentionGrad(l *device.Launch, q *device.CUDAQueue) {
	a := loadAttention(l)
	s, heads := cudaAttentionShape(a.D), a.Batch*a.Heads
	q.Run(attentionCode, "attention_delta_f32", device.Grid{X: blocks(a.T, threads/32), Y: heads, Block: threads}, l)
	q.Run(attentionCode, fmt.Sprintf("attention_grad_q_%d_f32", s.d), s.grid(a.T, heads, 4), l)
	q.Run(attentionCode, fmt.Sprintf("attention_grad_kv_%d_f32", s.d), s.grid(a.S, heads, 4), l)
}
