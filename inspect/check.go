package inspect

import (
	"cmp"
	"fmt"
	"maps"
	"math/bits"
	"slices"

	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/trace"
)

// Rule names an equation that holds in every record that is sound.
type Rule string

// The rules; Rules says what each of them means.
const (
	RuleCut     Rule = "cut"
	RuleEmpty   Rule = "empty"
	RuleValues  Rule = "values"
	RuleSizes   Rule = "sizes"
	RuleTiling  Rule = "tiling"
	RuleTotals  Rule = "totals"
	RuleOverlap Rule = "overlap"
	RuleBalance Rule = "balance"
	RuleEvents  Rule = "events"
	RuleEnd     Rule = "end"
	RuleTime    Rule = "time"
)

// RuleInfo is a rule with its meaning in one sentence.
type RuleInfo struct {
	Rule    Rule   `json:"rule"`
	Meaning string `json:"meaning"`
}

// rules is the table of all rules, in the order in which they are checked.
var rules = []RuleInfo{
	{RuleCut, "The file is whole and undamaged."},
	{RuleEmpty, "The file holds events or segments."},
	{RuleValues, "Every number in the file is one, and could be true."},
	{RuleSizes, "Segments and blocks hold bytes, and a block holds what was asked for."},
	{RuleTiling, "The blocks of a segment tile it."},
	{RuleTotals, "The totals of a segment are the sums of its blocks."},
	{RuleOverlap, "No two segments of a device share an address."},
	{RuleBalance, "Reserved = live + pending + cached, and never is more in use than reserved."},
	{RuleEvents, "Nothing is handed out that is in use, or given back that is not."},
	{RuleEnd, "What is in use after the last event is what the segments hold."},
	{RuleTime, "Time does not go backwards."},
}

// Rules lists every rule with its meaning.
func Rules() []RuleInfo { return slices.Clone(rules) }

// Violation is one place where a rule is broken.
type Violation struct {
	Rule    Rule   `json:"rule"`
	Device  int    `json:"device"`  // -1 where it is about the file
	Address uint64 `json:"address"` // 0 where it is about no address
	Event   int    `json:"event"`   // -1 where it is about no event
	// Want and Got are the figures that should be equal: bytes; for RuleTiling
	// and RuleOverlap addresses, for RuleTime microseconds.
	Want uint64 `json:"want"`
	Got  uint64 `json:"got"`
	Text string `json:"text"` // what is wrong, with the figures
}

// Tally is how a rule came out.
type Tally struct {
	RuleInfo
	Checked int    `json:"checked"` // segments, blocks or events that were looked at
	Broken  int    `json:"broken"`
	Skipped string `json:"skipped,omitempty"` // why some of it could not be checked
}

// Audit is what Check found.
type Audit struct {
	Devices    int         `json:"devices"`
	Segments   int         `json:"segments"`
	Blocks     int         `json:"blocks"`
	Events     int         `json:"events"`
	Tallies    []Tally     `json:"rules"`      // one for each rule, in the order of Rules
	Violations []Violation `json:"violations"` // of each rule the first maxViolations
}

// maxViolations is how many violations of a rule are kept.
const maxViolations = 100

// Check checks the equations of Rules over a snapshot.
func Check(s *trace.Snapshot) *Audit {
	a := &Audit{Segments: len(s.Segments), Violations: []Violation{}}
	for _, r := range rules {
		a.Tallies = append(a.Tallies, Tally{RuleInfo: r})
	}
	perDevice := map[int][]trace.Segment{}
	for d := range s.Traces {
		perDevice[d] = nil
	}
	for _, g := range s.Segments {
		perDevice[g.Device] = append(perDevice[g.Device], g)
		a.Blocks += len(g.Blocks)
	}
	for _, d := range slices.Sorted(maps.Keys(perDevice)) {
		c := &checker{Audit: a, device: d, segments: perDevice[d], trace: &trace.Trace{}, cut: s.Cut != nil}
		if d >= 0 && d < len(s.Traces) {
			c.trace = s.Traces[d]
		}
		if len(c.segments) > 0 || c.trace.Len() > 0 {
			a.Devices++
		}
		a.Events += c.trace.Len()
		c.check()
	}
	a.file(s)
	slices.SortStableFunc(a.Violations, func(x, y Violation) int { return cmp.Compare(ruleIndex(x.Rule), ruleIndex(y.Rule)) })
	return a
}

// file checks the file as a whole.
func (a *Audit) file(s *trace.Snapshot) {
	c := checker{Audit: a, device: -1}
	c.checked(RuleCut, 1)
	for _, err := range []error{s.Cut, s.Damage} {
		if err != nil {
			c.broken(RuleCut, 0, -1, 0, 0, "%v", err)
		}
	}
	c.checked(RuleEmpty, 1)
	if s.Empty() {
		c.broken(RuleEmpty, 0, -1, 0, 0, "there are neither events nor segments")
	}
	c.checked(RuleValues, a.Segments+a.Blocks+a.Events)
	if n := s.Oddities.Count; n > 0 {
		c.broken(RuleValues, 0, -1, 0, 0, "%s", s.Oddities.First)
		a.Tallies[ruleIndex(RuleValues)].Broken = n
	}
}

// Contradictions counts the places in which the record's figures contradict
// each other or cannot be true, and gives the first: violations of all rules
// but those on the file's ends and on time, which no figure rests on.
func (a *Audit) Contradictions() (n int, first string) {
	apart := []Rule{RuleCut, RuleEmpty, RuleTime}
	for _, t := range a.Tallies {
		if !slices.Contains(apart, t.Rule) {
			n += t.Broken
		}
	}
	for _, v := range a.Violations {
		if !slices.Contains(apart, v.Rule) {
			return n, v.Text
		}
	}
	return n, ""
}

// Broken is the number of violations of a rule.
func (a *Audit) Broken(r Rule) int { return a.Tallies[ruleIndex(r)].Broken }

// Sound says whether no rule is broken.
func (a *Audit) Sound() bool {
	return !slices.ContainsFunc(a.Tallies, func(t Tally) bool { return t.Broken > 0 })
}

func ruleIndex(r Rule) int {
	return slices.IndexFunc(rules, func(i RuleInfo) bool { return i.Rule == r })
}

// checker checks one device.
type checker struct {
	*Audit
	device   int
	segments []trace.Segment
	trace    *trace.Trace
	cut      bool
}

func (c *checker) check() {
	slices.SortStableFunc(c.segments, func(a, b trace.Segment) int { return cmp.Compare(a.Addr, b.Addr) })
	for i := range c.segments {
		c.sizes(&c.segments[i])
		c.tiling(&c.segments[i])
		c.totals(&c.segments[i])
	}
	c.overlap()
	c.balance()
	l := newLedger(c)
	l.readAll()
	c.history(l)
	l.compareEnd()
	c.time()
}

func (c *checker) checked(r Rule, n int) { c.Tallies[ruleIndex(r)].Checked += n }

func (c *checker) skip(r Rule, why string) { c.Tallies[ruleIndex(r)].Skipped = why }

func (c *checker) broken(r Rule, addr uint64, event int, want, got uint64, format string, args ...any) {
	t := &c.Tallies[ruleIndex(r)]
	if t.Broken++; t.Broken <= maxViolations { // others are counted: a long record may break a rule at every event
		c.Violations = append(c.Violations, Violation{r, c.device, addr, event, want, got, fmt.Sprintf(format, args...)})
	}
}

// exactly is bytes that are written as such if they are written at all.
type exactly uint64

func (b exactly) String() string { return size.Exact(uint64(b)) }

// sizes checks the sizes of a segment and its blocks each by itself.
func (c *checker) sizes(s *trace.Segment) {
	c.checked(RuleSizes, 1+len(s.Blocks))
	if s.Size == 0 || passesEnd(s.Addr, s.Size) {
		c.broken(RuleSizes, s.Addr, -1, 1, s.Size, "a segment of %d bytes", s.Size)
	}
	for i := range s.Blocks {
		switch b := &s.Blocks[i]; {
		case b.Size == 0 || passesEnd(b.Addr, b.Size):
			c.broken(RuleSizes, b.Addr, -1, 1, b.Size, "a block of %d bytes", b.Size)
		case b.State != trace.Free && b.Requested > b.Size:
			c.broken(RuleSizes, b.Addr, -1, b.Requested, b.Size, "a block of %s holds a request of %s", exactly(b.Size), exactly(b.Requested))
		}
	}
}

// passesEnd says whether a range goes beyond the last address.
func passesEnd(addr, size uint64) bool {
	_, carry := bits.Add64(addr, size, 0)
	return carry != 0
}

// tiling says the first place in which the blocks do not follow one another.
func (c *checker) tiling(s *trace.Segment) {
	c.checked(RuleTiling, 1)
	at := s.Addr
	for i := range s.Blocks {
		b := &s.Blocks[i]
		if b.Addr != at {
			c.broken(RuleTiling, s.Addr, -1, at, b.Addr, "block %d of the segment begins at %#x, and the one before ends at %#x", i, b.Addr, at)
			return
		}
		at += b.Size
	}
	if end := s.Addr + s.Size; at != end {
		c.broken(RuleTiling, s.Addr, -1, end, at, "the %d blocks of the segment end at %#x, the segment at %#x", len(s.Blocks), at, end)
	}
}

// totals compares the totals that the record gives with the blocks.
func (c *checker) totals(s *trace.Segment) {
	if !s.Totals.Known {
		c.skip(RuleTotals, "the record gives no totals of some segments")
		return
	}
	c.checked(RuleTotals, 1)
	told, counted := s.Totals, s.Sum()
	for _, f := range []struct {
		what      string
		want, got uint64
	}{{"live", counted.Live, told.Live}, {"in use", counted.Active, told.Active}, {"asked for", counted.Requested, told.Requested}} {
		if f.want != f.got {
			c.broken(RuleTotals, s.Addr, -1, f.want, f.got, "the record says that %s of the segment are %s, and its blocks add up to %s", exactly(f.got), f.what, exactly(f.want))
		}
	}
}

// overlap goes through the segments by address.
func (c *checker) overlap() {
	c.checked(RuleOverlap, len(c.segments))
	var end, holder uint64
	for _, s := range c.segments {
		if s.Addr < end {
			c.broken(RuleOverlap, s.Addr, -1, end, s.Addr, "the segment of %s begins inside the one at %#x, which ends at %#x", exactly(s.Size), holder, end)
		}
		if s.Addr+s.Size > end {
			end, holder = s.Addr+s.Size, s.Addr
		}
	}
}

// balance checks the equation of all segments together.
func (c *checker) balance() {
	c.checked(RuleBalance, len(c.segments))
	var reserved uint64
	var sum [trace.Free + 1]uint64
	for _, s := range c.segments {
		reserved += s.Size
		for _, b := range s.Blocks {
			sum[b.State] += b.Size
		}
	}
	live, pending, cached := sum[trace.Live], sum[trace.Pending], sum[trace.Free]
	if got := live + pending + cached; got != reserved {
		c.broken(RuleBalance, 0, -1, reserved, got, "live %s + pending %s + cached %s is %s, and %s are reserved",
			exactly(live), exactly(pending), exactly(cached), exactly(got), exactly(reserved))
	}
}

// history checks that never was more in use than reserved; it says the first
// event at which that was so.
func (c *checker) history(l *ledger) {
	switch {
	case c.trace.Len() == 0:
		return
	case c.cut:
		c.skip(RuleBalance, "the file is cut: what was reserved at each event is counted back from its end")
		return
	case !l.has[trace.SegmentAlloc] && !l.has[trace.SegmentMap]:
		c.skip(RuleBalance, "the record lacks the events of segments")
		return
	}
	c.checked(RuleBalance, c.trace.Len())
	used, reserved := l.firstUsed(), firstReserved(c.trace, c.segments)
	for i := 0; ; i++ {
		if u, r := uint64(max(used, 0)), uint64(max(reserved, 0)); u > r {
			c.broken(RuleBalance, 0, i-1, r, u, "%s are in use with %s reserved", exactly(u), exactly(r))
			return
		}
		if i == c.trace.Len() {
			return
		}
		e := c.trace.Entry(i)
		used += l.change[i+1]
		reserved += reservedBy(&e)
	}
}

// time says the first event that is older than the one before, and how many
// there are.
func (c *checker) time() {
	c.checked(RuleTime, c.trace.Len())
	first, count := -1, 0
	var last, want, got int64
	for i, e := range c.trace.All() {
		if i > 0 && e.TimeUS < last {
			if count++; first < 0 {
				first, want, got = i, last, e.TimeUS
			}
		}
		last = e.TimeUS
	}
	if first >= 0 {
		c.broken(RuleTime, 0, first, uint64(want), uint64(got), "the event is %d µs older than the one before; there are %d such events", want-got, count)
	}
}

// firstReserved is the reserved bytes before the first event, counted back from
// the segments at the end.
func firstReserved(t *trace.Trace, segments []trace.Segment) (sum int64) {
	for _, s := range segments {
		sum += int64(s.Size)
	}
	for _, e := range t.All() {
		sum -= reservedBy(&e)
	}
	return sum
}

// reservedBy is by how much an event changes the reserved bytes.
func reservedBy(e *trace.Entry) int64 {
	switch e.Action {
	case trace.SegmentAlloc, trace.SegmentMap:
		return int64(e.Size)
	case trace.SegmentFree, trace.SegmentUnmap:
		return -int64(e.Size)
	}
	return 0
}
