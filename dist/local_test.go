package dist_test

import (
	"sync"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/dist/disttest"
)

func TestLocal(t *testing.T) {
	disttest.Run(t, func(_ *testing.T, size int, o dist.Options) []dist.Group { return dist.Local(size, o) })
}

// TestSpeed: all ranks get the same figure, also on devices of different sizes, leave
// nothing on the device, and a rank alone gets none.
func TestSpeed(t *testing.T) {
	for _, size := range []int{1, 3} {
		speeds := make([]float64, size)
		var ended sync.WaitGroup
		for i, g := range dist.Local(size, dist.Options{}) {
			ended.Go(func() {
				dev, err := device.OpenHost(device.HostOptions{Capacity: uint64(1+i) << 20, Workers: 1})
				if err == nil {
					speeds[i], err = dist.Speed(g, dev)
				}
				if err != nil {
					t.Error(err)
				}
				if err := dev.Close(); err != nil {
					t.Error(err)
				}
				if err := g.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		ended.Wait()
		for _, s := range speeds {
			if s != speeds[0] || (s > 0) != (size > 1) {
				t.Errorf("%d ranks have the speeds %v", size, speeds)
			}
		}
	}
}
