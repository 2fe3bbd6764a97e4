package inspect

import (
	"math"
	"testing"

	"github.com/headroom-go/headroom/trace"
)

// hostileNumbers are addresses and sizes that events and segments are made of.
var hostileNumbers = []uint64{0, 1, 511, 512, 513, 4096, mib, mib + 1, 2 * mib, 3 * mib, 10 * mib, 20 * mib, 22 * mib, 40 * mib, 1 << 40,
	1<<46 - 32*mib, 1 << 46, 1<<46 + 20*mib, 1 << 59, 1 << 60, 1<<60 + 1, 1 << 63, math.MaxUint64 - 20*mib, math.MaxUint64 - 511, math.MaxUint64}

// hostile makes a snapshot of any bytes: two for the settings, then six for
// each segment, block or event.
func hostile(data []byte) (*trace.Snapshot, Options) {
	s := &trace.Snapshot{Traces: []*trace.Trace{{}}}
	var o Options
	if len(data) < 2 {
		return s, o
	}
	if c, err := ParseConf(oracleConfs[int(data[0])%len(oracleConfs)]); err == nil && data[0] < 128 {
		s.Settings = trace.Settings{Known: true, Conf: c.String(), MaxSplitSize: int64(c.MaxSplit), GCThreshold: c.GCThreshold, Expandable: c.Expandable, RoundupDivisions: c.Divisions}
	}
	number := func(b byte) uint64 { return hostileNumbers[int(b)%len(hostileNumbers)] }
	o.Capacity = number(data[1])
	for data = data[2:]; len(data) >= 6; data = data[6:] {
		kind, stream, pool := data[0]%16, int(data[1]%4)-1, trace.PoolID{0, uint64(data[1] >> 6)}
		addr, size := number(data[2])+uint64(data[3])*512, number(data[4])+uint64(data[5])*512
		switch kind {
		case 11, 12:
			s.Segments = append(s.Segments, trace.Segment{Stream: stream, Pool: pool, Addr: addr, Size: size, Small: data[1]&8 > 0, Expandable: data[1]&16 > 0})
		case 13, 14, 15:
			if n := len(s.Segments); n > 0 {
				b := trace.Block{Addr: addr, Size: size, Requested: size, State: trace.State(data[1] % 3)}
				s.Segments[n-1].Blocks = append(s.Segments[n-1].Blocks, b)
			}
		default:
			s.Traces[0].Append(trace.Entry{Event: trace.Event{Action: trace.Action(kind), Addr: addr, Size: size, Stream: stream}, Pool: pool})
		}
	}
	return s, o
}

// FuzzReplay replays anything, at every moment and on every allocator: blocks
// on one another, frees of unknown addresses, sizes and ends beyond all memory.
func FuzzReplay(f *testing.F) {
	f.Add([]byte("\x00\x00" + "\x0b\x01\x0a\x00\x0b\x00" + "\x00\x01\x0a\x00\x07\x00" + "\x01\x01\x0a\x00\x07\x00" + "\x02\x01\x0a\x00\x07\x00"))
	f.Add([]byte("\x07\x0e" + "\x05\x01\x10\x00\x0b\x00" + "\x00\x01\x10\x00\x07\x00" + "\x06\x01\x10\x00\x0b\x00" + "\x07\x01\x00\x00\x0d\x00"))
	f.Add([]byte("\x03\x0d" + "\x03\x01\x10\x00\x0d\x00" + "\x04\x01\x10\x00\x0d\x00" + "\x00\x01\x17\x00\x18\x00" + "\x02\x01\x18\x00\x18\x00" + "\x0d\x01\x18\x00\x18\x00"))
	f.Add([]byte("\x05\x0c" + "\x0c\x11\x16\x00\x0b\x00" + "\x0e\x01\x16\x00\x0b\x00" + "\x0c\x11\x16\x01\x0b\x00" + "\x06\x01\x16\x00\x17\x00" + "\x05\x01\x16\x01\x17\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<10 {
			return
		}
		s, o := hostile(data) // Headroom's allocator keeps books of every 2 MiB: not too many
		h := NewHistory(s, 0)
		for n := range h.Len() + 1 {
			state := h.At(n)
			checkState(t, h, &state)
		}
		if n := h.Peak(); n < 0 || n > h.Len() {
			t.Errorf("peak at %d of %d", n, h.Len())
		}
		other := DefaultConf()
		other.Expandable = !h.Conf.Expandable
		for _, o := range []Options{{}, {Capacity: o.Capacity}, {Conf: &other}, {Conf: &other, Capacity: o.Capacity}, {Policy: Headroom, Capacity: 1 + o.Capacity%(4<<30)}} {
			r, err := h.Replay(o)
			if err != nil {
				t.Fatalf("%+v: %v", o, err)
			}
			if r.Exact != (r.Mismatch == "") || r.PeakLiveBytes < r.FinalLiveBytes || r.Events > h.Len() || r.Events < h.Len() && r.OOM == nil {
				t.Errorf("%+v: %+v", o, r)
			}
		}
	})
}

// FuzzModel plays any program on the model under any settings and recounts.
func FuzzModel(f *testing.F) {
	f.Add([]byte("\x00\x10\x00\x01\x02\x03\x80\x04\x05\x81"))
	f.Add([]byte("\x07\x08\x07\x17\x27\x37\x80\x81\xf0\x47"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 2 || len(data) > 1<<9 {
			return
		}
		conf, err := ParseConf(oracleConfs[int(data[0])%len(oracleConfs)])
		if err != nil {
			t.Fatal(err)
		}
		m := newModel(conf, uint64(data[1]+1)*4*mib, newDriver())
		var live []*block
		for _, x := range data[2:] {
			switch {
			case x >= 0xf0:
				m.releaseCached()
			case x >= 0x80 && len(live) > 0:
				i := int(x) % len(live)
				m.free(live[i])
				if x < 0xe0 {
					m.complete(live[i])
				}
				live = append(live[:i], live[i+1:]...)
			default:
				if b := m.malloc(1<<(x%28)+uint64(x)*1000, int(x/28)%2, trace.PoolID{0, uint64(x) / 100}); b != nil {
					live = append(live, b)
				}
			}
			if err := checkModel(m); err != nil {
				t.Fatal(err)
			}
		}
	})
}
