package plan

import (
	"cmp"
	"context"
	"slices"

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
	Plan        *Plan  `json:"-"` // of the step of that size, for those who run it
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

// largest finds the largest size that fits: exactly with all values kept, to
// 1/128 with values made again, where more is a matter of luck.
//
// With values made again each size takes a search of its own. So the place is
// first found by brief searches, and longer ones go on from there.
func largest(ctx context.Context, info device.Info, c train.Config, limit int, again bool, o Options, set func(c *train.Config, n int)) (l Largest, err error) {
	set(&c, 1)
	if err := c.Validate(); err != nil {
		return l, err
	}
	try := func(n int, o Options) (t Trial) {
		if err = cmp.Or(err, ctx.Err()); err == nil {
			set(&c, n)
			l.Trials++
			t, err = task{o, info, c}.inOnePiece(ctx, again)
		}
		return t
	}
	fits := func(n int) bool {
		t := try(n, o)
		if t.Fits {
			l.Size, l.Fits, l.MarginBytes = n, t, info.Capacity-t.ReservedBytes
		}
		return t.Fits
	}
	if !again {
		edge(limit, limit, fits)
	} else {
		approach(limit, edge(limit, 32, func(n int) bool { return try(n, o.toGuess()).Fits }), fits)
	}
	if err != nil {
		return l, err
	}
	set(&c, max(1, l.Size))
	free, err := Try(info, unlimited, c, c.Plain(), o)
	if err == nil && l.Size == 0 {
		err = &TooSmallError{c.Model, info.Capacity, free.ReservedBytes, "the smallest, " + size.Format(free.PeakBytes) + " live"}
	}
	l.Plan = &Plan{Step: c.Fingerprint(), Precision: c.Precision, Device: info.Name, BudgetBytes: info.Capacity, Chosen: l.Fits, Plain: free, Tried: []Trial{l.Fits}}
	return l, err
}

// approach looks for the largest size that fits, to 1/128, from a guess on: what
// is smaller is taken to fit, and what is far above not to, unless that decides.
// If nothing above the guess fits, it goes down.
func approach(limit, guess int, fits func(n int) bool) {
	known, found := map[int]bool{}, guess
	for top, more := 0, 1+guess/16; top < min(found+1+found/128, limit); more *= 4 {
		top = found + more
		found = edge(limit, 128, func(n int) bool {
			if _, ok := known[n]; !ok && n > guess && n <= top {
				known[n] = fits(n)
			}
			return n <= guess || known[n]
		})
	}
	for n := guess; found <= guess && n > 0 && !fits(n); n -= 1 + n/32 {
	}
}

// edge is the largest size up to limit that fits, or less by a part of so many;
// 0 if 1 does not. It doubles a size until that does not fit, and halves the
// interval: a larger one needs more memory.
func edge(limit, parts int, fits func(n int) bool) int {
	lo, hi := 0, 1
	for hi <= limit && fits(hi) {
		lo, hi = hi, 2*hi
	}
	for hi = min(hi, limit+1); hi-lo > 1+lo/parts; {
		if mid := (lo + hi) / 2; fits(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

// inOnePiece tries a step without micro-batches.
func (k task) inOnePiece(ctx context.Context, again bool) (t Trial, err error) {
	list := k.outside(k.c.Batch)
	for _, s := range list {
		for _, s := range slices.Compact([]train.Strategy{s, k.inLeastParts(s)}) {
			if t, err = k.within(s); err != nil || t.Fits && k.room(t) {
				return t, err
			}
		}
	}
	if !again {
		return Trial{}, nil
	}
	for _, s := range list {
		s = k.inLeastParts(s)
		free, err := k.free(s)
		if err != nil || !k.room(free) {
			return Trial{}, err
		}
		prog, err := k.record(free)
		if err != nil {
			return Trial{}, err
		}
		best, err := prog.solve(ctx, k, s)
		if err == nil && best.Fits && k.room(best) || ignoreNone(err) != nil {
			return best, ignoreNone(err)
		}
	}
	return Trial{}, nil
}
