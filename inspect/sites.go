package inspect

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/headroom-go/headroom/trace"
)

// Site is a place in a program's text that allocates.
type Site struct {
	// At is the innermost line that is not of the framework, as in
	// "modeling_bert.py:975 forward".
	At string `json:"at"`
	// From is the innermost line of the program itself (not of an installed
	// package) where that is another, as in "finetune.py:32 <module>".
	From string `json:"from,omitempty"`
}

// String gives both lines.
func (s Site) String() string {
	if s.From == "" {
		return s.At
	}
	return s.At + " (called from " + s.From + ")"
}

// unknownSite is where no stack was recorded.
const unknownSite = "no stack recorded"

// sites gives the site of each stack, each found once.
type sites struct{ of map[*trace.Stack]Site }

func newSites() *sites { return &sites{map[*trace.Stack]Site{}} }

func (s *sites) site(stack *trace.Stack) Site {
	if found, ok := s.of[stack]; ok {
		return found
	}
	found := siteOf(stack.Frames())
	s.of[stack] = found
	return found
}

func siteOf(frames []trace.Frame) Site {
	inner := slices.IndexFunc(frames, func(f trace.Frame) bool { return !ofFramework(f) })
	own := slices.IndexFunc(frames, func(f trace.Frame) bool { return !ofFramework(f) && !ofPackage(f) })
	switch {
	case len(frames) == 0:
		return Site{At: unknownSite}
	case inner < 0 && slices.ContainsFunc(frames, inEngine):
		return Site{At: "backward, in the autograd engine's own thread"}
	case inner < 0:
		return Site{At: "native code"}
	case own < 0 || own == inner:
		return Site{At: line(frames[inner])}
	}
	return Site{At: line(frames[inner]), From: line(frames[own])}
}

func line(f trace.Frame) string {
	return fmt.Sprintf("%s:%d %s", path.Base(strings.ReplaceAll(f.File, `\`, "/")), f.Line, f.Func)
}

// ofFramework says whether a line is of the machinery that every allocation
// goes through: native code, PyTorch, Headroom's own tensors. What is neither
// Python nor Go is native.
func ofFramework(f trace.Frame) bool {
	readable := strings.HasSuffix(f.File, ".py") || strings.HasSuffix(f.File, ".go")
	return !readable || hasFolder(f.File, "torch") || strings.HasPrefix(f.Func, "github.com/headroom-go/headroom/tensor.")
}

// inEngine says whether a native line is of the engine that runs backward.
func inEngine(f trace.Frame) bool { return strings.Contains(f.Func, "autograd::Engine") }

// ofPackage says whether a line is of an installed package or of the language
// itself.
func ofPackage(f trace.Frame) bool {
	return hasFolder(f.File, "site-packages") || hasFolder(f.File, "dist-packages") || strings.Contains(f.File, "/lib/python3")
}

func hasFolder(file, folder string) bool {
	return strings.Contains(strings.ReplaceAll(file, `\`, "/"), "/"+folder+"/")
}

// Share is a part of some memory: what holds it, and how much.
type Share struct {
	What  string `json:"what"`
	Bytes uint64 `json:"bytes"`
	Count int    `json:"count"`
}

// shares adds up blocks by a key, the largest first; of equal ones the first
// by name.
func shares(blocks []*Lease, key func(*Lease) string) []Share {
	sum := map[string]Share{}
	for _, l := range blocks {
		k := key(l)
		s := sum[k]
		sum[k] = Share{k, s.Bytes + l.Size, s.Count + 1}
	}
	return slices.SortedFunc(maps.Values(sum), func(a, b Share) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.What, b.What))
	})
}
