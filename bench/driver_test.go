package bench

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/cuda"
	sizes "github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/trace"
)

var driver = flag.String("driver", "", "device on which TestDriver measures the driver and the allocator, such as cuda:0,40GiB")

// TestDriver prints what the CUDA driver's calls about memory take, what those of
// the allocator take on the same device, beside PyTorch's allocator, and what both
// make of a recorded trace (driver_trace_test.go). Sizes that the device is too small
// for are left out.
func TestDriver(t *testing.T) {
	if *driver == "" {
		t.Skip("SKIPPED: -driver is not given")
	}
	t.Run("Calls", testCalls)
	t.Run("Latency", testLatency)
	t.Run("Trace", testTrace)
}

// stopwatch measures one thing after the other, until one fails.
type stopwatch struct {
	took []time.Duration
	err  error
}

func (s *stopwatch) do(f func() error) {
	if s.err == nil {
		start := time.Now()
		s.err = f()
		s.took = append(s.took, time.Since(start))
	}
}

// medianMicros gives the median of each of the things that a round measures, in
// microseconds, after one round that doesn't count.
func medianMicros(t *testing.T, rounds int, round func(s *stopwatch)) []float64 {
	t.Helper()
	var took [][]float64
	for i := range rounds + 1 {
		s := &stopwatch{}
		round(s)
		if s.err != nil {
			t.Fatal(s.err)
		}
		if i == 0 {
			took = make([][]float64, len(s.took))
			continue
		}
		for k, d := range s.took {
			took[k] = append(took[k], float64(d.Nanoseconds())/1e3)
		}
	}
	all := make([]float64, len(took))
	for k, list := range took {
		slices.Sort(list)
		all[k] = list[len(list)/2]
	}
	return all
}

// micros writes microseconds as cells of a table.
func micros(all ...float64) string {
	var b strings.Builder
	for _, us := range all {
		format := " %.0f |"
		if us < 10 {
			format = " %.2f |"
		}
		fmt.Fprintf(&b, format, us)
	}
	return b.String()
}

// driverContext gives the context of GPU 0, which the device shares, for calls of
// the driver itself; nil if the device is another one.
func driverContext(t *testing.T) *cuda.Context {
	if !strings.HasPrefix(*driver, "cuda:0") {
		return nil
	}
	d, err := cuda.OpenDriver(nil)
	if err != nil {
		t.Fatal(err)
	}
	gpu, err := d.Device(0)
	if err != nil {
		t.Fatal(err)
	}
	c, err := d.Retain(gpu)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Release() })
	return c
}

const (
	miB = 1 << 20
	giB = 1 << 30
)

// testCalls measures the driver's calls.
func testCalls(t *testing.T) {
	c := driverContext(t)
	if c == nil {
		t.Skipf("SKIPPED: %s is not GPU 0", *driver)
	}
	most := capacity(t)
	fmt.Println("| handle | reserve | create | map | set access | map + access again | unmap | release | free addresses |\n|---|---|---|---|---|---|---|---|---|")
	for _, n := range []uint64{2 * miB, 20 * miB, 128 * miB, giB} {
		if n <= most {
			fmt.Printf("| %s |%s\n", sizes.Format(n), micros(medianMicros(t, 25, func(s *stopwatch) { mapOnce(c, n, s) })...))
		}
	}
	fmt.Println("\n| plain memory | cuMemAlloc | cuMemFree |\n|---|---|---|")
	for _, n := range []uint64{2 * miB, 20 * miB, 512 * miB, 4 * giB} {
		if n <= most {
			fmt.Printf("| %s |%s\n", sizes.Format(n), micros(medianMicros(t, 15, func(s *stopwatch) { allocOnce(c, n, s) })...))
		}
	}
	fmt.Println("\n| record an event | has it passed? | free and total memory | 256 MiB of page-locked memory | free it |\n|---|---|---|---|---|")
	stream, err := c.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	event, err := c.NewEvent(false)
	if err != nil {
		t.Fatal(err)
	}
	calls := medianMicros(t, 1000, func(s *stopwatch) {
		s.do(func() error { return c.RecordEvent(event, stream) })
		s.do(func() error { _, err := c.EventDone(event); return err })
		s.do(func() error { _, _, err := c.MemInfo(); return err })
	})
	locked := medianMicros(t, 3, func(s *stopwatch) {
		var p uintptr
		s.do(func() (err error) { p, err = c.HostAlloc(min(256*miB, most)); return err })
		s.do(func() error { return c.HostFree(p) })
	})
	fmt.Printf("|%s\n\n", micros(append(calls, locked...)...))
	if err := errors.Join(c.DestroyEvent(event), c.DestroyStream(stream)); err != nil {
		t.Fatal(err)
	}
}

// mapOnce takes a handle of n bytes through its life.
func mapOnce(c *cuda.Context, n uint64, s *stopwatch) {
	var p, again cuda.Ptr
	var h cuda.Handle
	s.do(func() (err error) { p, err = c.Reserve(n, 2*miB); return err })
	if s.err == nil {
		again, s.err = c.Reserve(n, 2*miB)
	}
	s.do(func() (err error) { h, err = c.Create(n); return err })
	s.do(func() error { return c.Map(p, n, h) })
	s.do(func() error { return c.SetAccess(p, n) })
	s.do(func() error { return errors.Join(c.Map(again, n, h), c.SetAccess(again, n)) })
	if s.err == nil {
		s.err = c.Unmap(again, n)
	}
	s.do(func() error { return c.Unmap(p, n) })
	s.do(func() error { return c.Destroy(h) })
	s.do(func() error { return c.Unreserve(p, n) })
	if s.err == nil {
		s.err = c.Unreserve(again, n)
	}
}

// allocOnce takes plain memory and gives it back.
func allocOnce(c *cuda.Context, n uint64, s *stopwatch) {
	var p cuda.Ptr
	s.do(func() (err error) { p, err = c.MemAlloc(n); return err })
	s.do(func() error { return c.MemFree(p) })
}

// capacity is that of the device, which is closed again.
func capacity(t *testing.T) uint64 {
	dev := openTimed(t)
	defer dev.Close()
	return dev.Info().Capacity
}

// timed is a device whose calls about memory are counted, as the CUDA driver sees
// them, and timed.
type timed struct {
	device.Device
	calls int
	took  time.Duration
}

func openTimed(t *testing.T) *timed {
	t.Helper()
	dev, err := device.Open(*driver)
	if err != nil {
		t.Fatal(err)
	}
	return &timed{Device: dev}
}

// since is to be deferred: its argument is taken at once.
func (d *timed) since(start time.Time, calls int) {
	d.took += time.Since(start)
	d.calls += calls
}

func (d *timed) Alloc(n uint64) (device.Ptr, error) {
	defer d.since(time.Now(), 1)
	return d.Device.Alloc(n)
}

func (d *timed) Free(p device.Ptr) error {
	defer d.since(time.Now(), 1)
	return d.Device.Free(p)
}

func (d *timed) Reserve(n uint64) (device.Ptr, error) {
	defer d.since(time.Now(), 1)
	return d.Device.Reserve(n)
}

func (d *timed) Release(p device.Ptr) error {
	defer d.since(time.Now(), 1)
	return d.Device.Release(p)
}

func (d *timed) Create() (device.Handle, error) {
	defer d.since(time.Now(), 1)
	return d.Device.Create()
}

func (d *timed) Destroy(h device.Handle) error {
	defer d.since(time.Now(), 1)
	return d.Device.Destroy(h)
}

// Map is a call for each handle, and one that allows access to all.
func (d *timed) Map(p device.Ptr, handles []device.Handle) error {
	defer d.since(time.Now(), len(handles)+1)
	return d.Device.Map(p, handles)
}

func (d *timed) Unmap(p device.Ptr, n int) error {
	defer d.since(time.Now(), 1)
	return d.Device.Unmap(p, n)
}

// latency is a row of testLatency: a name that driver_step.py knows, too, and one
// round of it on a fresh allocator.
type latency struct {
	name   string
	bytes  uint64 // that the device must have
	times  int    // that a round does it, one after the other
	rounds int
	round  func(b *bed) error
	lends  bool // pages, so that the device must map them twice
}

// bed is an allocator with two streams, and a watch for what counts.
type bed struct {
	*alloc.Allocator
	dev    *timed
	s      [2]device.Stream
	blocks []*alloc.Block

	took, driver time.Duration
}

// get allocates n bytes on the first stream and keeps the block.
func (b *bed) get(n uint64) (*alloc.Block, error) {
	block, err := b.Alloc(n, trace.Other, b.s[0])
	if err == nil {
		b.blocks = append(b.blocks, block)
	}
	return block, err
}

// measure does f, and takes the time and the part of it in the driver.
func (b *bed) measure(f func() error) error {
	start, driver := time.Now(), b.dev.took
	err := f()
	b.took, b.driver = time.Since(start), b.dev.took-driver
	return err
}

const pairs = 2000 // of an allocation and a free that are measured together

func latencies() (rows []latency) {
	add := func(name string, bytes uint64, times, rounds int, round func(b *bed) error) {
		rows = append(rows, latency{name: name, bytes: bytes, times: times, rounds: rounds, round: round})
	}
	for _, n := range []uint64{4096, 2 * miB, 64 * miB, giB} {
		add("hit and free, "+sizes.Format(n), 2*n+4*miB, pairs, 5, func(b *bed) error { return b.hits(n, false) })
	}
	add("hit and free, used by another stream, 2MiB", 8*miB, pairs, 5, func(b *bed) error { return b.hits(2*miB, true) })
	add("hit that cuts a larger block, 2MiB", giB, 512, 9, func(b *bed) error { return b.cuts(512, false) })
	add("free that joins neighbours, 2MiB", giB, 512, 9, func(b *bed) error { return b.cuts(512, true) })
	for _, n := range []uint64{2 * miB, 64 * miB, giB} {
		add("miss, new memory, "+sizes.Format(n), n+2*miB, 1, 9, func(b *bed) error { return b.miss(n) })
	}
	for _, n := range []uint64{2 * miB, 64 * miB, giB} {
		add("cached memory given back, "+sizes.Format(n), n+2*miB, 1, 9, func(b *bed) error { return b.giveBack(n) })
	}
	for _, k := range []uint64{1, 8, 64, 512} {
		add(fmt.Sprintf("miss in a pool, %d pages moved", k), 4*k*miB, 1, 7, func(b *bed) error { return b.move(k) })
	}
	for _, k := range []uint64{2, 8, 64, 512} {
		add(fmt.Sprintf("miss, %d holes of 2MiB", k), 4*k*miB, 1, 7, func(b *bed) error { return b.stitch(k) })
		add(fmt.Sprintf("the same again, %d holes of 2MiB", k), 4*k*miB, pairs, 5, func(b *bed) error { return b.stitched(k) })
		rows[len(rows)-2].lends, rows[len(rows)-1].lends = true, true
	}
	return rows
}

// hits takes a hole of exactly n bytes over and over.
func (b *bed) hits(n uint64, used bool) error {
	block, err := b.get(n)
	if err == nil {
		_, err = b.get(n) // a neighbour
	}
	if err != nil {
		return err
	}
	return b.measure(func() error {
		for range pairs {
			if used {
				block.Use(b.s[1])
			}
			block.Free()
			if block, err = b.Alloc(n, trace.Other, b.s[0]); err != nil {
				return err
			}
		}
		return nil
	})
}

// cuts hands out a large free block in pieces of 2 MiB, and takes them back; it
// measures the one or the other.
func (b *bed) cuts(n int, back bool) error {
	if err := b.Reserve(uint64(n) * 2 * miB); err != nil {
		return err
	}
	list := make([]*alloc.Block, n)
	take := func() (err error) {
		for i := 0; i < n && err == nil; i++ {
			list[i], err = b.Alloc(2*miB, trace.Other, b.s[0])
		}
		return err
	}
	free := func() error {
		for _, block := range list {
			block.Free()
		}
		return nil
	}
	if !back {
		return b.measure(take)
	}
	if err := take(); err != nil {
		return err
	}
	return b.measure(free)
}

// miss asks for memory that must be created. Addresses are there.
func (b *bed) miss(n uint64) error {
	if _, err := b.get(2 * miB); err != nil {
		return err
	}
	return b.measure(func() error { _, err := b.get(n); return err })
}

func (b *bed) giveBack(n uint64) error {
	block, err := b.get(n)
	if err != nil {
		return err
	}
	block.Free()
	return b.measure(func() error { _, err := b.Trim(0); return err })
}

// holes makes n free pages between live ones.
func (b *bed) holes(n uint64) error {
	for range 2 * n {
		if _, err := b.get(2 * miB); err != nil {
			return err
		}
	}
	for i, block := range b.blocks {
		if i%2 == 0 {
			block.Free()
		}
	}
	return nil
}

// stitch asks for n pages that are free, none beside another.
func (b *bed) stitch(n uint64) error {
	if err := b.holes(n); err != nil {
		return err
	}
	before := b.Stats()
	err := b.measure(func() error { _, err := b.get(2 * n * miB); return err })
	if s := b.Stats(); err == nil && (s.ViewMaps != n || s.Creates != before.Creates) {
		err = fmt.Errorf("the allocator created %d pages, moved %d and stitched %d: want %d stitched", s.Creates-before.Creates, s.Maps-before.Maps, s.ViewMaps, n)
	}
	return err
}

// stitched takes what was stitched once again, over and over.
func (b *bed) stitched(n uint64) error {
	if err := b.stitch(n); err != nil {
		return err
	}
	block := b.blocks[len(b.blocks)-1]
	return b.measure(func() (err error) {
		for i := 0; i < pairs && err == nil; i++ {
			block.Free()
			block, err = b.Alloc(2*n*miB, trace.Other, b.s[0])
		}
		return err
	})
}

// move asks for n such pages in a pool of its own, whose memory is not lent.
func (b *bed) move(n uint64) error {
	if err := b.holes(n); err != nil {
		return err
	}
	pool, before := b.NewPool(alloc.PoolOptions{}), b.Stats()
	err := b.measure(func() error { _, err := pool.Alloc(2*n*miB, trace.Other, b.s[0]); return err })
	if s := b.Stats(); err == nil && (s.Unmaps-before.Unmaps != n || s.Creates != before.Creates) {
		err = fmt.Errorf("the allocator created %d pages and moved %d: want %d moved", s.Creates-before.Creates, s.Unmaps-before.Unmaps, n)
	}
	return err
}

// testLatency prints the rows of latencies, beside PyTorch where it is installed.
func testLatency(t *testing.T) {
	peers := map[string]float64{}
	peer, err := runDriverStep("", "latency")
	if err != nil {
		fmt.Printf("SKIPPED: PyTorch's allocator: %v\n", err)
	} else {
		peers = peer.Micros
	}
	dev := openTimed(t)
	defer dev.Close()
	fmt.Println("| microseconds each | Headroom | of that in the driver | PyTorch, called from Python |\n|---|---|---|---|")
	for _, row := range latencies() {
		if i := dev.Info(); row.bytes > i.Capacity || row.lends && !i.Alias {
			continue
		}
		all, in, err := measureRow(dev, &row)
		if err != nil {
			t.Errorf("%s: %v", row.name, err)
			continue
		}
		theirs := " |"
		if us, ok := peers[row.name]; ok {
			theirs = micros(us)
			delete(peers, row.name)
		}
		fmt.Printf("| %s |%s%s\n", row.name, micros(all, in), theirs)
	}
	for _, name := range slices.Sorted(maps.Keys(peers)) { // what Headroom has not, or not at this size
		fmt.Printf("| %s | | |%s\n", name, micros(peers[name]))
	}
}

// measureRow gives medians of what a row takes, and of its part in the driver, in
// microseconds.
func measureRow(dev *timed, row *latency) (all, in float64, err error) {
	type both struct{ all, in time.Duration }
	var took []both
	for i := range row.rounds + 1 { // the first doesn't count
		b, err := onBed(dev, row.round)
		if err != nil {
			return 0, 0, err
		}
		if i > 0 {
			took = append(took, both{b.took, b.driver})
		}
	}
	slices.SortFunc(took, func(x, y both) int { return cmp.Compare(x.all, y.all) })
	mid, each := took[len(took)/2], 1e3*float64(row.times)
	return float64(mid.all) / each, float64(mid.in) / each, nil
}

// onBed does one round on an allocator of its own.
func onBed(dev *timed, round func(b *bed) error) (b *bed, err error) {
	b = &bed{dev: dev}
	if b.Allocator, err = alloc.New(dev, alloc.Options{}); err != nil {
		return nil, err
	}
	for i := range b.s {
		if b.s[i], err = dev.NewStream(); err != nil {
			return nil, err
		}
	}
	err = round(b)
	b.Close() // its error names what is live
	return b, errors.Join(err, b.s[0].Close(), b.s[1].Close())
}

// driverStep is what driver_step.py prints.
type driverStep struct {
	Micros map[string]float64 `json:"micros"` // by the names of latencies
	replayed
}

// runDriverStep runs driver_step.py with settings of PyTorch's allocator.
func runDriverStep(settings string, args ...string) (r driverStep, err error) {
	cmd := exec.Command("python3", append([]string{"driver_step.py"}, args...)...)
	cmd.Env = append(os.Environ(), "PYTORCH_ALLOC_CONF="+settings)
	err = lastJSON(cmd, &r)
	return r, err
}
