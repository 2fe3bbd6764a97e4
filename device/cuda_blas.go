package device

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/headroom-go/headroom/internal/cuda"
)

// Product is a matrix product for CUDAQueue.Product: D = op(A)·op(B) + bias,
// or that added to D, in the order of rows: D is M×N, op(A) M×K, op(B) K×N, for
// a batch of them. Distances count elements. Sums are float32.
type Product struct {
	M, N, K, Batch            int
	TransA, TransB            bool
	LDA, LDB, LDD             int
	StrideA, StrideB, StrideD int
	A, B, D, Bias             Ptr // bias: N elements for each row; 0 for none
	TypeA, TypeB, TypeD       DType
	TypeBias                  DType
	Accumulate                bool
}

// asideBytes are at the end of the workspace, which products leave alone.
const asideBytes = 256 << 10

// Aside gives n bytes, at most 256 KiB, that work like those of Workspace, but
// which Product leaves alone.
func (q *CUDAQueue) Aside(n int) Ptr {
	if n > asideBytes {
		panic(fmt.Sprintf("device: %d bytes aside; there are %d", n, asideBytes))
	}
	size := q.WorkspaceBytes()
	return q.Workspace(size) + Ptr(size-asideBytes)
}

// cudaBLAS keeps a plan for each product that was asked for.
type cudaBLAS struct {
	blas      *cuda.BLAS // nil where there is no cuBLASLt
	missing   error      // why
	workspace int

	mu        sync.Mutex
	plans     map[cuda.Product]*cuda.Plan
	tuning    *Tuning // which algorithms products take; nil: each the first
	measuring bool    // products that are new are timed, and added to tuning
}

// start loads the library where there is one.
func (b *cudaBLAS) start(c *cuda.Context, o *CUDAOptions) {
	b.workspace, b.plans = max(0, int(o.Workspace)-asideBytes), map[cuda.Product]*cuda.Plan{}
	switch {
	case o.blas != nil:
		b.blas, b.missing = cuda.FakeBLAS(c, o.blas)
	case o.driver == nil:
		b.blas, b.missing = cuda.OpenBLAS(c, o.Folders)
	}
	if b.missing != nil {
		b.blas = nil
	}
}

// Product queues a matrix product by cuBLASLt. It says false, and does
// nothing, where the library is missing or has no algorithm for it: A and B
// must have one type, and a bias that of D.
func (q *CUDAQueue) Product(p *Product) bool {
	s := q.stream
	b := &s.device.blas
	if b.blas == nil || p.TypeA != p.TypeB || p.TypeD != p.TypeA && p.TypeD != Float32 || p.Bias != 0 && p.TypeBias != p.TypeD {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	plan := q.plan(p)
	if plan == nil {
		return false
	}
	work := cuda.Ptr(q.Workspace(plan.Workspace()))
	handle := uintptr(unsafe.Pointer(plan))
	if p.Accumulate { // for which the library may have other kernels
		handle++
	}
	s.batch.enter(handle)
	s.batch.leave(q.multiply(plan, p, work))
	return true
}

// multiply queues p by its plan, with the workspace.
func (q *CUDAQueue) multiply(plan *cuda.Plan, p *Product, work cuda.Ptr) error {
	return plan.Run(q.stream.handle, cuda.Ptr(p.D), cuda.Ptr(p.B), cuda.Ptr(p.A), cuda.Ptr(p.Bias), p.Accumulate, work)
}

// plan finds the plan, which may be nil, or makes it. The library knows
// matrices in the order of columns, where each is its own transpose: so it
// computes Dᵀ = op(B)ᵀ·op(A)ᵀ. b.mu must be held.
func (q *CUDAQueue) plan(p *Product) *cuda.Plan {
	b := &q.stream.device.blas
	key := cuda.Product{
		M: p.N, N: p.M, K: p.K, Batch: p.Batch,
		TransA: p.TransB, TransB: p.TransA, Bias: p.Bias != 0,
		TypeA: blasTypes[p.TypeB], TypeB: blasTypes[p.TypeA], TypeD: blasTypes[p.TypeD],
		LDA: p.LDB, LDB: p.LDA, LDD: p.LDD,
		StrideA: p.StrideB, StrideB: p.StrideA, StrideD: p.StrideD,
		AlignA: alignment(p.B), AlignB: alignment(p.A), AlignD: alignment(p.D),
	}
	plan, ok := b.plans[key]
	if !ok {
		q.stream.device.flush()
		plan = q.newPlan(&key, p)
		b.plans[key] = plan
	}
	return plan
}

// newPlan makes a plan, and chooses its algorithm; nil: there is none.
func (q *CUDAQueue) newPlan(key *cuda.Product, p *Product) *cuda.Plan {
	b := &q.stream.device.blas
	if b.tuning == nil {
		plan, _ := b.blas.Plan(key, b.workspace, 1)
		return plan
	}
	plan, err := b.blas.Plan(key, b.workspace, tunedAlgorithms)
	if err != nil {
		return nil
	}
	plan.Choose(q.tuned(plan, key, p))
	return plan
}

// blasTypes are the library's numbers of element types.
var blasTypes = [...]int{Float32: cuda.Float32, BFloat16: cuda.BFloat16, Float16: cuda.Float16}

// alignment is the greatest power of two up to 256 that divides the address.
func alignment(p Ptr) int { return int((p | 256) & -(p | 256)) }

func (b *cudaBLAS) close() error {
	err := b.forget()
	if b.blas != nil {
		err = errors.Join(err, b.blas.Close())
	}
	return err
}

// forget ends all plans.
func (b *cudaBLAS) forget() (err error) {
	for _, plan := range b.plans {
		if plan != nil {
			err = errors.Join(err, plan.Close())
		}
	}
	clear(b.plans)
	return err
}
