package spill

import (
	"errors"
	"math"
	"time"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/tensor"
)

// Tiers is a tensor.Store of several, the fastest first: what is to wait goes to
// the first one that has room.
type Tiers []tensor.Store

// Take implements tensor.Store.
func (t Tiers) Take(size uint64) (tensor.Room, error) {
	var errs []error
	for _, s := range t {
		room, err := s.Take(size)
		if err == nil {
			return room, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// TakeBytes implements tensor.Store.
func (t Tiers) TakeBytes(size uint64) (buf []byte, giveBack func(), err error) {
	var errs []error
	for _, s := range t {
		buf, giveBack, err := s.TakeBytes(size)
		if err == nil {
			return buf, giveBack, nil
		}
		errs = append(errs, err)
	}
	return nil, nil, errors.Join(errs...)
}

// Measure gives the speed of copies from d to s and back, in bytes per second: the
// best of a few of at most most bytes, for which there must be room in both.
func Measure(d device.Device, s tensor.Store, most uint64) (out, back float64, err error) {
	side, err := d.NewStream()
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, side.Close()) }()
	p, err := d.Alloc(most)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, d.Free(p)) }()
	room, err := s.Take(most)
	if err != nil {
		return 0, 0, err
	}
	timed := func(queue func()) float64 {
		start := time.Now()
		queue()
		side.Record().Sync()
		return time.Since(start).Seconds()
	}
	fetch := func() { room.Fetch(side, p) }
	both, one := math.Inf(1), math.Inf(1)
	for range 4 { // the first touches memory that is new
		both = min(both, timed(func() { room.Send(side, p); fetch() })) // what is sent may still be on its way, but not when it is back
		one = min(one, timed(fetch))
	}
	out, back = float64(most)/max(both-one, both/4), float64(most)/one
	return out, back, errors.Join(side.Sync(), room.Free())
}
