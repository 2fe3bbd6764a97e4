package alloc

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/trace"
)

// PurposeBytes is a number of bytes for each purpose.
type PurposeBytes [trace.NumPurposes]uint64

// PurposeStats are the figures of one purpose.
type PurposeStats struct {
	Live uint64 // bytes in blocks handed out
	Peak uint64 // highest Live, whenever it was
}

// Stats are the figures of an allocator at one moment. Bytes but for
// Requested are those of blocks, which are rounded up to 512 bytes.
type Stats struct {
	Live      uint64 // bytes in blocks handed out
	Pending   uint64 // bytes freed by the program, still in use by queued work
	Cached    uint64 // Reserved − Live − Pending
	Reserved  uint64 // bytes taken from the device
	Requested uint64 // bytes asked for in live blocks
	Blocks    uint64 // number of live blocks

	PeakLive      uint64
	PeakReserved  uint64 // of the moments after a call, not of those within one
	ByPurpose     [trace.NumPurposes]PurposeStats
	PeakByPurpose PurposeBytes // Live by purpose at the moment of PeakLive

	// What has happened since New.
	Allocs, Frees     uint64 // blocks
	Maps, Unmaps      uint64 // handles put behind addresses and taken away
	Creates, Destroys uint64 // handles, or plain allocations, taken and given back
	Stitches, Reuses  uint64 // blocks made of parts of several holes, and such that were used again
	ViewMaps          uint64 // handles put behind addresses a second time, for stitches,
	ViewUnmaps        uint64 // … and taken away from them
	Waits             uint64 // times a stream was made to wait for another one
	Syncs             uint64 // times the host waited for a stream
	Planned           uint64 // requests served by a plan,
	Repeats           uint64 // … and where the same one of an earlier step was
	Settles           uint64 // requests served by a finished free of another stream
	Borrows           uint64 // requests served in any shape, when memory was short
	Evictions         uint64 // times an evictor freed memory
	Moves             uint64 // blocks moved by Compact
	Trims             uint64 // times memory was to be given back
	Steps             uint64 // calls of Step
	OOMs              uint64 // requests that failed for lack of memory
}

// Stat is a line of the table of figures.
type Stat struct {
	Name  string // in snake_case; bytes end in _bytes, counters in _total
	Doc   string
	Value uint64
}

// statTable is the list of all figures. Tables and reference pages come from it.
var statTable = [...]struct {
	name, doc string
	value     func(s *Stats) uint64
}{
	{"live_bytes", "Bytes in blocks handed out.", func(s *Stats) uint64 { return s.Live }},
	{"pending_bytes", "Bytes freed by the program, still in use by queued work.", func(s *Stats) uint64 { return s.Pending }},
	{"cached_bytes", "Bytes taken from the device that are neither live nor pending.", func(s *Stats) uint64 { return s.Cached }},
	{"reserved_bytes", "Bytes taken from the device.", func(s *Stats) uint64 { return s.Reserved }},
	{"requested_bytes", "Bytes asked for in live blocks, before rounding.", func(s *Stats) uint64 { return s.Requested }},
	{"blocks", "Live blocks.", func(s *Stats) uint64 { return s.Blocks }},
	{"peak_live_bytes", "Highest live_bytes since the peaks were reset.", func(s *Stats) uint64 { return s.PeakLive }},
	{"peak_reserved_bytes", "Highest reserved_bytes since the peaks were reset.", func(s *Stats) uint64 { return s.PeakReserved }},
	{"allocs_total", "Blocks handed out.", func(s *Stats) uint64 { return s.Allocs }},
	{"frees_total", "Blocks given back.", func(s *Stats) uint64 { return s.Frees }},
	{"maps_total", "Handles mapped behind addresses.", func(s *Stats) uint64 { return s.Maps }},
	{"unmaps_total", "Handles taken away from addresses.", func(s *Stats) uint64 { return s.Unmaps }},
	{"creates_total", "Handles or plain allocations taken from the device.", func(s *Stats) uint64 { return s.Creates }},
	{"destroys_total", "Handles or plain allocations given back to the device.", func(s *Stats) uint64 { return s.Destroys }},
	{"stitches_total", "Blocks made of parts of several holes.", func(s *Stats) uint64 { return s.Stitches }},
	{"stitch_reuses_total", "Times that such a block was used again.", func(s *Stats) uint64 { return s.Reuses }},
	{"view_maps_total", "Handles put behind addresses a second time, for stitched blocks.", func(s *Stats) uint64 { return s.ViewMaps }},
	{"view_unmaps_total", "Handles taken away from such addresses.", func(s *Stats) uint64 { return s.ViewUnmaps }},
	{"waits_total", "Times a stream was made to wait for another one.", func(s *Stats) uint64 { return s.Waits }},
	{"syncs_total", "Times the host waited for a stream.", func(s *Stats) uint64 { return s.Syncs }},
	{"planned_total", "Requests served by a plan.", func(s *Stats) uint64 { return s.Planned }},
	{"repeats_total", "Requests served where the same one of an earlier step was.", func(s *Stats) uint64 { return s.Repeats }},
	{"settles_total", "Requests served by a finished free of another stream.", func(s *Stats) uint64 { return s.Settles }},
	{"borrows_total", "Requests served in any shape, or from the other pool, when memory was short.", func(s *Stats) uint64 { return s.Borrows }},
	{"evictions_total", "Times that an evictor freed memory for a request.", func(s *Stats) uint64 { return s.Evictions }},
	{"moves_total", "Blocks moved by Compact.", func(s *Stats) uint64 { return s.Moves }},
	{"steps_total", "Steps of the program.", func(s *Stats) uint64 { return s.Steps }},
	{"trims_total", "Times that memory was to be given back to the device.", func(s *Stats) uint64 { return s.Trims }},
	{"ooms_total", "Requests that failed for lack of memory.", func(s *Stats) uint64 { return s.OOMs }},
}

// Table gives every figure with its name and meaning: those of all blocks
// first, then live and peak bytes of each purpose.
func (s Stats) Table() []Stat {
	var table []Stat
	for _, row := range statTable {
		table = append(table, Stat{row.name, row.doc, row.value(&s)})
	}
	for p := range trace.Purpose(trace.NumPurposes) {
		name := p.String()
		table = append(table,
			Stat{name + "_live_bytes", "Live bytes of purpose " + name + ".", s.ByPurpose[p].Live},
			Stat{name + "_peak_bytes", "Highest live bytes of purpose " + name + ".", s.ByPurpose[p].Peak},
			Stat{name + "_bytes_at_peak", "Live bytes of purpose " + name + " at the moment of peak_live_bytes.", s.PeakByPurpose[p]})
	}
	return table
}

// Summary writes the figures for people: bytes now and at their peaks, live
// bytes by purpose, and the counters that are not zero.
func (s Stats) Summary() string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, now, peak uint64) {
		fmt.Fprintf(w, "%s\t%s\t%s\t\n", name, size.Format(now), size.Format(peak))
	}
	fmt.Fprintln(w, "\tnow\tpeak\t")
	row("live", s.Live, s.PeakLive)
	for p := range trace.Purpose(trace.NumPurposes) {
		if by := s.ByPurpose[p]; by.Peak > 0 {
			row(p.String(), by.Live, by.Peak)
		}
	}
	row("reserved", s.Reserved, s.PeakReserved)
	w.Flush()
	fmt.Fprintf(&out, "%d live blocks of %s asked for; %s pending, %s cached\n", s.Blocks, size.Format(s.Requested), size.Format(s.Pending), size.Format(s.Cached))
	for _, r := range statTable {
		if n := r.value(&s); n > 0 && strings.HasSuffix(r.name, "_total") {
			fmt.Fprintf(&out, "%s %d\n", r.name, n)
		}
	}
	return out.String()
}

// alloc counts a block that was handed out.
func (s *Stats) alloc(b *Block) {
	s.Allocs++
	s.Blocks++
	s.Live += b.size
	s.Requested += b.asked
	s.ByPurpose[b.purpose].Live += b.size
	s.notePeaks(b.purpose)
}

// notePeaks raises the peaks to what is live and reserved.
func (s *Stats) notePeaks(p trace.Purpose) {
	s.ByPurpose[p].Peak = max(s.ByPurpose[p].Peak, s.ByPurpose[p].Live)
	s.PeakReserved = max(s.PeakReserved, s.Reserved)
	if s.Live > s.PeakLive {
		s.PeakLive, s.PeakByPurpose = s.Live, s.LiveByPurpose()
	}
}

// free counts a block that was given back.
func (s *Stats) free(b *Block) {
	s.Frees++
	s.Blocks--
	s.Live -= b.size
	s.Requested -= b.asked
	s.ByPurpose[b.purpose].Live -= b.size
}

// LiveByPurpose gives the live bytes of each purpose.
func (s Stats) LiveByPurpose() PurposeBytes {
	var by PurposeBytes
	for p := range by {
		by[p] = s.ByPurpose[p].Live
	}
	return by
}

// Stats gives the figures of this moment.
func (a *Allocator) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.stats
	s.Cached = s.Reserved - s.Live - s.Pending
	return s
}

// ResetPeaks sets all peaks to what is live and reserved now.
func (a *Allocator) ResetPeaks() {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := &a.stats
	s.PeakLive, s.PeakReserved, s.PeakByPurpose = s.Live, s.Reserved, s.LiveByPurpose()
	for p := range s.ByPurpose {
		s.ByPurpose[p].Peak = s.ByPurpose[p].Live
	}
}

// High is a moment with most live bytes.
type High struct {
	Live, Reserved uint64
	ByPurpose      PurposeBytes // live bytes
}

// raise makes s the moment if more is live.
func (h *High) raise(s *Stats) {
	if s.Live > h.Live {
		*h = High{s.Live, s.Reserved, s.LiveByPurpose()}
	}
}

// TakeHigh gives the moment with most live bytes since the last call, and
// begins anew from now: for one who looks now and then, as steps come and go
// between two looks. The peaks of Stats stay as they are.
func (a *Allocator) TakeHigh() High {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := a.high
	h.raise(&a.stats)
	a.high = High{a.stats.Live, a.stats.Reserved, a.stats.LiveByPurpose()}
	return h
}
