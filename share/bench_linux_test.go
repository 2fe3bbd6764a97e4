package share

import (
	"context"
	"fmt"
	"testing"
)

// BenchmarkLend lends a block, maps it at the other end, and gives it back.
func BenchmarkLend(b *testing.B) {
	for _, granules := range []uint64{1, 16, 256} {
		b.Run(fmt.Sprintf("granules=%d", granules), func(b *testing.B) {
			o, d := newOwner(b, int(granules)), openDevice(b, 1)
			l, borrower := connect(b, o, d)
			block := o.block(granules * page)
			for b.Loop() {
				loan := lend(b, l, block)
				if err := receive(b, borrower).Close(); err != nil {
					b.Fatal(err)
				}
				if err := loan.Wait(context.Background()); err != nil {
					b.Fatal(err)
				}
			}
			block.Free()
		})
	}
}
