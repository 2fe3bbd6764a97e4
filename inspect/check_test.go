package inspect

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/trace"
)

// sound is a record that agrees with itself: a segment from before the first
// event with one block that stays and one that is freed, and a segment that is
// taken, filled, and emptied but for one block.
func sound() *program {
	const old, taken = 1 << 30, 2 << 30
	p := &program{}
	p.event(trace.FreeRequested, old+512, 1000, nil)
	p.event(trace.FreeCompleted, old+512, 1000, nil)
	p.event(trace.SegmentAlloc, taken, 2<<20, setup)
	p.event(trace.Alloc, taken, 500, forward)
	p.event(trace.Alloc, taken+512, 700, forward)
	p.event(trace.Alloc, taken+2048, 900, backward)
	p.event(trace.FreeRequested, taken+512, 700, nil)
	p.event(trace.FreeCompleted, taken+512, 700, nil)
	p.event(trace.FreeRequested, taken+2048, 900, nil)
	p.s.Segments = []trace.Segment{
		{Addr: old, Size: 2 << 20, Small: true, Blocks: []trace.Block{
			{Addr: old, Size: 512, Requested: 400, Stack: setup},
			{Addr: old + 512, Size: 2<<20 - 512, State: trace.Free},
		}},
		{Addr: taken, Size: 2 << 20, Small: true, Blocks: []trace.Block{
			{Addr: taken, Size: 512, Requested: 500, Stack: forward},
			{Addr: taken + 512, Size: 1536, State: trace.Free},
			{Addr: taken + 2048, Size: 1024, Requested: 900, State: trace.Pending, Stack: backward},
			{Addr: taken + 3072, Size: 2<<20 - 3072, State: trace.Free},
		}},
	}
	p.addUp()
	return p
}

// addUp gives the segments the totals of their blocks.
func (p *program) addUp() {
	for i := range p.s.Segments {
		p.s.Segments[i].Totals = p.s.Segments[i].Sum()
	}
}

func TestSoundRecord(t *testing.T) {
	a := Check(sound().snapshot())
	if !a.Sound() || len(a.Violations) > 0 || a.Devices != 1 || a.Segments != 2 || a.Blocks != 6 || a.Events != 9 {
		t.Errorf("%+v", a)
	}
	for _, c := range a.Tallies {
		if c.Checked == 0 || c.Skipped != "" {
			t.Errorf("%s: %d checked, skipped %q", c.Rule, c.Checked, c.Skipped)
		}
	}
}

// TestRecordedJobsAreSound: what PyTorch wrote agrees with itself.
func TestRecordedJobsAreSound(t *testing.T) {
	for _, name := range []string{"leak_cache.pickle.gz", "bert_ckpt.pickle.gz"} {
		if a := Check(load(t, name)); !a.Sound() || a.Events < 10_000 {
			t.Errorf("%s: %+v", name, a)
		}
	}
}

// TestBrokenRules breaks one thing at a time: the right rule says where.
func TestBrokenRules(t *testing.T) {
	const taken = 2 << 30
	for name, test := range map[string]struct {
		spoil func(p *program)
		rules []Rule
		want  Violation // Text is a part of it
	}{
		"a block is too small for its request": {
			func(p *program) { p.s.Segments[0].Blocks[0].Requested = 600 },
			[]Rule{RuleSizes}, Violation{RuleSizes, 0, 1 << 30, -1, 600, 512, "a block of 512B holds a request of 600B"},
		},
		"a block has no bytes": {
			func(p *program) {
				p.s.Segments[0].Blocks = append(p.s.Segments[0].Blocks, trace.Block{Addr: 1<<30 + 2<<20, State: trace.Free})
			},
			[]Rule{RuleSizes}, Violation{RuleSizes, 0, 1<<30 + 2<<20, -1, 1, 0, "a block of 0 bytes"},
		},
		"a segment passes the end of all addresses": {
			func(p *program) {
				p.s.Segments = append(p.s.Segments, trace.Segment{Addr: 1<<64 - 512, Size: 1024, Blocks: []trace.Block{{Addr: 1<<64 - 512, Size: 1024, State: trace.Free}}})
			},
			[]Rule{RuleSizes}, Violation{RuleSizes, 0, 1<<64 - 512, -1, 1, 1024, "a segment of 1024 bytes"},
		},
		"a gap between blocks": {
			func(p *program) { p.s.Segments[1].Blocks[1].Size -= 512 },
			[]Rule{RuleTiling, RuleBalance}, Violation{RuleTiling, 0, taken, -1, taken + 1536, taken + 2048, "block 2 of the segment begins at 0x80000800, and the one before ends at 0x80000600"},
		},
		"a block beyond the segment": {
			func(p *program) { p.s.Segments[1].Blocks[3].Size += 512 },
			[]Rule{RuleTiling, RuleBalance}, Violation{RuleBalance, 0, 0, -1, 4 << 20, 4<<20 + 512, "and 4MiB are reserved"},
		},
		"a total of live bytes that is none": {
			func(p *program) { p.s.Segments[1].Totals.Live = 1024 },
			[]Rule{RuleTotals}, Violation{RuleTotals, 0, taken, -1, 512, 1024, "the record says that 1KiB of the segment are live, and its blocks add up to 512B"},
		},
		"a total that misses a pending block": {
			func(p *program) { p.s.Segments[1].Totals.Active = 512 },
			[]Rule{RuleTotals}, Violation{RuleTotals, 0, taken, -1, 1536, 512, "512B of the segment are in use, and its blocks add up to 1.5KiB"},
		},
		"a total of other requests": {
			func(p *program) { p.s.Segments[0].Totals.Requested = 512 },
			[]Rule{RuleTotals}, Violation{RuleTotals, 0, 1 << 30, -1, 400, 512, "512B of the segment are asked for, and its blocks add up to 400B"},
		},
		"segments on one another": {
			func(p *program) {
				p.s.Segments = append(p.s.Segments, trace.Segment{Addr: taken + 1<<20, Size: 512, Blocks: []trace.Block{{Addr: taken + 1<<20, Size: 512, State: trace.Free}}})
			},
			[]Rule{RuleOverlap}, Violation{RuleOverlap, 0, taken + 1<<20, -1, taken + 2<<20, taken + 1<<20, "begins inside the one at 0x80000000"},
		},
		"more in use than reserved": {
			func(p *program) {
				p.event(trace.Alloc, 9<<30, 8<<20, nil)
				p.event(trace.FreeRequested, 9<<30, 8<<20, nil)
				p.event(trace.FreeCompleted, 9<<30, 8<<20, nil)
			},
			[]Rule{RuleBalance}, Violation{RuleBalance, 0, 0, 9, 4 << 20, 8<<20 + 1800, "are in use with 4MiB reserved"},
		},
		"an address is handed out twice": {
			func(p *program) { p.event(trace.Alloc, taken, 500, nil) },
			[]Rule{RuleEvents}, Violation{RuleEvents, 0, taken, 9, 500, 500, "a block of 500B is handed out where one of 500B is in use since event 3"},
		},
		"a pending block is freed again": {
			func(p *program) { p.event(trace.FreeRequested, taken+2048, 900, nil) },
			[]Rule{RuleEvents}, Violation{RuleEvents, 0, taken + 2048, 9, 900, 900, "freed twice, first at event 8"},
		},
		"a block that is gone is freed": {
			func(p *program) { p.event(trace.FreeCompleted, taken+512, 700, nil) },
			[]Rule{RuleEvents}, Violation{RuleEvents, 0, taken + 512, 9, 0, 700, "a block of 700B is given back that is gone since event 7"},
		},
		"a free of another size": {
			func(p *program) { p.event(trace.FreeCompleted, taken+2048, 901, nil); p.drop(3) },
			[]Rule{RuleEvents}, Violation{RuleEvents, 0, taken + 2048, 9, 900, 901, "a block of 900B is given back as one of 901B"},
		},
		"a free that nobody asked for": {
			func(p *program) {
				p.event(trace.FreeCompleted, taken, 500, nil)
				p.s.Segments[1].Blocks[0].State = trace.Free
			},
			[]Rule{RuleEvents}, Violation{RuleEvents, 0, taken, 9, 500, 500, "is completed and was never requested"},
		},
		"a segment is taken where one is": {
			func(p *program) { p.event(trace.SegmentAlloc, taken, 2<<20, nil) },
			[]Rule{RuleEvents, RuleBalance}, Violation{RuleEvents, 0, taken, 9, 2 << 20, 2 << 20, "a segment of 2MiB is handed out"},
		},
		"a block is missing at the end": {
			func(p *program) { p.drop(3) },
			[]Rule{RuleEnd}, Violation{RuleEnd, 0, taken + 2048, 8, 900, 0, "the segments do not hold it"},
		},
		"a block too many at the end": {
			func(p *program) {
				b := &p.s.Segments[1].Blocks[1]
				b.State, b.Requested = trace.Live, 700
			},
			[]Rule{RuleEnd}, Violation{RuleEnd, 0, taken + 512, 7, 0, 700, "is gone since this event, and the segments hold it"},
		},
		"a block for another request": {
			func(p *program) { p.s.Segments[1].Blocks[0].Requested = 400 },
			[]Rule{RuleEnd}, Violation{RuleEnd, 0, taken, 3, 500, 400, "500B were asked for, and the segments hold a block for 400B"},
		},
		"a pending block is live": {
			func(p *program) { p.s.Segments[1].Blocks[2].State = trace.Live },
			[]Rule{RuleEnd}, Violation{RuleEnd, 0, taken + 2048, 8, 900, 900, "the segments hold the block as active_allocated"},
		},
		"a segment of another size": {
			func(p *program) {
				p.s.Segments[1].Size += 512
				p.s.Segments[1].Blocks[3].Size += 512
			},
			[]Rule{RuleEnd}, Violation{RuleEnd, 0, taken, 2, 2 << 20, 2<<20 + 512, "the segment of 2MiB that was taken here has 2097664 at the end"},
		},
		"time goes backwards": {
			func(p *program) {
				p.time = 5
				p.event(trace.SnapshotTaken, 0, 0, nil)
				p.time = 4
				p.event(trace.SnapshotTaken, 0, 0, nil)
			},
			[]Rule{RuleTime}, Violation{RuleTime, 0, 0, 9, 9, 6, "3 µs older than the one before; there are 2 such events"},
		},
	} {
		p := sound()
		test.spoil(p)
		if !slices.Contains(test.rules, RuleTotals) {
			p.addUp()
		}
		a := Check(p.snapshot())
		broken := map[Rule]bool{}
		found := false
		for _, v := range a.Violations {
			broken[v.Rule] = true
			text := v.Text
			v.Text = test.want.Text
			found = found || v == test.want && strings.Contains(text, v.Text)
		}
		for _, r := range test.rules {
			if !broken[r] {
				t.Errorf("%s: %s is not broken", name, r)
			}
		}
		if !found || len(broken) != len(test.rules) {
			t.Errorf("%s: found %+v, want %+v and nothing but %v", name, a.Violations, test.want, test.rules)
		}
	}
}

// drop makes the pending block of sound's second segment free.
func (p *program) drop(block int) {
	b := p.s.Segments[1].Blocks
	b[block-1].State, b[block-1].Requested = trace.Free, 0
}

// TestPartsThatCannotBeChecked: what a file lacks is said, and not called
// broken.
func TestPartsThatCannotBeChecked(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(p *program)
		rules map[Rule]string
	}{
		"a cut file":  {func(p *program) { p.s.Cut = errors.New("cut"); p.s.Segments = p.s.Segments[:1] }, map[Rule]string{RuleEnd: "cut", RuleBalance: "cut"}},
		"no totals":   {func(p *program) { p.s.Segments[0].Totals = trace.Totals{} }, map[Rule]string{RuleTotals: "no totals"}},
		"no segments": {func(p *program) { *p = *train(3, func(int) uint64 { return 0 }) }, map[Rule]string{RuleEnd: "no segments", RuleBalance: "lacks"}},
		"no request": {func(p *program) {
			*p = program{}
			p.event(trace.Alloc, 512, 1, nil)
			p.event(trace.FreeCompleted, 512, 1, nil)
		}, map[Rule]string{RuleEnd: "no segments", RuleBalance: "lacks"}},
		"no completed": {func(p *program) {
			*p = program{}
			p.event(trace.Alloc, 512, 1, nil)
			p.event(trace.FreeRequested, 512, 1, nil)
			p.event(trace.Alloc, 512, 1, nil)
		}, map[Rule]string{RuleEnd: "no segments", RuleBalance: "lacks"}},
	} {
		p := sound()
		test.spoil(p)
		a := Check(p.snapshot())
		if n, _ := a.Contradictions(); n > 0 || a.Broken(RuleCut) != strings.Count(name, "cut") {
			t.Errorf("%s: %+v", name, a.Violations)
		}
		for _, c := range a.Tallies {
			if want := test.rules[c.Rule]; !strings.Contains(c.Skipped, want) || want == "" && c.Skipped != "" {
				t.Errorf("%s: %s skipped for %q, want %q", name, c.Rule, c.Skipped, want)
			}
		}
	}
}

// TestFileRules: a file that is cut, damaged, empty, or holds values that are
// none, breaks a rule of its own.
func TestFileRules(t *testing.T) {
	for rule, spoil := range map[Rule]func(s *trace.Snapshot){
		RuleCut:    func(s *trace.Snapshot) { s.Damage = errors.New("the checksum is wrong") },
		RuleEmpty:  func(s *trace.Snapshot) { s.Segments, s.Traces = nil, nil },
		RuleValues: func(s *trace.Snapshot) { s.Oddities = trace.Oddities{Count: 2, First: "a size that is none"} },
	} {
		s := sound().snapshot()
		spoil(s)
		a := Check(s)
		n, first := a.Contradictions()
		if a.Sound() || len(a.Violations) != 1 || a.Violations[0].Rule != rule || a.Violations[0].Device != -1 || a.Broken(rule) == 0 {
			t.Errorf("%s: %+v", rule, a.Violations)
		}
		if isValues := rule == RuleValues; (n == 2) != isValues || (first == "a size that is none") != isValues {
			t.Errorf("%s: %d contradictions, %q", rule, n, first)
		}
	}
}

// TestManyViolations: all are counted, the first are kept.
func TestManyViolations(t *testing.T) {
	p := sound()
	for range 3 * maxViolations {
		p.event(trace.FreeCompleted, 2<<30+512, 700, nil)
	}
	if a := Check(p.snapshot()); len(a.Violations) != maxViolations || a.Broken(RuleEvents) != 3*maxViolations {
		t.Errorf("%d kept, %d counted", len(a.Violations), a.Broken(RuleEvents))
	}
}

// arbitrary makes a record of any events, segments and blocks.
func arbitrary(data []byte) *trace.Snapshot {
	p := &program{}
	stacks := []*trace.Stack{nil, setup, forward, backward, update}
	for ; len(data) >= 4; data = data[4:] {
		a, b, c, d := data[0], data[1], data[2], data[3]
		addr, size := uint64(b)<<(b%60), uint64(c)<<(c%60)
		switch {
		case a < 200:
			p.event(trace.Action(a%12), addr, size, stacks[int(d)%len(stacks)])
			p.time += int64(int8(d))
		case a < 220:
			p.s.Segments = append(p.s.Segments, trace.Segment{Device: int(int8(d)) % 4, Addr: addr, Size: size, Expandable: d&4 > 0})
		case a < 240 && len(p.s.Segments) > 0:
			s := &p.s.Segments[len(p.s.Segments)-1]
			s.Blocks = append(s.Blocks, trace.Block{Addr: addr, Size: size, Requested: size - uint64(d), State: trace.State(d % 3)})
		default:
			p.s.Annotations = append(p.s.Annotations, trace.Annotation{Name: string(rune(b)), Begin: c&1 > 0, TimeUS: p.time, Device: int(d & 1)})
		}
	}
	return p.snapshot()
}

// FuzzCheck: any record gives an audit whose counts fit together.
func FuzzCheck(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 210, 20, 20, 0, 230, 20, 20, 1, 250, 1, 1, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		a := Check(arbitrary(data))
		broken := 0
		for _, c := range a.Tallies {
			broken += min(c.Broken, maxViolations)
		}
		if broken != len(a.Violations) || a.Sound() != (broken == 0) {
			t.Errorf("%d broken, %d violations", broken, len(a.Violations))
		}
	})
}
