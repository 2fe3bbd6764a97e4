package inspect

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/trace"
)

// Condition is a limit on how much a figure may grow from one record to
// another.
type Condition struct {
	metric  string
	percent float64 // of the old figure, or
	bytes   uint64
	inBytes bool
}

// The metrics of conditions besides the purposes.
const (
	metricPeak     = "peak"
	metricReserved = "reserved"
)

// ParseCondition reads a condition such as "peak>5%", "reserved > 1GiB" or
// "gradient>10%": a metric (peak, reserved, or the name of a purpose), and by
// how much more than before it may not be.
func ParseCondition(text string) (Condition, error) {
	metric, limit, ok := strings.Cut(text, ">")
	c := Condition{metric: strings.TrimSpace(metric)}
	if limit = strings.TrimSpace(limit); !ok || limit == "" {
		return c, fmt.Errorf("condition %q is not of the form peak>5%% or reserved>1GiB", text)
	}
	if !c.known() {
		return c, fmt.Errorf("condition %q is about %q: the metrics are %s", text, c.metric, strings.Join(metrics(), ", "))
	}
	number, isPercent := strings.CutSuffix(limit, "%")
	if !isPercent {
		bytes, err := size.Parse(limit)
		c.bytes, c.inBytes = bytes, true
		switch last := limit[len(limit)-1]; {
		case err != nil:
			err = fmt.Errorf("condition %q: %w", text, err)
		case bytes > 0 && last >= '0' && last <= '9':
			err = fmt.Errorf("condition %q has no unit: write %s>%s%% for a share, or a size such as %s>%sMiB", text, metric, limit, metric, limit)
		}
		return c, err
	}
	percent, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if c.percent = percent; err != nil || math.IsNaN(percent) || math.IsInf(percent, 0) || percent < 0 {
		return c, fmt.Errorf("condition %q: %q is no share such as 5%%", text, limit)
	}
	return c, nil
}

// metrics lists what conditions may be about.
func metrics() []string {
	out := []string{metricPeak, metricReserved}
	for p := range trace.Purpose(trace.NumPurposes) {
		out = append(out, p.String())
	}
	return out
}

func (c Condition) known() bool {
	for _, m := range metrics() {
		if m == c.metric {
			return true
		}
	}
	return false
}

// String gives the condition as ParseCondition reads it.
func (c Condition) String() string {
	if c.inBytes {
		text := size.Exact(c.bytes)
		if !strings.HasSuffix(text, "B") {
			text += "B"
		}
		return c.metric + ">" + text
	}
	return c.metric + ">" + strconv.FormatFloat(c.percent, 'f', -1, 64) + "%"
}

// Holds says whether the figure has grown by more than the condition's limit,
// and from what to what. A figure that was 0 has grown by more than any share.
func (c Condition) Holds(d *Difference) (grown bool, before, after uint64) {
	before, after = c.figures(d)
	switch {
	case after <= before:
		return false, before, after
	case c.inBytes:
		return after-before > c.bytes, before, after
	}
	return float64(after-before)*100 > c.percent*float64(before), before, after
}

func (c Condition) figures(d *Difference) (before, after uint64) {
	switch c.metric {
	case metricPeak:
		return d.Old.PeakBytes, d.New.PeakBytes
	case metricReserved:
		return d.Old.ReservedBytes, d.New.ReservedBytes
	}
	for _, p := range d.Purposes {
		if p.What == c.metric {
			return p.OldBytes, p.NewBytes
		}
	}
	return 0, 0
}
