package tensor_test

import (
	"fmt"
	"log"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// A gradient: d(Σ x·w)/dw = x. Every handle is released by who got it.
func Example() {
	dev, err := device.Open("host:16MiB")
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	mem, err := alloc.New(dev, alloc.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer mem.Close()
	stream, err := dev.NewStream()
	if err != nil {
		log.Fatal(err)
	}
	rt := tensor.New(mem, stream)
	err = rt.Try(func() { // misuse and lack of memory come back as an error
		w := rt.FromFloat32s(trace.Parameter, []float32{1, 2, 3}, 3).RequireGrad()
		x := rt.FromFloat32s(trace.Input, []float32{4, 5, 6}, 3)
		y := tensor.Mul(x, w)
		x.Release() // y's past keeps what it needs
		loss := tensor.Sum(y)
		y.Release()
		fmt.Println("loss", loss.Float32s())
		loss.Backward(1)
		loss.Release()
		fmt.Println("gradient", w.Grad().Float32s())
		w.Release()
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("bytes live", mem.Stats().Live)
	// Output:
	// loss [32]
	// gradient [4 5 6]
	// bytes live 0
}
