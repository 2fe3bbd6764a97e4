package bench

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/ebitengine/purego"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/kernel"
)

// size is that of the square matrices.
const size = 1024

// BenchmarkMatMul multiplies square matrices with both engines, on one thread
// and on two.
func BenchmarkMatMul(b *testing.B) {
	blas, err := loadOpenBLAS()
	for _, threads := range []int{1, 2} {
		b.Run(fmt.Sprintf("headroom/threads=%d", threads), func(b *testing.B) { headroomMatMul(b, threads) })
		b.Run(fmt.Sprintf("openblas/threads=%d", threads), func(b *testing.B) {
			if err != nil {
				b.Skip(err)
			}
			blas.matMul(b, threads)
		})
	}
}

func reportRate(b *testing.B) {
	b.ReportMetric(2*size*size*size*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
}

func random() []float32 {
	m := make([]float32, size*size)
	for i := range m {
		m[i] = rand.Float32() - 0.5
	}
	return m
}

func headroomMatMul(b *testing.B, threads int) {
	dev, err := device.OpenHost(device.HostOptions{Capacity: 64 << 20, Workers: threads})
	if err != nil {
		b.Fatal(err)
	}
	stream, err := dev.NewStream()
	if err != nil {
		b.Fatal(err)
	}
	var p [3]kernel.Array
	for i := range p {
		if p[i].Ptr, err = dev.Alloc(4 * size * size); err != nil {
			b.Fatal(err)
		}
		stream.Upload(p[i].Ptr, device.BytesOf(random()))
	}
	g := kernel.Gemm{M: size, N: size, K: size, A: p[0], LDA: size, B: p[1], LDB: size, C: p[2], LDC: size}
	kernel.MatMul(stream, g)
	if err := stream.Sync(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		kernel.MatMul(stream, g)
		if err := stream.Sync(); err != nil {
			b.Fatal(err)
		}
	}
	reportRate(b)
}

// openBLAS is the library's two functions that are needed.
type openBLAS struct {
	sgemm   func(order, transA, transB, m, n, k int32, alpha float32, a *float32, lda int32, b *float32, ldb int32, beta float32, c *float32, ldc int32)
	threads func(n int32)
}

func loadOpenBLAS() (*openBLAS, error) {
	os.Unsetenv("OPENBLAS_CORETYPE") // before the library reads them
	os.Unsetenv("OPENBLAS_L2_SIZE")
	lib, err := purego.Dlopen("libopenblas.so.0", purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, fmt.Errorf("no OpenBLAS (apt-get install libopenblas0-pthread): %w", err)
	}
	o := &openBLAS{}
	purego.RegisterLibFunc(&o.sgemm, lib, "cblas_sgemm")
	purego.RegisterLibFunc(&o.threads, lib, "openblas_set_num_threads")
	return o, nil
}

func (o *openBLAS) matMul(b *testing.B, threads int) {
	const rowMajor, noTrans = 101, 111
	o.threads(int32(threads))
	x, y, z := random(), random(), random()
	for b.Loop() {
		o.sgemm(rowMajor, noTrans, noTrans, size, size, size, 1, &x[0], size, &y[0], size, 0, &z[0], size)
	}
	reportRate(b)
}
