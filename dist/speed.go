package dist

import (
	"errors"
	"time"

	"github.com/headroom-go/headroom/device"
)

// Speed measures how many bytes a second a rank of g sends to others while as many come
// from them: in the fastest of some all-reduces of 32 MiB, or of a quarter of the smallest
// rank's device where that is less, on the slowest rank. All ranks call it, each with its
// device, which has that room, and get the same figure; 0 for a rank alone.
func Speed(g Group, dev device.Device) (bytesPerSecond float64, err error) {
	if g.Size() == 1 {
		return 0, nil
	}
	s, err := dev.NewStream()
	if err != nil {
		return 0, err
	}
	b := Buf{Len: int(min(32<<20, dev.Info().Capacity/4) / 4), Type: device.Float32}
	if b.Ptr, err = dev.Alloc(uint64(b.Bytes())); err != nil {
		return 0, errors.Join(err, s.Close())
	}
	speed, err := speed(g, s, b)
	if err = errors.Join(err, s.Close(), dev.Free(b.Ptr)); err != nil {
		return 0, err
	}
	return speed, nil
}

// speed is Speed with as much of b as all ranks have.
func speed(g Group, s device.Stream, b Buf) (bytesPerSecond float64, err error) {
	less, err := most(g, s, b, -float32(b.Len))
	if err != nil {
		return 0, err
	}
	all := b.Range(0, int(-less))
	seconds, err := fastest(g, s, all)
	return 2 * float64(all.Bytes()) * float64(g.Size()-1) / float64(g.Size()) / seconds, err
}

// fastest is the seconds of the fastest all-reduce of b, on the slowest rank.
func fastest(g Group, s device.Stream, b Buf) (seconds float64, err error) {
	const rounds = 5
	s.Upload(b.Ptr, make([]byte, b.Bytes())) // any number is as fast, and zeros stay zeros
	for range rounds {
		if err := errors.Join(s.Sync(), g.Barrier()); err != nil {
			return 0, err
		}
		start := time.Now()
		g.AllReduce(s, Sum, b)
		if err := s.Sync(); err != nil {
			return 0, err
		}
		if took := time.Since(start).Seconds(); seconds == 0 || took < seconds {
			seconds = took
		}
	}
	slowest, err := most(g, s, b, float32(seconds))
	return float64(slowest), err
}

// most is the greatest x of all ranks, by way of b.
func most(g Group, s device.Stream, b Buf, x float32) (float32, error) {
	of := []float32{x}
	s.Upload(b.Ptr, device.BytesOf(of))
	g.AllReduce(s, Max, b.Range(0, 1))
	s.Download(device.BytesOf(of), b.Ptr)
	err := errors.Join(s.Sync(), g.Err()) // on GPUs a stream can be through though the job has failed
	return of[0], err
}
