package bench

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/trace"
)

var driverTrace = flag.String("driver-trace", "", "memory snapshot with its history that TestDriver plays on the device")

// request is an event of a program: it asks for bytes on a stream or, where Bytes is
// negative, frees what it had under that number.
type request struct{ Number, Bytes, Stream int64 }

// requests lists what a recorded program asked for. A block that other streams used
// is freed when the record says that all were done, and streams have numbers from 0
// on.
func requests(h *inspect.History) (list []request) {
	streams := map[int]int64{}
	take := func(k int) {
		l := &h.Leases[k]
		if _, ok := streams[l.Stream()]; !ok {
			streams[l.Stream()] = int64(len(streams))
		}
		list = append(list, request{int64(k), int64(max(l.Size, 1)), streams[l.Stream()]})
	}
	ends := make([][]int, h.Len())
	for k := range h.Leases {
		if end := h.Leases[k].Done(); end >= 0 && end < h.Len() {
			ends[end] = append(ends[end], k)
		}
	}
	for _, k := range h.LiveAt(0) {
		take(k)
	}
	for i := range h.Len() {
		for _, k := range ends[i] {
			list = append(list, request{int64(k), -1, 0})
		}
		if h.Event(i).Action == trace.Alloc {
			take(h.Lease(i))
		}
	}
	return list
}

// replayed is what an allocator made of a program.
type replayed struct {
	PeakLiveBytes     uint64  `json:"peak_live_bytes"`
	PeakReservedBytes uint64  `json:"peak_reserved_bytes"`
	HeldBytes         uint64  `json:"held_bytes"` // by which the device's free memory had shrunk at the end
	Seconds           float64 `json:"seconds"`
	LateSeconds       float64 `json:"late_seconds"` // in the second half
	DriverSeconds     float64 `json:"driver_seconds"`
	Calls             int     `json:"calls"` // of the driver; PyTorch counts segments taken and given back
	LateCalls         int     `json:"late_calls"`

	stats alloc.Stats // of Headroom's
}

// testTrace plays a recorded program on the device, by Headroom's allocator with
// and without virtual memory and by PyTorch's with and without expandable segments,
// bounded to the device's capacity.
func testTrace(t *testing.T) {
	if *driverTrace == "" {
		t.Skip("SKIPPED: -driver-trace is not given")
	}
	snapshot, err := trace.ReadFile(*driverTrace)
	if err != nil {
		t.Fatal(err)
	}
	h := inspect.NewHistory(snapshot, 0)
	list := requests(h)
	recorded, err := h.Replay(inspect.Options{})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("\n%s: %d allocations and frees; recorded by PyTorch: peak %.3f GiB, reserved %.3f GiB\n\n", filepath.Base(*driverTrace), len(list),
		float64(recorded.PeakLiveBytes)/giB, float64(recorded.PeakReservedBytes)/giB)
	fmt.Println("| played by | peak, GiB | reserved | reserved ÷ peak | of the device's memory | calls of the driver | in the second half | µs each | in the second half | in the driver |\n|---|---|---|---|---|---|---|---|---|---|")
	ours, err := playOn(t, list, alloc.Options{})
	printReplayed("Headroom", len(list), ours, err)
	plain, err := playOn(t, list, alloc.Options{NoVirtual: true})
	printReplayed("Headroom, without virtual memory", len(list), plain, err)
	file := filepath.Join(t.TempDir(), "requests.bin")
	if err := writeRequests(file, list); err != nil {
		t.Fatal(err)
	}
	most := fmt.Sprint(capacity(t))
	for _, settings := range []string{"", "expandable_segments:True"} {
		r, err := runDriverStep(settings, "replay", file, most)
		printReplayed("PyTorch "+settings, len(list), r.replayed, err)
	}
	s := ours.stats
	fmt.Printf("\nHeadroom created %d pages, mapped %d and moved %d of them; %d stitches show %d, and were used again %d times; streams waited %d times, the host %d times\n\n",
		s.Creates, s.Maps, s.Unmaps, s.Stitches, s.ViewMaps, s.Reuses, s.Waits, s.Syncs)
}

func printReplayed(name string, n int, r replayed, err error) {
	if err != nil {
		fmt.Printf("| %s | %v |\n", name, err)
		return
	}
	inDriver, each := " |", 1e6/float64(n)
	if r.DriverSeconds > 0 {
		inDriver = micros(each * r.DriverSeconds)
	}
	fmt.Printf("| %s | %.3f | %.3f | %.4f | %.3f | %d | %d |%s%s\n", name, float64(r.PeakLiveBytes)/giB, float64(r.PeakReservedBytes)/giB,
		float64(r.PeakReservedBytes)/float64(r.PeakLiveBytes), float64(r.HeldBytes)/giB, r.Calls, r.LateCalls, micros(each*r.Seconds, 2*each*r.LateSeconds), inDriver)
}

func writeRequests(file string, list []request) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(binary.Write(f, binary.LittleEndian, list), f.Close())
}

// playOn plays a program on Headroom's allocator over a device of its own.
func playOn(t *testing.T, list []request, o alloc.Options) (r replayed, err error) {
	dev := openTimed(t)
	defer dev.Close()
	a, err := alloc.New(dev, o)
	if err != nil {
		return r, err
	}
	free := freeBytes(t)
	before := free()
	dev.calls, dev.took = 0, 0
	var half time.Time
	var early int
	start := time.Now()
	err = play(dev, a, list, func() { half, early = time.Now(), dev.calls })
	r = replayed{Seconds: time.Since(start).Seconds(), LateSeconds: time.Since(half).Seconds(), DriverSeconds: dev.took.Seconds(),
		Calls: dev.calls, LateCalls: dev.calls - early, HeldBytes: before - free()}
	r.stats = a.Stats()
	r.PeakLiveBytes, r.PeakReservedBytes = r.stats.PeakLive, r.stats.PeakReserved
	if checkErr := a.Check(); checkErr != nil {
		t.Error(checkErr)
	}
	a.Close() // its error names what is live
	return r, err
}

// play carries out requests, and tells of half of them.
func play(dev device.Device, a *alloc.Allocator, list []request, half func()) (err error) {
	blocks := map[int64]*alloc.Block{}
	var streams []device.Stream
	for i, r := range list {
		if i == len(list)/2 {
			half()
		}
		if r.Bytes < 0 {
			blocks[r.Number].Free()
			delete(blocks, r.Number)
			continue
		}
		for int(r.Stream) >= len(streams) {
			s, err := dev.NewStream()
			if err != nil {
				return err
			}
			streams = append(streams, s)
		}
		if blocks[r.Number], err = a.Alloc(uint64(r.Bytes), trace.Other, streams[r.Stream]); err != nil {
			return err
		}
	}
	return nil
}

// freeBytes asks the driver how much of GPU 0 is free; of other devices that is 0.
func freeBytes(t *testing.T) func() uint64 {
	c := driverContext(t)
	return func() uint64 {
		if c == nil {
			return 0
		}
		free, _, err := c.MemInfo()
		if err != nil {
			t.Fatal(err)
		}
		return free
	}
}
