package device

import (
	"errors"
	"sync"

	"github.com/headroom-go/headroom/internal/cuda"
)

// Product is a matrix product for CUDAQueue.Product: D = op(A)·op(B) + bias,
// or that added to D, in the order of rows: D is M×N, op(A) M×K, op(B) K×N,
// all float32, for a batch of them. Distances count elements.
type Product struct {
	M, N, K, Batch            int
	TransA, TransB            bool
	LDA, LDB, LDD             int
	StrideA, StrideB, StrideD int
	A, B, D, Bias             Ptr // bias: N elements for each row; 0 for none
	Accumulate                bool
}

// cudaBLAS keeps a plan for each product that was asked for.
type cudaBLAS struct {
	blas      *cuda.BLAS // nil where there is no cuBLASLt
	missing   error      // why
	workspace int

	mu    sync.Mutex
	plans map[cuda.Product]*cuda.Plan
}

// start loads the library where there is one.
func (b *cudaBLAS) start(c *cuda.Context, o *CUDAOptions) {
	b.workspace, b.plans = int(o.Workspace), map[cuda.Product]*cuda.Plan{}
	if o.driver == nil {
		b.blas, b.missing = cuda.OpenBLAS(c, o.Folders)
	}
	if b.missing != nil {
		b.blas = nil
	}
}

// Product queues a matrix product by cuBLASLt. It says false, and does
// nothing, where the library is missing or has no algorithm for it.
func (q *CUDAQueue) Product(p *Product) bool {
	s := q.stream
	b := &s.device.blas
	if b.blas == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	plan := b.plan(p)
	if plan == nil {
		return false
	}
	work := q.Workspace(plan.Workspace())
	s.keep(plan.Run(s.handle, cuda.Ptr(p.D), cuda.Ptr(p.B), cuda.Ptr(p.A), cuda.Ptr(p.Bias), p.Accumulate, cuda.Ptr(work)))
	return true
}

// plan finds the plan, which may be nil, or makes it. The library knows
// matrices in the order of columns, where each is its own transpose: so it
// computes Dᵀ = op(B)ᵀ·op(A)ᵀ.
func (b *cudaBLAS) plan(p *Product) *cuda.Plan {
	key := cuda.Product{
		M: p.N, N: p.M, K: p.K, Batch: p.Batch,
		TransA: p.TransB, TransB: p.TransA, Bias: p.Bias != 0,
		LDA: p.LDB, LDB: p.LDA, LDD: p.LDD,
		StrideA: p.StrideB, StrideB: p.StrideA, StrideD: p.StrideD,
		AlignA: alignment(p.B), AlignB: alignment(p.A), AlignD: alignment(p.D),
	}
	plan, ok := b.plans[key]
	if !ok {
		plan, _ = b.blas.Plan(&key, b.workspace)
		b.plans[key] = plan
	}
	return plan
}

// alignment is the greatest power of two up to 256 that divides the address.
func alignment(p Ptr) int { return int((p | 256) & -(p | 256)) }

func (b *cudaBLAS) close() (err error) {
	for _, plan := range b.plans {
		if plan != nil {
			err = errors.Join(err, plan.Close())
		}
	}
	if b.blas != nil {
		err = errors.Join(err, b.blas.Close())
	}
	return err
}
