package inspect

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/trace"
)

// drawn is what a picture shows: by the title of an area or line, the bytes of
// its upper edge after each moment, and all of its texts.
type drawn struct {
	edges map[string][]uint64
	times []uint64
	text  string
}

var edge = regexp.MustCompile(`[HV]\d+`)

// draw writes a picture and reads it with a parser of XML.
func draw(t *testing.T, s *trace.Snapshot) drawn {
	t.Helper()
	var b bytes.Buffer
	if err := WriteSVG(&b, s, 0); err != nil {
		t.Fatal(err)
	}
	d := drawn{edges: map[string][]uint64{}}
	parser := xml.NewDecoder(&b)
	class, path := "", ""
	for {
		token, err := parser.Token()
		if errors.Is(err, io.EOF) {
			return d
		}
		if err != nil {
			t.Fatal(err)
		}
		switch x := token.(type) {
		case xml.StartElement:
			for _, a := range x.Attr {
				switch {
				case x.Name.Local == "path" && a.Name.Local == "class":
					class = a.Value
				case x.Name.Local == "path" && a.Name.Local == "d":
					path = a.Value
				}
			}
		case xml.CharData:
			d.text += string(x) + "\n"
			if title := string(x); class == "area" || class == "reserved" && title == "reserved" {
				d.edge(title, path)
				class = ""
			}
		}
	}
}

// edge reads M0 U0 H t1 V U1 H t2 V U2 … H end.
func (d *drawn) edge(title, path string) {
	var values, times []uint64
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "M0 "), "H")
	n, _ := strconv.ParseUint(first, 10, 64)
	values, times = append(values, n), append(times, 0)
	for _, step := range edge.FindAllString(path, -1) {
		n, _ := strconv.ParseUint(step[1:], 10, 64)
		if step[0] == 'V' {
			values = append(values, n)
		} else {
			times = append(times, n)
		}
	}
	if i := len(values) / 2; title != "reserved" { // the way back has as many
		values, times = values[:i], times[:i]
		d.times = times
	}
	d.edges[title] = values
}

// liveBy adds up by purpose or site what is live at a moment, block by block.
func liveBy(h *History, n int, key func(*Lease) string) map[string]uint64 {
	sum := map[string]uint64{}
	for _, l := range h.liveLeases(n) {
		sum[key(l)] += max(l.Block, h.Conf.Round(l.Size))
	}
	return sum
}

// expectAreas compares what was drawn with the blocks of every sampled moment.
func expectAreas(t *testing.T, s *trace.Snapshot, key func(*Lease) string) {
	t.Helper()
	h, d := NewHistory(s, 0), draw(t, s)
	a, curves := h.Areas(svgSamples), h.curves()
	if !slices.Contains(a.Moments, h.Peak()) || a.Moments[0] != 0 || a.Moments[len(a.Moments)-1] != h.Len() || len(a.Parts) == 0 {
		t.Fatalf("samples at %v, peak %d, parts %v", a.Moments, h.Peak(), a.Parts)
	}
	for i, n := range a.Moments {
		want := liveBy(h, n, key)
		var below, named uint64
		for k, part := range a.Parts {
			got := d.edges[part][i] - below
			below = d.edges[part][i]
			if w := want[part]; part != "all others" && got != w || got != a.Bytes[k][i] {
				t.Fatalf("moment %d: %s is drawn with %d bytes, %d are live", n, part, got, w)
			}
			named += want[part]
		}
		if below != curves.live[n] || named > below {
			t.Fatalf("moment %d: %d bytes are drawn, %d are live", n, below, curves.live[n])
		}
		if got := d.edges["reserved"][i]; got != curves.reserved[n] {
			t.Fatalf("moment %d: %d reserved bytes are drawn, want %d", n, got, curves.reserved[n])
		}
	}
}

func TestSVGByCallSite(t *testing.T) {
	s := newSites()
	byStack := func(l *Lease) string { return s.site(l.Stack).String() }
	expectAreas(t, load(t, "leak_cache.pickle.gz"), byStack)
	expectAreas(t, train(3, func(int) uint64 { return 1 << 20 }).snapshot(), byStack)
}

// withPurposes is a record of ours.
func withPurposes() *trace.Snapshot {
	s := sound().snapshot()
	var all trace.Trace
	for i, e := range s.Traces[0].All() {
		if e.Action == trace.Alloc {
			e.Purpose = trace.Purpose(1 + i%6)
		}
		all.Append(e)
	}
	s.Traces[0] = &all
	return s
}

func TestSVGByPurpose(t *testing.T) {
	s := withPurposes()
	expectAreas(t, s, func(l *Lease) string { return l.Purpose.String() })
	at := func(name string, begin bool, time int64) {
		s.Annotations = append(s.Annotations, trace.Annotation{Name: name, Begin: begin, TimeUS: time})
	}
	at("<step> & more", true, 1)
	at("inner", true, 2)
	at("inner", false, 3)
	at("<step> & more", false, 7)
	at("long after", true, 1<<40)
	at("long after", false, 1<<41)
	got := draw(t, s).text
	for _, want := range []string{"Memory of device 0 by purpose", "<step> & more", "inner", "reserved", "time since the first event", "KiB"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in the texts\n%s", want, got)
		}
	}
	if strings.Contains(got, "long after") {
		t.Error("an annotation outside the record is drawn")
	}
}

// TestAreasSample: of many moments, each span of time is drawn by its highest.
func TestAreasSample(t *testing.T) {
	h := NewHistory(load(t, "leak_cache.pickle.gz"), 0)
	all, live := h.Areas(h.Len()+1), h.curves().live
	if len(all.Moments) != h.Len()+1 {
		t.Fatalf("%d of %d moments", len(all.Moments), h.Len()+1)
	}
	a := h.Areas(50)
	if len(a.Moments) > 54 || !slices.IsSorted(a.Time) {
		t.Fatalf("moments %v", a.Moments)
	}
	width := float64(a.Time[len(a.Time)-1]-a.Time[0]) / 50
	for n, bytes := range live {
		best := uint64(0)
		for i, m := range a.Moments {
			if d := float64(a.Time[i] - all.Time[n]); d <= width && d >= -width {
				best = max(best, live[m])
			}
		}
		if best < bytes {
			t.Fatalf("moment %d with %d bytes is higher than all that is drawn near it", n, bytes)
		}
	}
}

func TestSVGOfNothing(t *testing.T) {
	if err := WriteSVG(io.Discard, &trace.Snapshot{}, 3); err == nil {
		t.Error("a device that is not there was drawn")
	}
	s := &trace.Snapshot{Segments: []trace.Segment{{Size: 2 << 20, Blocks: []trace.Block{{Size: 2 << 20, State: trace.Free}}}}}
	if got := draw(t, s).edges["reserved"]; !slices.Equal(got, []uint64{2 << 20}) {
		t.Errorf("reserved %v", got)
	}
}

// FuzzSVG: the picture of any record is well-formed, whatever its names.
func FuzzSVG(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 250, 1, 1, 0, 0, 1, 2, 3, 250, 2, 1, 0}, "<a>\x00&\"'\xff", int64(-1<<63))
	f.Add([]byte{}, "", int64(0))
	f.Fuzz(func(t *testing.T, data []byte, name string, time int64) {
		s := arbitrary(append([]byte{0, 1, 1, 1}, data...))
		for i, at := range []int64{time, time / 2, 1 << 62} {
			s.Annotations = append(s.Annotations, trace.Annotation{Name: fmt.Sprint(name, i/2), Begin: i < 2, TimeUS: at})
		}
		if len(s.Traces) > 0 && s.Traces[0] != nil {
			s.Traces[0].Append(trace.Entry{Event: trace.Event{Action: trace.Alloc, Size: 1, TimeUS: time}, Stack: trace.NewStack([]trace.Frame{{File: name + ".py", Func: name}})})
		}
		draw(t, s)
	})
}
