package inspect

import (
	"bufio"
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/trace"
)

// The picture, in pixels. What is drawn inside the plot has the figures
// themselves as coordinates, milliseconds to the right and KiB upwards (bytes
// would be more than browsers draw): a transform brings them to pixels.
const (
	svgWidth, svgHeight = 1000, 480
	plotLeft, plotRight = 84, 720
	plotBottom          = 430
	laneTop, laneHeight = 40, 16
	svgSamples          = plotRight - plotLeft
	maxLanes, maxNotes  = 4, 300
	letterWidth         = 6.2 // of the labels, about
)

// palette is Okabe and Ito's, which people with any kind of colour vision can
// tell apart, in the order of purposeOrder.
var palette = []string{"#0072b2", "#56b4e9", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#999999", "#f0e442"}

const svgStyle = `<style>
.headroom-memory{--ink:#1a1a1a;--paper:#ffffff;--grid:#d0d0d0;--note:#e8e8e8;background:var(--paper);font:12px system-ui,sans-serif}
@media (prefers-color-scheme:dark){.headroom-memory{--ink:#ececec;--paper:#161616;--grid:#404040;--note:#333333}}
.headroom-memory text{fill:var(--ink)}
.headroom-memory .area{stroke:var(--paper);stroke-width:.4;vector-effect:non-scaling-stroke}
.headroom-memory .reserved{fill:none;stroke:var(--ink);stroke-width:1.5;stroke-dasharray:5 3;vector-effect:non-scaling-stroke}
.headroom-memory .grid{stroke:var(--grid);stroke-width:1}
.headroom-memory .peak{stroke:var(--ink);stroke-width:1}
.headroom-memory .note{fill:var(--note);stroke:var(--grid)}
.headroom-memory .end{text-anchor:end}
.headroom-memory .middle{text-anchor:middle}
</style>
`

// WriteSVG draws the live memory of a device over time as a picture that needs
// nothing else: areas by purpose or, for records without purposes, by call
// site, what is reserved as a dashed line, and the spans that the program
// annotated above. The error is w's, or says that the snapshot has no such
// device.
func WriteSVG(w io.Writer, s *trace.Snapshot, device int) error {
	if err := knows(s, device); err != nil {
		return err
	}
	h := NewHistory(s, device)
	p := newPicture(w, h)
	p.head()
	p.notes()
	p.axes()
	p.areas()
	p.legend()
	p.put("</svg>\n")
	return p.w.Flush()
}

// picture is an SVG that is being written; the writer keeps the first error to
// the end.
type picture struct {
	*Areas
	w      *bufio.Writer
	h      *History
	lanes  [][]note // annotations by how many others they lie in
	from   int64
	span   float64 // of the time axis
	most   uint64  // the highest figure
	height float64 // bytes that the plot has room for
	top    float64 // of the plot
	colour []string
}

func newPicture(w io.Writer, h *History) *picture {
	p := &picture{Areas: h.Areas(svgSamples), w: bufio.NewWriter(w), h: h}
	p.from = p.Time[0]
	p.span = max(float64(p.Time[len(p.Time)-1])-float64(p.from), 1)
	p.most = max(slices.Max(p.Reserved), p.live(p.Peak), 1)
	p.height = 1.1 * float64(p.most)
	p.lanes = lanesOf(h.notes(), p.from, p.Time[len(p.Time)-1], maxNotes, maxLanes)
	p.top = float64(laneTop + len(p.lanes)*laneHeight + 8)
	for i, name := range p.Parts {
		if p.By == "purpose" {
			i = slices.IndexFunc(purposeOrder, func(x trace.Purpose) bool { return x.String() == name })
		}
		p.colour = append(p.colour, palette[i])
	}
	return p
}

// lanesOf gives the longest annotations within a time, by depth: at most so
// many, as deep as there are lanes.
func lanesOf(notes []note, from, to int64, most, deepest int) [][]note {
	notes = slices.DeleteFunc(slices.Clone(notes), func(n note) bool { return n.to < from || n.from > to })
	if len(notes) > most {
		slices.SortStableFunc(notes, func(a, b note) int { return cmp.Compare(b.to-b.from, a.to-a.from) })
		notes = notes[:most]
		slices.SortStableFunc(notes, func(a, b note) int {
			return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(b.to, a.to))
		})
	}
	var lanes [][]note
	for _, n := range notes {
		depth := slices.IndexFunc(lanes, func(l []note) bool { return l[len(l)-1].to <= n.from })
		if depth < 0 {
			if depth = len(lanes); depth == deepest {
				continue
			}
			lanes = append(lanes, nil)
		}
		lanes[depth] = append(lanes[depth], n)
	}
	return lanes
}

// live is the live bytes of a sample.
func (p *picture) live(i int) (sum uint64) {
	for _, b := range p.Bytes {
		sum += b[i]
	}
	return sum
}

func (p *picture) put(format string, args ...any) { fmt.Fprintf(p.w, format, args...) }

// plainText is s as the text of an element.
func plainText(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder takes everything
	return b.String()
}

// x and y are the pixels of a time and of a number of bytes.
func (p *picture) x(time int64) float64 {
	t := min(max(float64(time)-float64(p.from), 0), p.span)
	return plotLeft + t/p.span*(plotRight-plotLeft)
}

func (p *picture) y(bytes uint64) float64 {
	return plotBottom - float64(bytes)/p.height*(plotBottom-p.top)
}

func (p *picture) head() {
	title := fmt.Sprintf("Memory of device %d by %s", p.h.device, p.By)
	var at []string
	for k, name := range p.Parts {
		if b := p.Bytes[k][p.Peak]; b > 0 {
			at = append(at, name+" "+size.Format(b))
		}
	}
	id := fmt.Sprintf("headroom-memory-%d", p.h.device)
	p.put(`<svg xmlns="http://www.w3.org/2000/svg" class="headroom-memory" viewBox="0 0 %d %d" role="img" aria-labelledby="%s-title %[3]s-desc">`+"\n", svgWidth, svgHeight, id)
	p.put("<title id=\"%s-title\">%s</title>\n", id, plainText(title))
	p.put("<desc id=\"%s-desc\">%s</desc>\n", id, plainText(fmt.Sprintf("At the peak %s are live and %s reserved. Live then: %s.",
		size.Format(p.live(p.Peak)), size.Format(p.Reserved[p.Peak]), strings.Join(at, ", "))))
	p.put("%s<text x=\"%d\" y=\"22\" font-size=\"15\">%s</text>\n", svgStyle, plotLeft, plainText(title))
}

// notes draws the annotations as bars above the plot, with their names where
// there is room, and the beginnings of the outer ones as lines through it.
func (p *picture) notes() {
	for depth, lane := range p.lanes {
		for _, n := range lane {
			x, y := p.x(n.from), laneTop+depth*laneHeight
			width := p.x(n.to) - x
			p.put("<g><title>%s</title><rect class=\"note\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\"/>", plainText(n.name), x, y, width, laneHeight-2)
			if float64(len(n.name))*letterWidth < width {
				p.put("<text x=\"%.2f\" y=\"%d\" font-size=\"11\">%s</text>", x+3, y+laneHeight-5, plainText(n.name))
			}
			p.put("</g>\n")
			if depth < 2 {
				p.put("<path class=\"grid\" d=\"M%.2f %.2fV%d\"/>\n", x, p.top, plotBottom)
			}
		}
	}
}

// areas draws the plot. Each moment lasts until the next.
func (p *picture) areas() {
	p.put("<g transform=\"translate(%d %d) scale(%g %g)\">\n", plotLeft, plotBottom, 1000*(plotRight-plotLeft)/p.span, -1024*(plotBottom-p.top)/p.height)
	below := make([]uint64, len(p.Moments))
	for k, name := range p.Parts {
		above := make([]uint64, len(below))
		for i := range above {
			above[i] = below[i] + p.Bytes[k][i]
		}
		p.put("<path class=\"area\" fill=\"%s\" d=\"M0 %s%s", p.colour[k], kib(above[0]), p.steps(above))
		for i := len(below) - 1; i >= 0; i-- {
			p.put("V%sH%s", kib(below[i]), p.since(i))
		}
		p.put("Z\"><title>%s</title></path>\n", plainText(name))
		below = above
	}
	p.put("<path class=\"reserved\" d=\"M0 %s%s\"><title>reserved</title></path>\n</g>\n", kib(p.Reserved[0]), p.steps(p.Reserved))
	x := p.x(p.Time[p.Peak])
	p.put("<path class=\"peak\" d=\"M%.2f %.2fV%.2f\"><title>peak</title></path>\n", x, p.y(p.live(p.Peak)), p.top+4)
	class := "start"
	if x > (plotLeft+plotRight)/2 {
		class, x = "end", x-8
	}
	p.put("<text class=\"%s\" x=\"%.2f\" y=\"%.2f\">peak %s</text>\n", class, x+4, p.top+14, size.Format(p.live(p.Peak)))
}

// since is the time of a sample from the first on, also where a damaged record
// spans more than a number with a sign holds.
func (p *picture) since(i int) string {
	return coordinate(float64(uint64(p.Time[i])-uint64(p.from)) / 1000)
}

func kib(bytes uint64) string { return coordinate(float64(bytes) / 1024) }

// coordinate has all digits that matter, and no exponent.
func coordinate(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }

// steps goes from the first moment to the end of the last.
func (p *picture) steps(curve []uint64) string {
	var b strings.Builder
	for i := 1; i < len(curve); i++ {
		fmt.Fprintf(&b, "H%sV%s", p.since(i), kib(curve[i]))
	}
	fmt.Fprintf(&b, "H%s", coordinate(p.span/1000))
	return b.String()
}

// axes draws lines at round sizes and marks round times.
func (p *picture) axes() {
	step := math.Exp2(math.Ceil(math.Log2(float64(p.most) / 8)))
	for i := 0.0; i*step <= float64(p.most); i++ {
		bytes := uint64(i * max(step, 1))
		y := p.y(bytes)
		p.put("<path class=\"grid\" d=\"M%d %.2fH%d\"/><text class=\"end\" x=\"%d\" y=\"%.2f\">%s</text>\n", plotLeft, y, plotRight, plotLeft-6, y+4, size.Format(bytes))
		if step < 1 {
			break
		}
	}
	step = roundStep(p.span / 6)
	for i := 0.0; i*step <= p.span; i++ {
		x := plotLeft + i*step/p.span*(plotRight-plotLeft)
		p.put("<path class=\"grid\" d=\"M%.2f %dv5\"/><text class=\"middle\" x=\"%.2f\" y=\"%d\">%s</text>\n", x, plotBottom, x, plotBottom+18, p.when(i*step))
	}
	label := "time since the first event"
	if !p.Timed {
		label = "events"
	}
	p.put("<text class=\"middle\" x=\"%d\" y=\"%d\">%s</text>\n", (plotLeft+plotRight)/2, plotBottom+38, label)
}

// roundStep is the least of 1, 2, 5, 10, 20 … that is not below n.
func roundStep(n float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(max(n, 1))))
	for _, f := range []float64{1, 2, 5} {
		if f*power >= n {
			return f * power
		}
	}
	return 10 * power
}

// when writes a time in microseconds, or the number of an event.
func (p *picture) when(t float64) string {
	switch {
	case !p.Timed:
		return fmt.Sprintf("%.0f", t)
	case p.span >= 2e6:
		return fmt.Sprintf("%g s", t/1e6)
	case p.span >= 2e3:
		return fmt.Sprintf("%g ms", t/1e3)
	}
	return fmt.Sprintf("%.0f µs", t)
}

// legend lists the parts, the topmost first, with their bytes at the peak.
func (p *picture) legend() {
	const x, letters = plotRight + 16, 36
	y := p.top + 10
	line := func(mark, text string) {
		short := []rune(text)
		if len(short) > letters {
			short = append(short[:letters-1], '…')
		}
		p.put("<g><title>%s</title>%s<text x=\"%d\" y=\"%.2f\">%s</text></g>\n", plainText(text), mark, x+18, y, plainText(string(short)))
		y += 19
	}
	p.put("<text x=\"%d\" y=\"%.2f\">at the peak</text>\n", x, y)
	y += 19
	line(fmt.Sprintf("<path class=\"reserved\" d=\"M%d %.2fh12\"/>", x, y-4), size.Format(p.Reserved[p.Peak])+" reserved")
	for k := len(p.Parts) - 1; k >= 0; k-- {
		line(fmt.Sprintf("<rect x=\"%d\" y=\"%.2f\" width=\"12\" height=\"12\" fill=\"%s\"/>", x, y-10, p.colour[k]), size.Format(p.Bytes[k][p.Peak])+" "+p.Parts[k])
	}
}
