package inspect

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/headroom-go/headroom/internal/size"
)

// sentence is a row of the tables in text_words.go: a sentence about a verdict.
// It is used when all its conditions hold and every figure in it is known.
//
// Conditions, with blanks between: tag, -tag (must not be there), ?figure (must
// be known), -?figure (must not). Figures with two words are written with _.
//
// In the sentence {figure} is a size, {#figure} a count, {a/b} a percentage,
// {a:b} how many times b is in a, {$word} a word that a rule found; {device} and
// {framework} are always known.
type sentence struct {
	verdict Verdict
	when    string
	text    string
}

// holds reports whether the conditions of s are true of m.
func (s sentence) holds(v Verdict, m *message) bool {
	if s.verdict != v {
		return false
	}
	for cond := range strings.FieldsSeq(s.when) {
		name, not := strings.CutPrefix(cond, "-")
		var is bool
		if known, ok := strings.CutPrefix(name, "?"); ok {
			is = m.figures.has(figureNamed(known))
		} else {
			is = m.is(name)
		}
		if is == not {
			return false
		}
	}
	return true
}

// figureNamed undoes the underscore of a condition.
func figureNamed(s string) figure { return figure(strings.ReplaceAll(s, "_", " ")) }

// expand fills the figures of m into text; ok is false when one is not known.
func (m *message) expand(text string) (out string, ok bool) {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "{")
		b.WriteString(before)
		if !found {
			return b.String(), true
		}
		name, after, _ := strings.Cut(rest, "}")
		value, ok := m.value(name)
		if !ok {
			return "", false
		}
		b.WriteString(value)
		text = after
	}
}

// value is what stands for one placeholder.
func (m *message) value(name string) (string, bool) {
	switch {
	case name == "device":
		return cmp.Or(m.device, "the device"), true
	case name == "framework":
		return m.wording.framework, true
	case strings.HasPrefix(name, "$"):
		word, ok := m.words[name[1:]]
		return word, ok
	case strings.HasPrefix(name, "#"):
		n, ok := m.figures[figure(name[1:])]
		return strconv.FormatUint(n, 10), ok
	}
	if a, b, ok := strings.Cut(name, "/"); ok {
		return m.ratio(a, b, "%.3g %%", 100)
	}
	if a, b, ok := strings.Cut(name, ":"); ok {
		return m.ratio(a, b, "%.4g", 1)
	}
	n, ok := m.figures[figure(name)]
	return size.Format(n), ok
}

// ratio formats scale·a/b.
func (m *message) ratio(a, b, format string, scale float64) (string, bool) {
	if f := m.figures; f.has(figure(a), figure(b)) && f[figure(b)] > 0 {
		return fmt.Sprintf(format, scale*float64(f[figure(a)])/float64(f[figure(b)])), true
	}
	return "", false
}

// sentences are all of a table that apply, in its order.
func (m *message) sentences(table []sentence, v Verdict) []string {
	out := []string{}
	for _, s := range table {
		if !s.holds(v, m) {
			continue
		}
		if text, ok := m.expand(s.text); ok {
			out = append(out, text)
		}
	}
	return out
}

// report puts the verdict into words.
func (m *message) report(v Verdict) *Report {
	r := &Report{
		Kind: KindErrorText, Verdict: v, Framework: m.wording.framework, Device: m.device,
		RequestBytes: m.pointer(figRequest), TotalBytes: m.pointer(figTotal), FreeBytes: m.pointer(figFree),
		AllocatedBytes: m.pointer(figAllocated), ReservedBytes: m.pointer(figReserved), CachedBytes: m.pointer(figCached),
		OutsideBytes: m.pointer(figOutside), LimitBytes: m.pointer(figLimit),
		Causes: m.causes(v), Actions: m.sentences(actions, v), Unhelpful: m.sentences(unhelpful, v),
	}
	if len(r.Actions) == 0 { // every row lacked a figure
		r.Actions = append(r.Actions, "Paste the whole message with the lines around it: the figures that say what to do are not in this part.")
	}
	r.Summary = append(m.sentences(summaries, v), meaning(v))[0]
	if m.count > 1 && len(m.figures) > 0 { // of bare names none says most
		atLeast := ""
		if m.more {
			atLeast = "at least "
		}
		r.Summary += fmt.Sprintf(" The text holds %s%d such messages", atLeast, m.count)
		if len(m.devices) > 1 {
			r.Summary += " (" + strings.Join(slices.Sorted(slices.Values(m.devices)), ", ") + ")"
		}
		r.Summary += "; this one says most."
	}
	return r
}

// pointer is a figure for a Report.
func (m *message) pointer(name figure) *uint64 {
	n, ok := m.figures[name]
	if !ok {
		return nil
	}
	return &n
}

// part is a figure that can be a cause, with what it is.
type part struct {
	figure figure
	what   string
}

// balance lists the parts of the memory.
var balance = []part{
	{figAllocated, "live in the framework's pool"},
	{figPrivate, "of it live in private pools (CUDA graphs)"},
	{figCached, "cached in the framework's pool: reserved and not live"},
	{figOutside, "outside the framework's pool: context, other libraries, other processes"},
	{figFree, "free on the device"},
	{figParameters, "parameters of the program"},
	{figOutputs, "outputs of the program"},
	{figTemporaries, "temporary buffers of the program"},
	{figCacheKV, "key-value cache"},
	{figGraph, "compute graph"},
	{figResident, "held by the program that was ended"},
	{figMissing, "missing for the plan"},
}

// lead is the part that a verdict is about.
var lead = map[Verdict]figure{
	Capacity: figAllocated, Leak: figAllocated, Limit: figAllocated,
	Fragmentation: figCached, Tight: figCached, Platform: figFree,
	OutsidePool: figOutside, OtherProcess: figOutside,
}

// causes lists what the memory is: the part that the verdict is about, the
// others by size, then the other processes that the message names.
func (m *message) causes(v Verdict) []Cause {
	causes := []Cause{}
	if v == OversizeRequest || v == Corrupt {
		causes = append(causes, Cause{"the request", m.figures[figRequest], m.device})
	}
	rank := func(p part) uint64 {
		if p.figure == lead[v] {
			return math.MaxUint64
		}
		return m.figures[p.figure]
	}
	parts := slices.Clone(balance)
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(rank(b), rank(a)) })
	for _, p := range parts {
		if n := m.figures[p.figure]; n > 0 {
			causes = append(causes, Cause{p.what, n, m.device})
		}
	}
	return append(causes, m.otherProcesses()...)
}

// otherProcesses are those of the message that are not this one: all of them
// where it speaks of this process apart, otherwise those that hold less than
// this process reserved.
func (m *message) otherProcesses() []Cause {
	var causes []Cause
	for _, p := range m.others {
		if m.figures.has(figInUse) || p.bytes < m.figures[figHeld] {
			causes = append(causes, Cause{"held by another process", p.bytes, "process " + p.pid})
		}
	}
	return causes
}
