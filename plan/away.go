package plan

import (
	"github.com/headroom-go/headroom/tensor"
)

// Away is memory outside the device, for values. The zero value is none.
type Away struct {
	Tiers   []Tier          // that are asked for room in this order: the fastest first
	As      tensor.AwayForm // of saved values; other than exact, losses change
	Workers int             // threads that update weights there, beside a GPU; 0: one
}

// Tier is one place of such memory.
type Tier struct {
	Bytes              uint64  // room there
	OutBytesPerSecond  float64 // of copies from the device
	BackBytesPerSecond float64
	Far                bool // the host can't compute there: it takes no optimizer's state
}

// seconds is what a byte takes to go there and back.
func (t Tier) seconds() float64 { return 1/t.OutBytesPerSecond + 1/t.BackBytesPerSecond }

// bytes is the room in all tiers.
func (a Away) bytes() (sum uint64) {
	for _, t := range a.Tiers {
		sum += t.Bytes
	}
	return sum
}

// state is the tier where an optimizer's state goes first; without one it has no
// room.
func (a Away) state() Tier {
	for _, t := range a.Tiers {
		if !t.Far {
			return t
		}
	}
	return Tier{}
}

// times is how many values go in the time of an exact one.
func (a Away) times() float64 {
	const many = 1 << 10
	return 4 * many / float64(a.As.Bytes(many))
}

// books is a tensor.Store that counts bytes and holds none. It deals out the room of
// tiers as a store of several does.
type books struct {
	tiers     []Tier
	live      []uint64 // in each
	now, peak uint64   // in all
	full      bool     // there was no room once
	bytes     float64  // of values, all that ever came
	out, back float64  // seconds that they took to go and to come
}

func openBooks(a Away) *books { return &books{tiers: a.Tiers, live: make([]uint64, len(a.Tiers))} }

// Take implements tensor.Store.
func (b *books) Take(size uint64) (tensor.Room, error) {
	i := b.find(size, true)
	if i >= 0 {
		b.bytes += float64(size)
		b.out += float64(size) / b.tiers[i].OutBytesPerSecond
		b.back += float64(size) / b.tiers[i].BackBytesPerSecond
	}
	return tensor.HostStore(func(size uint64) ([]byte, func(), error) { return nil, b.enter(i, size), nil }).Take(size)
}

// TakeBytes implements tensor.Store.
func (b *books) TakeBytes(size uint64) (buf []byte, giveBack func(), err error) {
	return nil, b.enter(b.find(size, false), size), nil
}

// find gives the first tier with room, or -1.
func (b *books) find(size uint64, far bool) int {
	for i, t := range b.tiers {
		if (far || !t.Far) && size <= t.Bytes-b.live[i] {
			return i
		}
	}
	return -1
}

// enter counts bytes until giveBack.
func (b *books) enter(tier int, size uint64) (giveBack func()) {
	b.now += size
	b.peak = max(b.peak, b.now)
	if tier < 0 {
		b.full = true
		return func() { b.now -= size }
	}
	b.live[tier] += size
	return func() { b.now, b.live[tier] = b.now-size, b.live[tier]-size }
}

// mean is the speed of copies of all values.
func (b *books) mean() Tier {
	if b.bytes == 0 {
		return Tier{}
	}
	return Tier{OutBytesPerSecond: b.bytes / b.out, BackBytesPerSecond: b.bytes / b.back}
}
