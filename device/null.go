package device

import (
	"errors"
	"fmt"

	"github.com/headroom-go/headroom/internal/size"
)

// NullOptions describe a null device.
type NullOptions struct {
	Capacity    uint64 // bytes, of any size
	Virtual     bool   // with virtual memory
	Alias       bool   // with handles that may be mapped at several places at once; needs Virtual
	Granularity uint64 // bytes, a power of two of 512 or more; 0: 2 MiB

	ChannelsLast bool // as Info has it

	// OnLaunch, if not nil, is told of every launch and copy as it is queued:
	// by the goroutine that queues it, before the call returns. Copies come as
	// launches of kernels named "copy", "upload" and "download" with the bytes
	// that they move on the device; Ptr holds destination and source, 0 for
	// host memory. *l is valid during the call only.
	OnLaunch func(l *Launch)

	// Clock, if not nil, is told of the same, before OnLaunch, and of waits.
	Clock *Clock
}

// nullDevice hands out addresses that it never uses twice.
type nullDevice struct {
	memory
	onLaunch func(l *Launch)
	clock    *Clock
	streams  int // given so far; under mu
}

// OpenNullLike opens a null device of a capacity on which programs do what they
// do on the one that info describes. onLaunch and clock are as in NullOptions.
func OpenNullLike(info Info, capacity uint64, onLaunch func(l *Launch), clock *Clock) (Device, error) {
	return OpenNull(NullOptions{Capacity: capacity, Virtual: info.Virtual, Alias: info.Alias, Granularity: info.Granularity,
		ChannelsLast: info.ChannelsLast, OnLaunch: onLaunch, Clock: clock})
}

// OpenNull opens a null device: it keeps the same books as a device with
// memory, so that a program takes the same steps on it, but has no memory and
// computes nothing. All its work is done when it is queued.
func OpenNull(o NullOptions) (Device, error) {
	if o.Granularity == 0 {
		o.Granularity = 2 << 20
	}
	if o.Granularity < allocUnit || o.Granularity&(o.Granularity-1) != 0 {
		return nil, fmt.Errorf("granularity of %d bytes is no power of two of %d or more", o.Granularity, allocUnit)
	}
	if o.Alias && !o.Virtual {
		return nil, errors.New("null device with aliases but without virtual memory: only mapped memory can be mapped twice")
	}
	info := Info{
		Kind: Null, Name: "null:" + size.Exact(o.Capacity), Capacity: o.Capacity,
		Granularity: o.Granularity, Virtual: o.Virtual, Alias: o.Alias, ChannelsLast: o.ChannelsLast,
	}
	space := &addressSpace{next: firstAddress, granularity: o.Granularity}
	d := &nullDevice{memory: memory{book: newBook(info, 0), plain: space}, onLaunch: o.OnLaunch, clock: o.Clock}
	if o.Virtual {
		d.virtual = space
	}
	return d, nil
}

func (d *nullDevice) NewStream() (Stream, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.book.checkOpen(); err != nil {
		return nil, err
	}
	d.streams++
	return &nullStream{id: d.streams - 1, onLaunch: d.onLaunch, clock: d.clock}, nil
}

func (d *nullDevice) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.book.checkOpen(); err != nil {
		return err
	}
	return d.close()
}

// addressSpace numbers bytes from firstAddress on. A granularity's alignment
// is a multiple of allocUnit.
type addressSpace struct {
	next        Ptr
	granularity uint64
}

// Null addresses begin where those of programs end on today's processors, so
// that touching one by mistake faults.
const (
	firstAddress = 1 << 47
	lastAddress  = 1 << 63
)

var errNoAddresses = errors.New("all addresses have been handed out")

func (a *addressSpace) take(n, align uint64) (Ptr, error) {
	p := (a.next + Ptr(align) - 1) &^ Ptr(align-1)
	if p > lastAddress || n > uint64(lastAddress-p) {
		return 0, errNoAddresses
	}
	a.next = p + Ptr(n)
	return p, nil
}

func (a *addressSpace) alloc(n uint64) (Ptr, error)   { return a.take(n, allocUnit) }
func (a *addressSpace) reserve(n uint64) (Ptr, error) { return a.take(n, a.granularity) }

func (*addressSpace) free(Ptr, uint64) error     { return nil }
func (*addressSpace) release(Ptr, uint64) error  { return nil }
func (*addressSpace) create(Handle) error        { return nil }
func (*addressSpace) attach(Ptr, []Handle) error { return nil }
func (*addressSpace) detach(Ptr, []Handle) error { return nil }
func (*addressSpace) discard(Handle) error       { return nil }
func (*addressSpace) close() error               { return nil }

// nullStream reports work.
type nullStream struct {
	id       int
	onLaunch func(l *Launch)
	clock    *Clock
	at       moment // when what was queued is done; of clock
	copying  Launch // the copy that is being reported
	closed   bool
}

func (s *nullStream) ID() int { return s.id }

func (s *nullStream) Launch(l *Launch) {
	checkLaunch(l)
	s.report(l)
}

func (s *nullStream) Copy(dst, src Ptr, n uint64) {
	s.copying = Launch{Kernel: copyKernel, Ptr: [MaxPtrs]Ptr{dst, src}, Bytes: 2 * n}
	s.report(&s.copying)
}

func (s *nullStream) Upload(dst Ptr, src []byte) {
	s.copying = Launch{Kernel: uploadKernel, Ptr: [MaxPtrs]Ptr{dst}, Bytes: uint64(len(src))}
	s.report(&s.copying)
}

func (s *nullStream) Download(dst []byte, src Ptr) {
	s.copying = Launch{Kernel: downloadKernel, Ptr: [MaxPtrs]Ptr{0, src}, Bytes: uint64(len(dst))}
	s.report(&s.copying)
	clear(dst)
}

// report tells the recorder of work.
func (s *nullStream) report(l *Launch) {
	checkOpen(s.id, s.closed)
	if s.clock != nil {
		s.at = s.clock.pass(s.at, l)
	}
	if s.onLaunch != nil {
		s.onLaunch(l)
	}
}

func (s *nullStream) Record() Event {
	checkOpen(s.id, s.closed)
	if s.clock == nil {
		return nullEvent{}
	}
	return nullEvent{s.at}
}

func (s *nullStream) Wait(e Event) {
	checkOpen(s.id, s.closed)
	e.Sync()
	if e, ok := e.(nullEvent); ok && s.at.before(e.at) {
		s.at = e.at
	}
}

func (s *nullStream) Sync() error { return nil }

func (s *nullStream) Clear() {}

func (s *nullStream) Close() error {
	s.closed = true
	return nil
}

// nullEvent is an event of a stream on which all is done at once.
type nullEvent struct{ at moment }

// Clock estimates how long what a null device is given would take: the work of one
// stream follows each other, and that of several goes on at the same time, but where
// one waits for an event of another. It is for one goroutine.
type Clock struct {
	Seconds func(l *Launch) float64 // of one launch

	round int
	now   float64
}

// moment is a time of a clock since a Restart.
type moment struct {
	round   int
	seconds float64
}

func (m moment) before(n moment) bool {
	return m.round < n.round || m.round == n.round && m.seconds < n.seconds
}

// Now is the seconds from the Restart until all is done that was queued since.
func (c *Clock) Now() float64 { return c.now }

// Restart begins at 0, with all streams idle.
func (c *Clock) Restart() { c.round, c.now = c.round+1, 0 }

// pass is when a launch ends on a stream that is busy until then.
func (c *Clock) pass(until moment, l *Launch) moment {
	if until.round < c.round {
		until = moment{round: c.round}
	}
	until.seconds += c.Seconds(l)
	c.now = max(c.now, until.seconds)
	return until
}

func (nullEvent) Done() bool { return true }
func (nullEvent) Sync()      {}
