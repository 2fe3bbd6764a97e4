package inspect

import (
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/internal/story"
	"github.com/headroom-go/headroom/trace"
)

var updateStories = flag.Bool("update", false, "rewrite the expected output in testdata")

// TestModelStories plays the files in testdata/model. Their commands:
//
//	conf [TEXT] [capacity=SIZE]    a new model
//	alloc NAME SIZE [stream=N] [pool=N]
//	free NAME...                   the memory may be used again at once
//	pend NAME...                   … only when it is done:
//	done NAME...
//	empty                          what empty_cache does
//	map                            the blocks of every segment, as they were made
//	changes                        what was taken and given back since the last time
//	stats                          the figures
//
// Sizes are in bytes or with a unit. Sizes of blocks are printed exactly.
func TestModelStories(t *testing.T) {
	story.Play(t, "testdata/model/*.txt", *updateStories, func(t *testing.T) story.Command {
		s := &modelStory{t: t}
		return func(out *strings.Builder, words []string) {
			s.out = out
			s.command(words)
			if err := checkModel(s.m); err != nil {
				t.Fatalf("after %q: %v", words, err)
			}
		}
	})
}

// modelStory is a program that talks to a model.
type modelStory struct {
	t        *testing.T
	m        *model
	out      *strings.Builder
	blocks   map[string]*block
	segments []*segment // all there ever were
	changes  []change
}

func (s *modelStory) command(words []string) {
	var names []string
	options := map[string]string{}
	for _, w := range words[1:] {
		if key, value, ok := strings.Cut(w, "="); ok {
			options[key] = value
		} else {
			names = append(names, w)
		}
	}
	switch words[0] {
	case "conf":
		s.conf(strings.Join(names, ""), options["capacity"])
	case "alloc":
		s.alloc(names[0], s.size(names[1]), options)
	case "free", "pend", "done":
		for _, name := range names {
			s.free(words[0], name)
		}
	case "empty":
		s.m.releaseCached()
	case "map":
		s.draw()
	case "changes":
		for _, c := range s.changes {
			fmt.Fprintf(s.out, "%v %s\n", c.action, size.Exact(c.size))
		}
		s.changes = nil
	case "stats":
		f := s.m.figures
		fmt.Fprintf(s.out, "live %s, pending %s, requested %s, reserved %s, peaks %s, %s, %s, retries %d\n", size.Exact(f.live), size.Exact(f.pending),
			size.Exact(f.requested), size.Exact(f.reserved), size.Exact(f.peakLive), size.Exact(f.peakRequested), size.Exact(f.peakReserved), f.retries)
	default:
		s.t.Fatalf("unknown command %q", words)
	}
}

func (s *modelStory) size(text string) uint64 {
	if text == "" {
		return 0
	}
	n, err := size.Parse(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *modelStory) conf(text, capacity string) {
	c, err := ParseConf(text)
	if err != nil {
		s.t.Fatal(err)
	}
	s.m = newModel(c, s.size(capacity), newDriver())
	s.m.onChange = func(c change) { s.changes = append(s.changes, c) }
	s.blocks, s.segments, s.changes = map[string]*block{}, nil, nil
}

func (s *modelStory) alloc(name string, bytes uint64, options map[string]string) {
	stream, _ := strconv.Atoi(options["stream"])
	id, _ := strconv.ParseUint(options["pool"], 10, 64)
	b := s.m.malloc(bytes, stream, trace.PoolID{0, id})
	s.know()
	if b == nil {
		fmt.Fprintf(s.out, "%s: out of memory\n", name)
		return
	}
	s.blocks[name] = b
	fmt.Fprintf(s.out, "%s: %s at %d:%s\n", name, size.Exact(b.size), slices.Index(s.segments, b.seg), size.Exact(b.addr-b.seg.addr))
}

// know gives new segments their numbers.
func (s *modelStory) know() {
	for _, seg := range s.m.segments {
		if !slices.Contains(s.segments, seg) {
			s.segments = append(s.segments, seg)
		}
	}
}

func (s *modelStory) free(command, name string) {
	b := s.blocks[name]
	if command != "done" {
		s.m.free(b)
	}
	if command != "pend" {
		s.m.complete(b)
		delete(s.blocks, name)
	}
}

// draw writes a line for each segment: names or states, and sizes.
func (s *modelStory) draw() {
	names := map[*block]string{}
	for name, b := range s.blocks {
		names[b] = name
	}
	for i, seg := range s.segments {
		if !slices.Contains(s.m.segments, seg) {
			continue
		}
		kind := "large"
		if seg.pool.small {
			kind = "small"
		}
		fmt.Fprintf(s.out, "%d %s", i, kind)
		for b := seg.first; b != nil; b = b.next {
			what := map[blockState]string{isFree: "free", isUnmapped: "unmapped", isLive: names[b], isPending: names[b] + " pending"}[b.state]
			if b.state == isUnmapped {
				fmt.Fprintf(s.out, " [unmapped]")
			} else {
				fmt.Fprintf(s.out, " [%s %s]", what, size.Exact(b.size))
			}
		}
		fmt.Fprintln(s.out)
	}
}
