package watch

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/headroom-go/headroom/internal/size"
)

// Rule names what can be wrong.
type Rule string

// The rules.
const (
	Full     Rule = "full"
	Growing  Rule = "growing"
	Orphaned Rule = "orphaned"
	Idle     Rule = "idle"
	Failed   Rule = "failed"
)

// Setting is when the alarm of a rule opens and closes.
type Setting struct {
	Rule                  Rule
	Open, Close           float64 // in the rule's unit: opens at Open or above, closes below Close, which is not above Open
	OpenScans, CloseScans int     // in a row; OpenScans 0 switches the rule off
}

// rule is a row of the table of rules.
type rule struct {
	Setting
	Meaning string
	unit    unit
	measure func(*track) (value float64, known bool)
	say     func(*track) string // what is wrong, for people
}

// hour is the greatest time to full that opens an alarm by default.
const hour = 3600

var rules = []rule{
	{Setting{Full, 0.95, 0.90, 3, 3}, "this share of the memory is in use", share, (*track).share, (*track).sayFull},
	{Setting{Growing, 1.0 / hour, 0.5 / hour, 5, 5}, "memory grows and will be full within this time", within, (*track).urgency, (*track).sayGrowing},
	{Setting{Orphaned, 2 << 30, 1 << 30, 2, 1}, "this much is held by no living process", amount, (*track).unowned, (*track).sayOrphaned},
	{Setting{Idle, 900, 900, 1, 1}, "memory is held and nothing was computed for this time", seconds, (*track).idleFor, (*track).sayIdle},
	{Setting{Failed, 3, 1, 1, 1}, "this many queries in a row failed", number, (*track).failedFor, (*track).sayFailed},
}

// unit is how a threshold is written.
type unit struct {
	parse  func(string) (float64, error)
	format func(float64) string
}

// The units.
var (
	share  = unit{parseShare, func(v float64) string { return trim(v*100) + "%" }}
	amount = unit{
		func(s string) (float64, error) { n, err := size.Parse(s); return float64(n), err },
		func(v float64) string { return size.Format(uint64(v)) },
	}
	seconds = unit{parseSeconds, formatSeconds}
	// within is one over a time, so that what is worse is greater.
	within = unit{
		func(s string) (float64, error) { v, err := parseSeconds(s); return 1 / v, err },
		func(v float64) string { return formatSeconds(1 / v) },
	}
	number = unit{parseNumber, trim}
)

func trim(v float64) string { return strconv.FormatFloat(math.Round(v*1e6)/1e6, 'f', -1, 64) }

func formatSeconds(v float64) string {
	text := time.Duration(v * float64(time.Second)).Round(time.Second).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

func parseSeconds(s string) (float64, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 1, fmt.Errorf("%q is no time above 0: write it like 15m or 1h30m", s)
	}
	return d.Seconds(), nil
}

func parseNumber(s string) (float64, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%q is no whole number above 0", s)
	}
	return float64(n), nil
}

func parseShare(s string) (float64, error) {
	v, err := strconv.ParseFloat(strings.TrimSuffix(s, "%"), 64)
	if err != nil || !strings.HasSuffix(s, "%") || !(v > 0 && v <= 100) {
		return 0, fmt.Errorf("%q is no share: write it like 95%%", s)
	}
	return v / 100, nil
}

// ruleOf finds the row of a rule.
func ruleOf(name Rule) *rule {
	for i := range rules {
		if rules[i].Rule == name {
			return &rules[i]
		}
	}
	panic(fmt.Sprintf("watch: no rule is named %q", name))
}

// Defaults is the settings of all rules.
func Defaults() []Setting {
	out := make([]Setting, len(rules))
	for i, r := range rules {
		out[i] = r.Setting
	}
	return out
}

// ParseSetting reads NAME=OPEN[:CLOSE][,SCANS[:SCANS]], such as
// full=95%:90%,3:3, or NAME=off. What is left out is as in Defaults, but that
// a CLOSE is OPEN, if the default would be above it.
func ParseSetting(text string) (Setting, error) {
	name, rest, ok := strings.Cut(text, "=")
	for _, r := range rules {
		if ok && string(r.Rule) == name {
			return r.parse(rest)
		}
	}
	return Setting{}, fmt.Errorf("%q names no rule: write it like full=95%%:90%%,3:3 or idle=off; the rules are %s", text, ruleNames())
}

func ruleNames() string {
	var names []string
	for _, r := range rules {
		names = append(names, string(r.Rule))
	}
	return strings.Join(names, ", ")
}

func (r *rule) parse(text string) (Setting, error) {
	s := r.Setting
	if text == "off" {
		s.OpenScans = 0
		return s, nil
	}
	thresholds, scans, counted := strings.Cut(text, ",")
	open, closing, both := strings.Cut(thresholds, ":")
	var err error
	if s.Open, err = r.unit.parse(open); err != nil {
		return s, err
	}
	s.Close = min(s.Close, s.Open)
	if both {
		if s.Close, err = r.unit.parse(closing); err != nil {
			return s, err
		}
	}
	if s.Close > s.Open {
		return s, fmt.Errorf("it would close at %s and open only at %s", closing, open)
	}
	if counted {
		return s, parseScans(&s, scans)
	}
	return s, nil
}

func parseScans(s *Setting, text string) error {
	open, closing, both := strings.Cut(text, ":")
	n, err := parseNumber(open)
	if err != nil {
		return fmt.Errorf("scans: %w", err)
	}
	s.OpenScans = int(n)
	if both {
		if n, err = parseNumber(closing); err != nil {
			return fmt.Errorf("scans: %w", err)
		}
		s.CloseScans = int(n)
	}
	return nil
}

// String writes a setting as ParseSetting reads it.
func (s Setting) String() string {
	if s.OpenScans == 0 {
		return string(s.Rule) + "=off"
	}
	f := ruleOf(s.Rule).unit.format
	return fmt.Sprintf("%s=%s:%s,%d:%d", s.Rule, f(s.Open), f(s.Close), s.OpenScans, s.CloseScans)
}

// Meaning says what opens the alarm of a rule.
func (r Rule) Meaning() string { return ruleOf(r).Meaning }
