package train_test

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/profile"
	"github.com/headroom-go/headroom/trace"
	"github.com/headroom-go/headroom/train"
)

// TestProfiledRun: a run that is profiled gives the very losses of one that is
// not, under every kind of strategy, and the tables and the picture of a step.
func TestProfiledRun(t *testing.T) {
	c := config()
	for _, s := range []train.Strategy{c.Plain(), {MicroBatch: 2, Recompute: 2}} {
		want := losses(t, newRun(t, c, s))
		r := newRun(t, c, s)
		r.Profile = true
		if got := losses(t, r); !slices.Equal(got, want) {
			t.Errorf("%s: losses %v when profiled, %v otherwise", c.Describe(s), got, want)
		}
		read := func(name string) []byte {
			data, err := os.ReadFile(filepath.Join(r.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			return data
		}
		var p profile.Profile
		if err := json.Unmarshal(read(train.ProfileFile), &p); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"transformer.h.2", "transformer.ln_f"} {
			if !slices.ContainsFunc(p.Modules, func(r profile.Row) bool { return r.Name == name && r.Calls == c.Batch/s.MicroBatch && r.Self > 0 }) {
				t.Errorf("%s: no calls of %s in %+v", c.Describe(s), name, p.Modules)
			}
		}
		if text := string(read(train.TablesFile)); !strings.Contains(text, "backward  linear") || !strings.Contains(text, "recompute  gelu") || strings.Contains(text, "recompute  linear") != (s.Recompute > 0) {
			t.Errorf("%s: tables\n%s", c.Describe(s), text)
		}
		picture := xml.NewDecoder(strings.NewReader(string(read(train.PictureFile))))
		for {
			if _, err := picture.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestAnnotatedSnapshot: the snapshot names the parts of its step, which
// changes nothing of what is explained.
func TestAnnotatedSnapshot(t *testing.T) {
	c := config()
	r := newRun(t, c, train.Strategy{MicroBatch: 2, Recompute: 1})
	losses(t, r)
	if _, err := os.Stat(filepath.Join(r.Dir, train.ProfileFile)); err == nil {
		t.Error("a profile was written that nobody asked for")
	}
	s, err := trace.ReadFile(filepath.Join(r.Dir, train.SnapshotFile))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	modules := map[string]int{}
	for _, a := range s.Annotations {
		switch {
		case !a.Begin:
		case strings.HasPrefix(a.Name, "transformer."):
			modules[a.Name]++
		default:
			got = append(got, a.Name)
		}
	}
	if first, second := modules["transformer.h.0"], modules["transformer.h.1"]; first != 6 || second != 4 { // forward, backward and, of the first, again
		t.Errorf("block 0 runs %d times, block 1 %d times", first, second)
	}
	want := []string{"ProfilerStep#2", "forward", "backward", "second run", "forward", "backward", "second run", "optimizer"}
	if !slices.Equal(got, want) {
		t.Errorf("annotations %q, want %q", got, want)
	}
	with := explained(t, s)
	s.Annotations = nil
	if without := explained(t, s); with != without || !strings.Contains(with, string(inspect.Healthy)) {
		t.Errorf("with annotations\n%s\nwithout\n%s", with, without)
	}
}

func explained(t *testing.T, s *trace.Snapshot) string {
	t.Helper()
	text, err := json.Marshal(inspect.NewHistory(s, 0).Explain())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
