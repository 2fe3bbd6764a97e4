package plan

import (
	"context"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/train"
)

// MaxBatch is the largest batch that fits a device in one piece, with what one
// more would need.
type MaxBatch struct {
	Batch       int    `json:"batch"`
	Fits        Trial  `json:"fits"`
	MarginBytes uint64 `json:"margin_bytes"` // of the device's capacity, above what the step reserves
	Trials      int    `json:"trials"`       // runs on the null device
}

// maxBatch is where the search ends.
const maxBatch = 1 << 20

// LargestBatch finds the largest batch of c whose step fits a device with
// info's properties and capacity without micro-batches and with so many
// recomputed blocks; c.Batch is not looked at. Nothing runs out of memory on
// the way: all trials are on the null device, and what fits there fits. More
// samples need more memory, so it doubles until a batch does not fit and then
// halves the interval. It returns a *TooSmallError if not even one sample fits.
func LargestBatch(ctx context.Context, info device.Info, c train.Config, recompute int) (MaxBatch, error) {
	m := MaxBatch{}
	fits := func(n int) (bool, error) {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		c.Batch = n
		t, err := Try(info, info.Capacity, c, train.Strategy{MicroBatch: n, Recompute: recompute})
		m.Trials++
		if err == nil && t.Fits {
			m.Batch, m.Fits, m.MarginBytes = n, t, info.Capacity-t.ReservedBytes
		}
		return t.Fits, err
	}
	c.Batch = 1
	if err := c.Validate(); err != nil {
		return m, err
	}
	least := 1 // that is not known to fit
	for ; least <= maxBatch; least *= 2 {
		if ok, err := fits(least); err != nil || !ok {
			if err != nil {
				return m, err
			}
			break
		}
	}
	for lo, hi := least/2, min(least, maxBatch+1); hi-lo > 1; {
		mid := (lo + hi) / 2
		ok, err := fits(mid)
		if err != nil {
			return m, err
		}
		if ok {
			lo = mid
		} else {
			hi = mid
		}
	}
	if m.Batch == 0 {
		c.Batch = 1
		t, err := Try(info, unlimited, c, train.Strategy{MicroBatch: 1, Recompute: recompute})
		if err != nil {
			return m, err
		}
		return m, &TooSmallError{c.Model, info.Capacity, t.ReservedBytes, "one sample, " + size.Format(t.PeakBytes) + " live"}
	}
	return m, nil
}
