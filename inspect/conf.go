package inspect

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"

	"github.com/headroom-go/headroom/trace"
)

const mib = 1 << 20

// Conf is the settings of PyTorch's caching allocator that decide what it
// reserves, as PYTORCH_ALLOC_CONF (or PYTORCH_CUDA_ALLOC_CONF) gives them.
// Sizes are in bytes.
type Conf struct {
	Backend             string     // native or cudaMallocAsync
	MaxSplit            uint64     // blocks of this size or more are not split; NoLimit: all are
	MaxNonSplitRounding uint64     // how much larger than the request an unsplit block may be
	LargeSegment        uint64     // segment for requests of 1 to 10 MiB, and page of large expandable segments
	Divisions           [16]uint64 // steps to the next power of two, by size: 1, 2, 4 … 32768 MiB and more; 0: rounded to 512 bytes
	GCThreshold         float64    // share of what MemoryFraction allows from which cached blocks are collected; 0, or no MemoryFraction below 1: never
	Expandable          bool       // segments grow page by page
	MemoryFraction      float64    // share of the device that may be reserved
	ThrowOnOOM          bool       // a request beyond MemoryFraction fails at once
	ReserveFraction     float64    // addresses of an expandable segment as a share of the device; 0: 9/8, or
	ReserveBytes        uint64     // the same in bytes; 0: as ReserveFraction says
}

// NoLimit as Conf.MaxSplit lets all blocks be split.
const NoLimit = math.MaxUint64

// DefaultConf is what PyTorch does without settings.
func DefaultConf() Conf {
	return Conf{Backend: "native", MaxSplit: NoLimit, MaxNonSplitRounding: 20 * mib, LargeSegment: 20 * mib, MemoryFraction: 1}
}

// ParseConf reads settings such as
//
//	expandable_segments:True,roundup_power2_divisions:[256:1,512:2,>:8]
//
// in PyTorch's grammar: key:value pairs with commas between them, lists in
// brackets, white space ignored, booleans True and False. Options about pinned
// memory and locks are checked and have no effect on device memory. The error
// says which option is wrong and what it takes.
func ParseConf(text string) (Conf, error) {
	c := DefaultConf()
	p := confParser{tokens: confTokens(text), conf: &c}
	for p.more() {
		if err := p.option(); err != nil {
			return DefaultConf(), fmt.Errorf("alloc conf %q: %w", text, err)
		}
	}
	if c.MaxSplit < c.LargeSegment {
		return DefaultConf(), fmt.Errorf("alloc conf %q: max_split_size_mb must be at least large_segment_size_mb, which is %d", text, c.LargeSegment/mib)
	}
	return c, nil
}

// RecordedConf is the settings that a snapshot was recorded under: its text,
// corrected by the values that stand beside it. What it does not tell, or what
// makes no sense, is PyTorch's default.
func RecordedConf(s trace.Settings) Conf {
	c := DefaultConf()
	if !s.Known {
		return c
	}
	for p := (confParser{tokens: confTokens(s.Conf), conf: &c}); p.more(); {
		if p.option() != nil {
			p.pass()
		}
	}
	c.MaxSplit = NoLimit
	if s.MaxSplitSize > 0 {
		c.MaxSplit = uint64(s.MaxSplitSize)
	}
	c.Expandable, c.Divisions, c.GCThreshold = s.Expandable, s.RoundupDivisions, 0
	if s.GCThreshold > 0 && s.GCThreshold < 1 {
		c.GCThreshold = s.GCThreshold
	}
	for i, d := range c.Divisions {
		if d&(d-1) != 0 {
			c.Divisions[i] = 0
		}
	}
	return c
}

// String gives the settings that are not the default, as ParseConf reads them.
func (c Conf) String() string {
	var parts []string
	add := func(set bool, format string, args ...any) {
		if set {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	d := DefaultConf()
	add(c.Backend != d.Backend, "backend:%s", c.Backend)
	add(c.LargeSegment != d.LargeSegment, "large_segment_size_mb:%d", c.LargeSegment/mib)
	add(c.MaxSplit != d.MaxSplit, "max_split_size_mb:%d", c.MaxSplit/mib)
	add(c.MaxNonSplitRounding != d.MaxNonSplitRounding, "max_non_split_rounding_mb:%d", c.MaxNonSplitRounding/mib)
	add(c.Divisions != d.Divisions, "roundup_power2_divisions:%s", formatDivisions(c.Divisions))
	add(c.GCThreshold != d.GCThreshold, "garbage_collection_threshold:%s", formatFloat(c.GCThreshold))
	add(c.Expandable, "expandable_segments:True")
	add(c.MemoryFraction != d.MemoryFraction, "per_process_memory_fraction:%s", formatFloat(c.MemoryFraction))
	add(c.ThrowOnOOM, "throw_on_cudamalloc_oom:True")
	add(c.ReserveFraction != 0, "expandable_segments_reserve:%s", formatFloat(c.ReserveFraction))
	add(c.ReserveBytes != 0, "expandable_segments_reserve:%dG", c.ReserveBytes>>30)
	return strings.Join(parts, ",")
}

func formatFloat(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

// formatDivisions writes one number where all are the same, else a list from
// the end of the first run of equal ones to the start of the last run.
func formatDivisions(d [16]uint64) string {
	first, last := 0, len(d)-1
	for first < len(d)-1 && d[first+1] == d[0] {
		first++
	}
	for last > 0 && d[last-1] == d[len(d)-1] {
		last--
	}
	if last == 0 {
		return strconv.FormatUint(d[0], 10)
	}
	var list []string
	for i := first; i < last; i++ {
		list = append(list, fmt.Sprintf("%d:%d", 1<<i, d[i]))
	}
	return fmt.Sprintf("[%s,>:%d]", strings.Join(list, ","), d[last])
}

// Sizes that the rules turn on, in bytes.
const (
	minBlock    = 512      // what sizes of blocks are multiples of
	smallMax    = 1 * mib  // the largest request of a small pool
	smallBuffer = 2 * mib  // segment of a small pool, and its page
	minLarge    = 10 * mib // requests from here on get a segment of their own size …
	roundLarge  = 2 * mib  // … rounded up to a multiple of this
	maxRequest  = 1 << 60  // what is as large or larger fails at once
)

// Round gives the size of the block that a request of size bytes asks for. A
// request of 1 EiB or more, which always fails, is not rounded.
func (c *Conf) Round(size uint64) uint64 {
	if size <= minBlock {
		return minBlock
	}
	if size >= maxRequest {
		return size
	}
	d := c.divisions(size)
	if units := roundUp(size, minBlock) / minBlock; d <= 1 || units <= d {
		return units * minBlock
	}
	return roundUp(size, powerOfTwoBelow(size)/powerOfTwoBelow(d))
}

// divisions gives the number of steps for a size.
func (c *Conf) divisions(size uint64) uint64 {
	i := bits.Len64(size) - 1 - 20
	return c.Divisions[min(max(i, 0), len(c.Divisions)-1)]
}

// powerOfTwoBelow is the largest power of two that is not above n.
func powerOfTwoBelow(n uint64) uint64 { return 1 << (bits.Len64(n) - 1) }

// roundUp goes to a multiple of n.
func roundUp(v, n uint64) uint64 { return (v + n - 1) / n * n }

// segmentSize is the size of the plain segment for a rounded request.
func (c *Conf) segmentSize(rounded uint64) uint64 {
	switch {
	case rounded <= smallMax:
		return smallBuffer
	case rounded < minLarge:
		return c.LargeSegment
	}
	return roundUp(rounded, roundLarge)
}

// page is the unit by which expandable segments grow.
func (c *Conf) page(small bool) uint64 {
	if small {
		return smallBuffer
	}
	return c.LargeSegment
}
