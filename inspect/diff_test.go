package inspect

import (
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/trace"
)

// larger is a job like train's that holds one more activation.
func larger(steps int) *program {
	p := train(steps, func(int) uint64 { return 0 })
	p.alloc(64<<20, forward)
	p.alloc(128<<20, stack("/home/me/train.py 20 extra"))
	return p
}

func diffOf(before, after *trace.Snapshot) *Difference {
	return Diff(NewHistory(before, 0), NewHistory(after, 0))
}

func TestDiff(t *testing.T) {
	d := diffOf(train(8, func(int) uint64 { return 0 }).snapshot(), larger(8).snapshot())
	if d.Old.PeakBytes != 136<<20 || d.New.PeakBytes != 240<<20 {
		t.Errorf("peaks %d and %d", d.Old.PeakBytes, d.New.PeakBytes)
	}
	find := func(all []Change, what string) Change {
		return all[slices.IndexFunc(all, func(c Change) bool { return c.What == what })]
	}
	if got, want := find(d.Purposes, "input"), (Change{"input", "", 0, 128 << 20, 128 << 20, 0, 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got, want := find(d.Purposes, "gradient"), (Change{"gradient", "", 16 << 20, 0, -16 << 20, 1, 0}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if d.Sites[0].What != "train.py:20 extra" || len(d.Growth) != 0 {
		t.Errorf("sites %+v, growth %+v", d.Sites, d.Growth)
	}
	for i := 1; i < len(d.Sites); i++ {
		if magnitude(d.Sites[i].ChangeBytes) > magnitude(d.Sites[i-1].ChangeBytes) {
			t.Errorf("sites are not in order: %+v", d.Sites)
		}
	}
}

// TestMovedLines: sites are found again by file and function where their exact
// line has no partner and both records have equally many.
func TestMovedLines(t *testing.T) {
	share := func(what string, bytes uint64) Share { return Share{what, bytes, 1} }
	before := []Share{share("net.py:42 forward (called from train.py:30 <module>)", 10), share("net.py:50 forward (called from train.py:30 <module>)", 20),
		share("net.py:7 norm", 5), share("a.py:1 f", 1), share("b.py:1 f", 2), share("b.py:2 f", 3), share("no stack recorded", 9), share("gone.py:3 g", 4)}
	after := []Share{share("net.py:45 forward (called from train.py:31 <module>)", 11), share("net.py:53 forward (called from train.py:31 <module>)", 20),
		share("net.py:7 norm", 5), share("a.py:1 f", 1), share("a.py:2 f", 6), share("b.py:4 f", 2), share("native code", 9), share("come.py:3 g", 4)}
	want := []Change{
		{"native code", "", 0, 9, 9, 0, 1},
		{"no stack recorded", "", 9, 0, -9, 1, 0},
		{"a.py:2 f", "", 0, 6, 6, 0, 1}, // a.py:1 has its partner
		{"come.py:3 g", "", 0, 4, 4, 0, 1},
		{"gone.py:3 g", "", 4, 0, -4, 1, 0},
		{"b.py:2 f", "", 3, 0, -3, 1, 0}, // two became one: which?
		{"b.py:1 f", "", 2, 0, -2, 1, 0},
		{"b.py:4 f", "", 0, 2, 2, 0, 1},
		{"net.py:45 forward (called from train.py:31 <module>)", "net.py:42 forward (called from train.py:30 <module>)", 10, 11, 1, 1, 1},
	}
	if got := changed(siteChanges(before, after)); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if before[0].What != "net.py:42 forward (called from train.py:30 <module>)" {
		t.Error("the old list was changed")
	}
}

func TestDiffOfOneRecord(t *testing.T) {
	s := train(8, func(int) uint64 { return 4 << 20 }).snapshot()
	d := diffOf(s, s)
	if d.Old != d.New || len(d.Sites)+len(d.Growth) > 0 || len(d.Purposes) == 0 {
		t.Errorf("%+v", d)
	}
}

func TestDiffOfGrowth(t *testing.T) {
	d := diffOf(train(12, func(int) uint64 { return 0 }).snapshot(), train(12, func(int) uint64 { return 4 << 20 }).snapshot())
	if len(d.Growth) != 1 || d.Growth[0].NewBytes != 4<<20 || d.Growth[0].NewCount != 1 || d.Growth[0].OldBytes != 0 {
		t.Errorf("%+v", d)
	}
}

// TestPeaksOfRecordedJobs: both peaks are PyTorch's own counters.
func TestPeaksOfRecordedJobs(t *testing.T) {
	d := diffOf(load(t, "leak_cache.pickle.gz"), load(t, "bert_ckpt.pickle.gz"))
	got := []uint64{d.Old.PeakBytes, d.Old.ReservedBytes, d.New.PeakBytes, d.New.ReservedBytes}
	if want := []uint64{5_212_784_128, 5_242_880_000, 7_726_925_312, 9_286_189_056}; !slices.Equal(got, want) {
		t.Errorf("peaks %v, want %v", got, want)
	}
}

// TestCurves: they are what the states say.
func TestCurves(t *testing.T) {
	h := NewHistory(sound().snapshot(), 0)
	c := h.curves()
	for n := range h.Len() + 1 {
		var live, reserved uint64
		for _, s := range h.At(n).Segments {
			reserved += s.Size
			for _, b := range s.Blocks {
				if b.State == trace.Live {
					live += b.Size
				}
			}
		}
		if c.live[n] != live || c.reserved[n] != reserved {
			t.Errorf("after %d events: %d live, %d reserved, want %d and %d", n, c.live[n], c.reserved[n], live, reserved)
		}
	}
}

func TestConditions(t *testing.T) {
	d := &Difference{
		Old:      Side{PeakBytes: 1000, ReservedBytes: 4096},
		New:      Side{PeakBytes: 1050, ReservedBytes: 2048},
		Purposes: []Change{{What: "gradient", NewBytes: 1}, {What: "activation", OldBytes: 10, NewBytes: 2010}},
	}
	for text, want := range map[string]bool{
		"peak>5%": false, "peak>4.9%": true, "peak > 0 %": true, "peak>49B": true, "peak>50B": false,
		"reserved>0%": false, "reserved>0": false, "gradient>1000000%": true, "gradient>1B": false,
		"activation>1KiB": true, "activation>2KB": false, "activation>1k": true, "workspace>0": false,
	} {
		c, err := ParseCondition(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got, _, _ := c.Holds(d); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
		if again, err := ParseCondition(c.String()); err != nil || again != c {
			t.Errorf("%s: written as %s, which is %v (%v)", text, c, again, err)
		}
	}
	for text, want := range map[string]string{
		"": "form", "peak": "form", "peak>": "form", "peak<5%": "form", "peek>5%": `"peek"`, ">5%": "metrics are peak, reserved, other",
		"peak>x%": "no share", "peak>-5%": "no share", "peak>NaN%": "no share", "peak>Inf%": "no share", "peak>5furlongs": "furlongs", "peak>-1": "negative", "peak>5": "write peak>5% for a share", "peak>1.5": "no unit",
	} {
		if c, err := ParseCondition(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, error %v, want %q", text, c, err, want)
		}
	}
}

// FuzzDiff: any two records give a difference that adds up.
func FuzzDiff(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 210, 20, 20, 0, 230, 20, 20, 1}, []byte{0, 30, 30, 1})
	f.Fuzz(func(t *testing.T, a, b []byte) {
		d := diffOf(arbitrary(a), arbitrary(b))
		for _, c := range slices.Concat(d.Purposes, d.Sites, d.Growth) {
			if c.OldBytes+uint64(c.ChangeBytes) != c.NewBytes {
				t.Errorf("%+v", c)
			}
		}
	})
}
