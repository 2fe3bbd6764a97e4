package watch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// read reads a whole record.
func read(text string) ([]Scan, error) {
	r := NewReader(strings.NewReader(text))
	for list := []Scan(nil); ; {
		s, err := r.Scan(context.Background())
		if err == io.EOF {
			return list, nil
		}
		if err != nil {
			return list, err
		}
		list = append(list, s)
	}
}

func TestRecord(t *testing.T) {
	m := newMachine()
	m.run(t, "gpu 0 80GiB", "gpu 1 80GiB", "start 0 7 10GiB ann train.py", "hot 0 61", "busy 1 ?", "start 1 8 2GiB bob serve.py", "die 1 8")
	var b bytes.Buffer
	var want []Scan
	for i := range 5 {
		if i == 3 {
			m.run(t, "fail no driver")
		}
		s, _ := m.Scan(context.Background())
		want = append(want, s)
		if err := Write(&b, s); err != nil {
			t.Fatal(err)
		}
		b.WriteString("\n") // an empty line
	}
	got, err := read(b.String())
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\n%+v, want\n%+v", err, got, want)
	}
}

// TestReportsAreRecords: what --json prints can be watched again, and gives the
// same figures.
func TestReportsAreRecords(t *testing.T) {
	m, w, again := newMachine(), New(Options{}), New(Options{})
	m.run(t, "gpu 0 80GiB", "start 0 7 10GiB ann train.py", "grow 0 7 500MiB")
	m.scans(w, 200, func(Scan, []Change) {
		line, err := json.Marshal(w.Report())
		if err != nil {
			t.Fatal(err)
		}
		scans, err := read(string(line))
		if err != nil {
			t.Fatal(err)
		}
		again.Add(scans[0])
		if got, want := again.Report(), w.Report(); !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v, want %+v", got, want)
		}
	})
	if len(again.Report().Alarms) != 1 {
		t.Errorf("%+v", again.Report().Alarms)
	}
}

func TestBadRecords(t *testing.T) {
	ok := `{"time":"2026-03-01T12:00:00Z"}` + "\n"
	for text, want := range map[string]string{
		"hello":                                "line 1 is no scan",
		ok + ok + `{"time":`:                   "line 3 is no scan",
		ok + "{}":                              "line 2 has no time",
		ok + "[]":                              "line 2 is no scan",
		ok + strings.Repeat(" ", maxLine+1):    "line 2 is longer than",
		`{"time":"x"}`:                         "line 1 is no scan",
		ok + `{"devices":[{"total_bytes":-1}]`: "line 2 is no scan",
	} {
		if _, err := read(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
	broken := io.MultiReader(strings.NewReader(ok), &failing{})
	r := NewReader(broken)
	if _, err := r.Scan(context.Background()); err != nil {
		t.Error(err)
	}
	if _, err := r.Scan(context.Background()); !errors.Is(err, errFailing) || !strings.Contains(err.Error(), "line 2") {
		t.Error(err)
	}
	if err := Write(&failing{}, Scan{}); !errors.Is(err, errFailing) {
		t.Error(err)
	}
}

var errFailing = errors.New("the disk is gone")

type failing struct{}

func (*failing) Read([]byte) (int, error)  { return 0, errFailing }
func (*failing) Write([]byte) (int, error) { return 0, errFailing }

// TestSimulatedRecord keeps the record that the documents use: a night in which a
// job leaks, one dies and leaves its memory, and a notebook idles.
func TestSimulatedRecord(t *testing.T) {
	m, w := newMachine(), New(Options{})
	m.run(t, "every 1m", "gpu 0 80GiB", "gpu 1 80GiB", "left 0 500MiB", "left 1 500MiB", "busy 0 93", "busy 1 41", "hot 0 64", "hot 1 49",
		"start 0 4711 38GiB ann python3 train.py", "start 1 5120 22GiB bob python3 serve.py", "start 1 5313 9GiB eve python3 ipykernel_launcher")
	var b bytes.Buffer
	save := func(s Scan, _ []Change) {
		if err := Write(&b, s); err != nil {
			t.Fatal(err)
		}
	}
	m.scans(w, 30, save)
	m.run(t, "grow 0 4711 400MiB")
	m.scans(w, 45, save)
	m.run(t, "die 1 5120", "busy 1 0", "hot 1 41")
	m.scans(w, 30, save)
	path := filepath.Join("testdata", "night.jsonl")
	if *update {
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(have, b.Bytes()) {
		t.Errorf("%s is not what the machine does (%v): go test ./watch -update", path, err)
	}
	var open []Rule
	for _, a := range w.Report().Alarms {
		open = append(open, a.Rule)
	}
	if want := []Rule{Growing, Orphaned, Idle}; !reflect.DeepEqual(open, want) {
		t.Errorf("open at the end: %v, want %v", open, want)
	}
}

// FuzzRecord: no text makes a watcher fail, and what it reports is bounded and
// harmless.
func FuzzRecord(f *testing.F) {
	f.Add(`{"time":"2026-03-01T12:00:00Z","devices":[{"gpu":0,"total_bytes":100,"used_bytes":60,"free_bytes":40,"utilisation":5,"processes":[{"pid":1,"bytes":50,"user":"a"}]}]}`)
	f.Add(`{"time":"2026-03-01T12:00:00Z","error":"x"}` + "\n" + `{"time":"2025-03-01T12:00:00Z","devices":[{"gpu":-5,"total_bytes":18446744073709551615}]}`)
	f.Add(`{"time":"9999-03-01T12:00:00Z","devices":[{"total_bytes":1,"processes":[{"bytes":2},{"pid":-1}]},{"uuid":"\u001b[2J\u202e"}]}` + "\n" + `{"time":"0001-03-01T12:00:00Z"}`)
	f.Fuzz(func(t *testing.T, text string) {
		scans, _ := read(text)
		w := New(Options{})
		for _, s := range scans {
			w.Add(s)
			w.Add(s)
			r := w.Report()
			if len(r.Devices) > maxDevices {
				t.Fatalf("%d devices", len(r.Devices))
			}
			for i := range r.Devices {
				w.Course(i, time.Hour, 10)
			}
			for _, line := range r.Lines() {
				if strings.ContainsAny(line, "\x1b\n\u202e") {
					t.Fatalf("%q", line)
				}
			}
			if _, err := json.Marshal(r); err != nil {
				t.Fatal(err)
			}
			if err := WriteMetrics(io.Discard, r, nil); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// script is a source that answers as a test says.
type script func(ctx context.Context, n int) (Scan, error)

// TestRun: one query at a time, at the pace asked for, until there are no more.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		var at []time.Duration
		src := counted(func(_ context.Context, n int) (Scan, error) {
			time.Sleep(300 * time.Millisecond)
			if n == 4 {
				return Scan{}, io.EOF
			}
			return Scan{Time: time.Now()}, nil
		})
		err := Run(t.Context(), src, Pace{Every: time.Second, Limit: 10 * time.Second}, func(s Scan) error {
			at = append(at, time.Since(begun))
			return nil
		})
		want := []time.Duration{300 * time.Millisecond, 1300 * time.Millisecond, 2300 * time.Millisecond, 3300 * time.Millisecond}
		if err != nil || !reflect.DeepEqual(at, want) {
			t.Errorf("%v, %v, want %v", at, err, want)
		}
	})
}

// counted numbers the scans of a source, from 0.
func counted(f script) Source { return &counting{f: f} }

type counting struct {
	f script
	n int
}

func (c *counting) Scan(ctx context.Context) (Scan, error) {
	c.n++
	return c.f(ctx, c.n-1)
}

// TestRunWhenTheDriverHangs: failed scans come meanwhile, no second query is
// begun, and the answer counts when it comes.
func TestRunWhenTheDriverHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &counting{f: func(_ context.Context, n int) (Scan, error) {
			if n == 1 {
				time.Sleep(25 * time.Second)
			}
			if n == 2 {
				return Scan{}, io.EOF
			}
			return Scan{Time: time.Now()}, nil
		}}
		var got []string
		err := Run(t.Context(), src, Pace{Every: time.Second, Limit: 10 * time.Second}, func(s Scan) error {
			got = append(got, s.Error)
			return nil
		})
		if want := []string{"", "no answer within 10s", "no answer within 10s", ""}; err != nil || !reflect.DeepEqual(got, want) || src.n != 3 {
			t.Errorf("%q after %d queries, %v, want %q", got, src.n, err, want)
		}
	})
}

func TestRunEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		n := 0
		ok := counted(func(context.Context, int) (Scan, error) { return Scan{Time: time.Now()}, nil })
		if err := Run(ctx, ok, Pace{Every: time.Minute}, func(Scan) error { n++; return nil }); !errors.Is(err, context.DeadlineExceeded) || n != 2 {
			t.Errorf("%v after %d scans", err, n)
		}
		if err := Run(t.Context(), ok, Pace{}, func(Scan) error { return errFailing }); err != errFailing {
			t.Error(err)
		}
		broken := counted(func(context.Context, int) (Scan, error) { return Scan{}, errFailing })
		if err := Run(t.Context(), broken, Pace{}, func(Scan) error { return nil }); err != errFailing {
			t.Error(err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		hanging := counted(func(ctx context.Context, _ int) (Scan, error) { <-ctx.Done(); return Scan{}, ctx.Err() })
		if err := Run(ctx, hanging, Pace{}, func(Scan) error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}
