package plan

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/remat"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/train"
)

// Curve gives the fastest strategies with micro-batches of the given size for
// budgets from the plain step's down to the least that is found: time against
// memory, the one with the most memory first. They are the best of so many for
// each of what may be outside the device, and each is measured on a null device
// without a limit.
func Curve(ctx context.Context, info device.Info, c train.Config, micro, points int, o Options) ([]Trial, error) {
	var all []Trial
	k := task{o, info, c}
	for _, s := range k.outside(micro) {
		trials, err := k.curve(ctx, s, points)
		if err != nil {
			return nil, err
		}
		all = append(all, trials...)
	}
	return frontier(all), nil
}

// curve gives the strategies that are s with logits in parts and values made again or
// moved away, s itself first.
func (k task) curve(ctx context.Context, s train.Strategy, points int) ([]Trial, error) {
	plain, err := k.free(s)
	if err != nil || !k.room(plain) {
		return nil, err
	}
	k.info.Capacity = plain.ReservedBytes // of which any that is given helps
	inParts, err := k.inParts(plain)
	if err != nil {
		return nil, err
	}
	s = inParts.Strategy
	prog, err := k.record(inParts)
	if err != nil {
		return nil, err
	}
	budgets := make([]int64, points)
	for i := range budgets {
		budgets[i] = prog.PlainPeak() * int64(points-1-i) / int64(points)
	}
	plans, err := remat.Curve(ctx, &prog.Program, budgets, remat.Options{Work: k.Work})
	if err != nil {
		return nil, err
	}
	trials := []Trial{plain, inParts}
	for _, p := range plans {
		if p == nil {
			break
		}
		s.Values = prog.schedule(p)
		t, err := k.free(s)
		if err != nil {
			return nil, err
		}
		if prog.addCopies(&t, p, k.c.Batch/s.MicroBatch); k.room(t) {
			trials = append(trials, t)
		}
	}
	return trials, nil
}

// frontier keeps of trials the first, and those that are faster than all with as
// little memory or less.
func frontier(trials []Trial) []Trial {
	rest := trials[1:]
	slices.SortStableFunc(rest, func(a, b Trial) int {
		return cmp.Or(cmp.Compare(a.PeakBytes, b.PeakBytes), cmp.Compare(a.Seconds, b.Seconds))
	})
	best := math.Inf(1)
	rest = slices.DeleteFunc(rest, func(t Trial) bool {
		slower := t.Seconds >= best || t.PeakBytes >= trials[0].PeakBytes
		best = min(best, t.Seconds)
		return slower
	})
	slices.Reverse(rest)
	return trials[:1+len(rest)]
}

// Sizes of the picture of a curve, in its own units.
const (
	width, height = 720, 420
	left, top     = 70, 20
	right, bottom = 20, 50
)

// WriteCurve draws the points of a Curve as SVG: memory to the right, time
// upwards, from 0 on.
func WriteCurve(w io.Writer, points []Trial) error {
	if len(points) == 0 {
		return fmt.Errorf("a curve of no points")
	}
	most, slowest := points[0].PeakBytes, 0.0
	for _, t := range points {
		most, slowest = max(most, t.PeakBytes), max(slowest, t.Seconds)
	}
	x := func(bytes uint64) float64 {
		return left + float64(bytes)/float64(max(most, 1))*(width-left-right)
	}
	y := func(seconds float64) float64 {
		return height - bottom - seconds/max(slowest, 1e-12)*(height-top-bottom)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img"><title>Time of a step against its memory</title>`+"\n", width, height)
	b.WriteString(`<style>text{font:12px sans-serif;fill:#222}path,line{stroke:#0072b2;fill:none;stroke-width:2}line{stroke:#999;stroke-width:1}circle{fill:#0072b2}svg{background:#fff}` +
		`@media(prefers-color-scheme:dark){svg{background:#111}text{fill:#ddd}path{stroke:#56b4e9}circle{fill:#56b4e9}}</style>` + "\n")
	for i := range 5 {
		part := float64(i) / 4
		bytes, seconds := uint64(part*float64(most)), part*slowest
		fmt.Fprintf(&b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f"/><text x="%d" y="%.1f" text-anchor="end">%.3g s</text>`+"\n", left, width-right, y(seconds), y(seconds), left-6, y(seconds)+4, seconds)
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", x(bytes), height-bottom+18, size.Format(bytes))
	}
	path := make([]string, len(points))
	for i, t := range points {
		path[i] = fmt.Sprintf("%.1f %.1f", x(t.PeakBytes), y(t.Seconds))
	}
	fmt.Fprintf(&b, `<path d="M%s"/>`+"\n", strings.Join(path, "L"))
	for i, t := range points {
		fmt.Fprintf(&b, `<circle cx="%s" cy="%s" r="4"><title>%s, %.4g s: %s</title></circle>`+"\n", strings.Fields(path[i])[0], strings.Fields(path[i])[1], size.Format(t.PeakBytes), t.Seconds, t.Description)
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">peak of live memory</text></svg>`+"\n", (left+width-right)/2, height-10)
	_, err := io.WriteString(w, b.String())
	return err
}
