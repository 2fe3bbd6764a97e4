package watch

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// oracle replays all levels so far for each answer: the alarm changes where the
// last scans that were measured since the last change all speak for it.
func oracle(s Setting, levels []level) []bool {
	var states []bool
	open := false
	var since []level // measured since the last change
	for _, l := range levels {
		if l != unknown {
			since = append(since, l)
		}
		want, enough := above, s.OpenScans
		if open {
			want, enough = below, s.CloseScans
		}
		last := since[max(0, len(since)-enough):]
		if len(last) == enough && !slices.ContainsFunc(last, func(l level) bool { return l != want }) {
			open, since = !open, nil
		}
		states = append(states, open)
	}
	return states
}

func TestAlarmsAgainstOracle(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	changes := 0
	for range 3000 {
		s := Setting{Rule: Full, Open: 3, Close: 2, OpenScans: 1 + r.IntN(4), CloseScans: 1 + r.IntN(4)}
		levels := make([]level, r.IntN(60))
		for i := range levels {
			levels[i] = level(r.IntN(4))
			if i > 0 && r.IntN(3) > 0 {
				levels[i] = levels[i-1]
			}
		}
		want := oracle(s, levels)
		var a alarm
		for i, l := range levels {
			moved := a.move(s, l)
			if a.open != want[i] || moved != (want[i] != (i > 0 && want[i-1])) {
				t.Fatalf("%v %v: after %d scans open %v (moved %v), want %v", s, levels, i+1, a.open, moved, want[i])
			}
			if moved {
				changes++
			}
		}
	}
	if changes < 1000 {
		t.Errorf("only %d changes: the test shows nothing", changes)
	}
}

func TestLevels(t *testing.T) {
	s := Setting{Open: 0.95, Close: 0.90}
	for value, want := range map[float64]level{1: above, 0.95: above, 0.949: between, 0.9: between, 0.899: below, 0: below} {
		if got := levelOf(s, value, true); got != want {
			t.Errorf("%v: %v, want %v", value, got, want)
		}
	}
	if levelOf(s, 1, false) != unknown {
		t.Error("a value that is not known has a level")
	}
}

func TestSettings(t *testing.T) {
	for _, s := range Defaults() {
		back, err := ParseSetting(s.String())
		if err != nil || back != s {
			t.Errorf("%v is read as %v, %v", s, back, err)
		}
	}
	for text, want := range map[string]string{
		"full=90%":           "full=90%:90%,3:3",
		"full=80%:70%,5":     "full=80%:70%,5:3",
		"full=99.5%":         "full=99.5%:90%,3:3",
		"growing=30m":        "growing=30m:2h,5:5",
		"growing=3h":         "growing=3h:3h,5:5",
		"orphaned=512MiB":    "orphaned=512MiB:512MiB,2:1",
		"orphaned=4GiB,3:4":  "orphaned=4GiB:1GiB,3:4",
		"idle=1h30m":         "idle=1h30m:15m,1:1",
		"failed=5":           "failed=5:1,1:1",
		"idle=off":           "idle=off",
		"growing=90s:1h,1:1": "growing=1m30s:1h,1:1",
	} {
		s, err := ParseSetting(text)
		if err != nil || s.String() != want {
			t.Errorf("%s: %v, %v, want %s", text, s, err, want)
		}
	}
	for _, text := range []string{"", "full", "empty=1", "full=95", "full=0%", "full=101%", "full=NaN%", "full=80%:90%", "full=95%,0", "full=95%,x",
		"full=95%,1:0", "growing=1h:30m", "growing=0s", "growing=-1h", "idle=soon", "orphaned=lots", "failed=0", "failed=1.5", "full=95%:x"} {
		if s, err := ParseSetting(text); err == nil {
			t.Errorf("%q is read as %v", text, s)
		}
	}
}
