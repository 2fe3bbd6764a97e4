package plan

import (
	"context"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/train"
)

// Largest is the largest batch or sequence whose step fits a device.
type Largest struct {
	Size        int    `json:"size"` // samples or tokens
	Fits        Trial  `json:"fits"`
	MarginBytes uint64 `json:"margin_bytes"` // of the device's capacity, above what the step reserves
	Trials      int    `json:"trials"`
}

// most is where the searches end.
const most = 1 << 20

// LargestBatch finds the largest batch of c whose step fits a device with
// info's properties and capacity without micro-batches: with all values kept
// or, with again, with values made again or moved away; c.Batch is not looked
// at. Nothing runs out of memory on the way: all trials are on the null device,
// and what fits there fits. It returns a *TooSmallError if not even one sample
// fits.
func LargestBatch(ctx context.Context, info device.Info, c train.Config, again bool, o Options) (Largest, error) {
	return largest(ctx, info, c, most, again, o, func(c *train.Config, n int) { c.Batch = n })
}

// LargestSeq finds the longest sequence of which a step with the batch of c
// fits, as LargestBatch does.
func LargestSeq(ctx context.Context, info device.Info, c train.Config, again bool, o Options) (Largest, error) {
	return largest(ctx, info, c, c.Context(), again, o, func(c *train.Config, n int) { c.Seq = n })
}

// largest doubles a size until the step does not fit, and then halves the
// interval: a larger one needs more memory.
func largest(ctx context.Context, info device.Info, c train.Config, limit int, again bool, o Options, set func(c *train.Config, n int)) (l Largest, err error) {
	fits := func(n int) bool {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return false
		}
		set(&c, n)
		var t Trial
		l.Trials++
		if t, err = inOnePiece(ctx, info, c, again, o); t.Fits {
			l.Size, l.Fits, l.MarginBytes = n, t, info.Capacity-t.ReservedBytes
		}
		return t.Fits
	}
	set(&c, 1)
	if err := c.Validate(); err != nil {
		return l, err
	}
	lo, hi := 0, 1
	for hi <= limit && fits(hi) {
		lo, hi = hi, 2*hi
	}
	for hi = min(hi, limit+1); hi-lo > 1; {
		if mid := (lo + hi) / 2; fits(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	if l.Size == 0 && err == nil {
		set(&c, 1)
		var t Trial
		if t, err = Try(info, unlimited, c, c.Plain(), o); err == nil {
			err = &TooSmallError{c.Model, info.Capacity, t.ReservedBytes, "the smallest, " + size.Format(t.PeakBytes) + " live"}
		}
	}
	return l, err
}

// inOnePiece tries a step without micro-batches.
func inOnePiece(ctx context.Context, info device.Info, c train.Config, again bool, o Options) (t Trial, err error) {
	for _, s := range o.outside(c, c.Batch) {
		if t, err = Try(info, info.Capacity, c, s, o); err != nil || t.Fits && o.room(t) {
			return t, err
		}
	}
	for _, s := range o.outside(c, c.Batch) {
		if !again {
			break
		}
		free, err := Try(info, unlimited, c, s, o)
		if err != nil || !o.room(free) {
			return Trial{}, err
		}
		prog, err := record(info, c, free, o)
		if err != nil {
			return Trial{}, err
		}
		best, err := prog.solve(ctx, info, c, s, o)
		if err == nil && best.Fits && o.room(best) || ignoreNone(err) != nil {
			return best, ignoreNone(err)
		}
	}
	return Trial{}, nil
}
