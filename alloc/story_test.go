package alloc

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/device/devicetest"
	"github.com/headroom-go/headroom/internal/size"
	stories "github.com/headroom-go/headroom/internal/story"
	"github.com/headroom-go/headroom/trace"
)

var update = flag.Bool("update", false, "rewrite the expected output in testdata")

// TestStories plays the files in testdata. Their commands:
//
//	open alias|virtual|plain capacity=SIZE [page=SIZE] [limit=SIZE]
//	alloc NAME SIZE [stream=N] [purpose=NAME]
//	free NAME            use NAME stream=N
//	work NAME [stream=N]  queue work on a block
//	pass stream=N [n=K]  let the stream do all it can, or K pieces of work
//	trim                 close
//	map                  the blocks of every segment, in order of address, and
//	                     every view with the parts of segments that it shows
//	stats                the figures that are not zero
//	events               what the sink was told since the last time
func TestStories(t *testing.T) {
	play := func(t *testing.T) stories.Command { return (&story{t: t}).command }
	stories.Play(t, "testdata/*.txt", *update, play)
}

// story is a program that talks to an allocator.
type story struct {
	t      *testing.T
	dev    *lagging
	a      *Allocator
	blocks map[string]*Block
	calls  *devicetest.Failing // counts driver calls, of which none fails
	events *trace.Recorder
}

// args splits words such as stream=1 from the others.
func args(words []string) (plain []string, named map[string]string) {
	named = map[string]string{}
	for _, w := range words {
		if key, value, ok := strings.Cut(w, "="); ok {
			named[key] = value
		} else {
			plain = append(plain, w)
		}
	}
	return plain, named
}

func (s *story) size(text string) uint64 {
	if text == "" {
		return 0
	}
	n, err := size.Parse(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// stream gives stream N, opening those up to it.
func (s *story) stream(number string) *lagStream {
	n, _ := strconv.Atoi(number)
	for len(s.dev.streams) <= n {
		if _, err := s.dev.NewStream(); err != nil {
			s.t.Fatal(err)
		}
	}
	return s.dev.streams[n]
}

func (s *story) command(out *strings.Builder, words []string) {
	plain, named := args(words)
	switch plain[0] {
	case "open":
		s.open(plain[1], named)
	case "alloc":
		s.alloc(out, plain[1], s.size(plain[2]), named)
	case "free":
		s.blocks[plain[1]].Free()
	case "use":
		s.blocks[plain[1]].Use(s.stream(named["stream"]))
	case "work":
		b := s.blocks[plain[1]]
		s.dev.share(s.stream(named["stream"]), b.addr, b.end())
	case "pass":
		n, err := strconv.Atoi(named["n"])
		if err != nil {
			n = 1 << 30
		}
		s.stream(named["stream"]).advance(n)
	case "trim":
		freed, err := s.a.Trim(0)
		fmt.Fprintf(out, "%s given back%s\n", size.Format(freed), ending(err))
	case "map":
		s.draw(out)
	case "stats":
		for _, row := range s.a.Stats().Table() {
			if row.Value > 0 {
				fmt.Fprintf(out, "%s %d\n", row.Name, row.Value)
			}
		}
	case "events":
		for _, e := range s.events.Trace().All() {
			what := e.Action.String()
			if e.Note != "" {
				what = "note " + e.Note
			}
			fmt.Fprintf(out, "%s %s %s stream=%d\n", what, e.Purpose, size.Format(e.Size), e.Stream)
		}
		s.events.Reset()
	case "close":
		fmt.Fprintf(out, "closed%s\n", ending(errors.Join(s.a.Close(), s.dev.Close())))
	default:
		s.t.Fatalf("unknown command %q", words)
	}
	s.check()
}

func ending(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

func (s *story) check() {
	s.t.Helper()
	if err := errors.Join(s.a.Check(), s.dev.err); err != nil {
		s.t.Fatal(err)
	}
}

func (s *story) open(kind string, named map[string]string) {
	s.dev = newLagging(s.t, device.NullOptions{Capacity: s.size(named["capacity"]), Virtual: kind != "plain", Alias: kind == "alias", Granularity: s.size(named["page"])})
	s.calls = devicetest.Fail(s.dev, devicetest.Any, 0, nil)
	s.events = trace.NewRecorder(0)
	s.blocks = map[string]*Block{}
	var err error
	if s.a, err = New(s.calls, Options{Limit: s.size(named["limit"]), Sink: s.events}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *story) alloc(out *strings.Builder, name string, n uint64, named map[string]string) {
	purpose := trace.Other
	for p := range trace.Purpose(trace.NumPurposes) {
		if p.String() == named["purpose"] {
			purpose = p
		}
	}
	stream := s.stream(named["stream"])
	place, calls := stream.place, s.calls.Calls(devicetest.Any)
	b, err := s.a.Alloc(n, purpose, stream)
	if err != nil {
		fmt.Fprintf(out, "%s: %v\n", name, err)
		return
	}
	maps.DeleteFunc(s.blocks, func(_ string, old *Block) bool { return old == b })
	s.blocks[name] = b
	fmt.Fprintf(out, "%s at %s", name, s.address(b))
	if stream.place > place {
		fmt.Fprintf(out, ", after %d waits", stream.place-place)
	}
	if calls = s.calls.Calls(devicetest.Any) - calls; b.view != nil && calls == 0 {
		fmt.Fprint(out, ", without a driver call")
	}
	fmt.Fprintln(out)
	s.dev.touch(stream, b.addr, b.end())
}

// address is the number of the segment or the view and the offset in it.
func (s *story) address(b *Block) string {
	if b.view != nil {
		return fmt.Sprintf("view %d:%s", slices.Index(s.views(), b.view), size.Exact(b.addr-b.view.base))
	}
	return fmt.Sprintf("%d:%s", slices.Index(s.a.segments, b.seg), size.Exact(b.addr-b.seg.base))
}

// views lists the views in the order of their addresses, as they were made.
func (s *story) views() []*view {
	return slices.SortedFunc(s.a.views.all, func(x, y *view) int { return cmp.Compare(x.base, y.base) })
}

// draw writes a line for each segment: names or states, and sizes; and one for
// each view: its block, and where the parts are at home.
func (s *story) draw(out *strings.Builder) {
	names := map[*Block]string{}
	for name, b := range s.blocks {
		names[b] = name
	}
	lent := map[*Block]string{}
	for _, w := range s.views() {
		for _, b := range w.lent {
			lent[b] = " to " + names[&w.block]
		}
	}
	for i, seg := range s.a.segments {
		kind := "large"
		if seg.pool.small {
			kind = "small"
		}
		fmt.Fprintf(out, "%d %s", i, kind)
		for b := seg.first; b != nil; b = b.next {
			fmt.Fprintf(out, " [%s%s %s]", inWords(b, names), lent[b], size.Exact(b.size))
		}
		fmt.Fprintln(out)
	}
	for i, w := range s.views() {
		what := "idle"
		if w.block.state != free {
			what = inWords(&w.block, names)
		}
		fmt.Fprintf(out, "view %d [%s %s]:", i, what, size.Exact(w.block.size))
		for _, p := range w.pieces() {
			fmt.Fprintf(out, " %s at %d:%s", size.Exact(p.size()), slices.Index(s.a.segments, p.seg), size.Exact(p.from-p.seg.base))
		}
		fmt.Fprintln(out)
	}
}

// inWords is the name of a block in use, and the state of others.
func inWords(b *Block, names map[*Block]string) string {
	switch b.state {
	case live:
		return names[b]
	case pending:
		return names[b] + " pending"
	}
	return b.state.String()
}
