package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/headroom-go/headroom/internal/cuda"
	"github.com/headroom-go/headroom/watch"
)

const night = "../../watch/testdata/night.jsonl"

func TestWatchOnce(t *testing.T) {
	status, stdout, stderr := headroom("watch", "--source", night, "--once")
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if status != 0 || stderr != "" || len(lines) != 2 {
		t.Fatalf("status %d\n%s%s", status, stdout, stderr)
	}
	for _, want := range []string{"GPU 0  Simulated", "ann python3 train.py PID 4711", "GROWING", "full in about"} {
		if !strings.Contains(lines[0], want) {
			t.Errorf("no %q in %s", want, lines[0])
		}
	}
	for _, want := range []string{"GPU 1", "(dead)", "ORPHANED", "IDLE"} {
		if !strings.Contains(lines[1], want) {
			t.Errorf("no %q in %s", want, lines[1])
		}
	}
	page, err := os.ReadFile("../../docs/watch.md")
	if err != nil || !strings.Contains(string(page), "```\n"+stdout+"```") {
		t.Errorf("docs/watch.md (%v) does not show\n%s", err, stdout)
	}
	for _, s := range watch.Defaults() {
		name, value, _ := strings.Cut(s.String(), "=")
		if !regexp.MustCompile("(?m)^\\| `" + name + "` .*`" + regexp.QuoteMeta(value) + "` \\|$").Match(page) {
			t.Errorf("docs/watch.md does not say %s", s)
		}
	}
}

// TestWatchLines: without a terminal each alarm is a line at once.
func TestWatchLines(t *testing.T) {
	status, stdout, stderr := headroom("watch", "--source", night, "--rule", "idle=off")
	if status != 0 || stderr != "" {
		t.Fatalf("status %d: %s", status, stderr)
	}
	for _, want := range []string{
		`(?m)^2026-03-01 13:\d\d:\d\d  GROWING  GPU 0: memory grows by .* an hour, full in about \d\d min`,
		`(?m)^2026-03-01 13:\d\d:\d\d  ORPHANED  GPU 1: 22.49GiB held by no living process; the driver still lists the dead 5120$`,
	} {
		if !regexp.MustCompile(want).MatchString(stdout) {
			t.Errorf("no %s in\n%s", want, stdout)
		}
	}
	if strings.Contains(stdout, "IDLE") {
		t.Error("a rule that is off has an alarm")
	}
}

// TestWatchJSON: a document for each scan, and what one watch prints another reads.
func TestWatchJSON(t *testing.T) {
	status, all, stderr := headroom("watch", "--source", night, "--json")
	if status != 0 || strings.Count(all, "\n") != 105 {
		t.Fatalf("status %d, %d lines: %s", status, strings.Count(all, "\n"), stderr)
	}
	path := filepath.Join(t.TempDir(), "again.jsonl")
	if err := os.WriteFile(path, []byte(all), 0o644); err != nil {
		t.Fatal(err)
	}
	_, first, _ := headroom("watch", "--source", night, "--json", "--once")
	_, again, _ := headroom("watch", "--source", path, "--json", "--once")
	if first != again || !strings.HasSuffix(all, first) {
		t.Errorf("%s\nis not\n%s", again, first)
	}
	var r watch.Report
	if err := json.Unmarshal([]byte(first), &r); err != nil || len(r.Alarms) != 3 || len(r.Devices) != 2 || r.Devices[0].Forecast == nil {
		t.Errorf("%v: %+v", err, r)
	}
}

func TestWatchBadUse(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(bad, []byte("{\"time\":\"2026-03-01T12:00:00Z\"}\nhello\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"--source", bad, "--once"}, 1, "bad: line 2 is no scan"},
		{[]string{"--source", "nowhere"}, 1, "nowhere"},
		{[]string{"--source", "."}, 1, "is a folder"},
		{[]string{"--once", "--serve", "9401"}, 2, "--once"},
		{[]string{"--source", night, "--record", "x"}, 2, "--record"},
		{[]string{"--source", night, "--serve", "localhost"}, 1, "listen"},
		{[]string{"--source", night, "--serve", "a:b:c"}, 2, "--serve"},
		{[]string{"--source", night, "--webhook", "example.org"}, 2, "--webhook"},
		{[]string{"--source", night, "--webhook", "file:///etc/passwd"}, 2, "--webhook"},
		{[]string{"--source", night, "--exec", "/no/such/program"}, 2, "--exec"},
		{[]string{"--source", night, "--rule", "fool=1"}, 2, "the rules are full, growing, orphaned, idle, failed"},
		{[]string{"--source", night, "--held", "lots"}, 2, "lots"},
		{[]string{"--source", night, "--interval", "-1s"}, 2, "--interval"},
		{[]string{"--source", night, "more"}, 2, "takes no argument"},
	} {
		status, stdout, stderr := headroom(append([]string{"watch"}, c.args...)...)
		if status != c.status || !strings.Contains(stderr, c.want) || stdout != "" && c.status == 2 {
			t.Errorf("%v: status %d, want %d with %q: %s", c.args, status, c.status, c.want, stderr)
		}
	}
}

// TestWatchServes: an address without a host is on loopback; metrics and health
// of a record are served until the end.
func TestWatchServes(t *testing.T) {
	for given, want := range map[string]string{"9401": "127.0.0.1:9401", ":9401": "127.0.0.1:9401", "0.0.0.0:9401": "0.0.0.0:9401", "[::1]:1": "[::1]:1"} {
		o := watchFlags{serve: given}
		if err := o.check(); err != nil || o.serve != want {
			t.Errorf("%s: %s, %v", given, o.serve, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	stderr := &lockedBuffer{}
	root := rootCommand(io.Discard, stderr)
	root.SetArgs([]string{"watch", "--source", night, "--serve", "127.0.0.1:0"})
	done := make(chan error)
	go func() { done <- root.ExecuteContext(ctx) }()
	address := regexp.MustCompile(`http://[0-9.:]+`).FindString(stderr.waitFor(t, "/metrics"))
	var text string
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(text, `headroom_alarm_open{gpu="1",uuid="GPU-1",rule="idle"} 1`); {
		if time.Now().After(deadline) {
			t.Fatalf("the record was not played: %s", text)
		}
		answer, err := http.Get(address + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		text = string(body)
	}
	if answer, err := http.Get(address + "/healthz"); err != nil || answer.StatusCode != 200 {
		t.Error(answer, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// lockedBuffer is a buffer for several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *lockedBuffer) waitFor(t *testing.T, text string) string {
	t.Helper()
	for range 2000 {
		if strings.Contains(l.String(), text) {
			return l.String()
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("no %q in %s", text, l)
	return ""
}

// TestWatchActs: the webhook gets what opens, and a program is run for each.
func TestWatchActs(t *testing.T) {
	var mu sync.Mutex
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var c watch.Change
		if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
			t.Error(err)
		}
		mu.Lock()
		got = append(got, string(c.Event)+" "+string(c.Rule))
		mu.Unlock()
	}))
	defer server.Close()
	status, _, stderr := headroom("watch", "--source", night, "--webhook", server.URL, "--exec", "false")
	if want := "opened orphaned,opened growing,opened idle"; status != 0 || strings.Join(got, ",") != want {
		t.Errorf("status %d: %q, want %s", status, got, want)
	}
	if n := strings.Count(stderr, "headroom: exec: after 1 tries: exit status 1"); n != 3 {
		t.Errorf("%d programs failed: %s", n, stderr)
	}
}

// scripted is a source of the driver's kind.
type scripted struct {
	scans []watch.Scan
	err   error
}

func (s *scripted) Scan(context.Context) (watch.Scan, error) {
	if len(s.scans) == 0 {
		return watch.Scan{}, s.err
	}
	next := s.scans[0]
	s.scans = s.scans[1:]
	return next, nil
}

// TestWatchRecords: what is recorded can be watched; a failed write ends the watch.
func TestWatchRecords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record")
	for range 2 { // the second appends
		o := &watchFlags{record: path}
		w := &watching{watchFlags: o, watcher: watch.New(watch.Options{}), notifier: watch.NewNotifier(watch.Tries{}, nil)}
		w.out = &lineOutput{p: newPage(io.Discard), watcher: w.watcher}
		closeRecord, err := w.openRecord()
		if err != nil {
			t.Fatal(err)
		}
		src := &scripted{[]watch.Scan{{Time: time.Now(), Devices: []watch.Device{{TotalBytes: 10}}}, {Time: time.Now(), Error: "lost"}}, io.EOF}
		if err := w.play(t.Context(), src, watch.Pace{}); err != nil {
			t.Fatal(err)
		}
		closeRecord()
		w.record = failing{}
		if err := w.step(watch.Scan{}); err == nil || !strings.Contains(err.Error(), "the record: no space") {
			t.Error(err)
		}
	}
	status, stdout, stderr := headroom("watch", "--source", path, "--json")
	if status != 0 || strings.Count(stdout, "\n") != 4 {
		t.Errorf("status %d: %s%s", status, stdout, stderr)
	}
}

// shown plays the record for a view of a size and gives the last picture.
func shown(t *testing.T, columns, rows int, colour bool) []string {
	t.Helper()
	v, b := newTestView(t, night, columns, rows)
	v.colour = colour
	if err := v.draw(); err != nil {
		t.Fatal(err)
	}
	picture, ok := strings.CutPrefix(b.String(), home)
	if !ok || !strings.HasSuffix(picture, clearBelow) {
		t.Fatalf("%q", picture)
	}
	return strings.Split(strings.TrimSuffix(picture, clearBelow), "\r\n")
}

func newTestView(t *testing.T, record string, columns, rows int) (*view, *lockedBuffer) {
	f, err := os.Open(record)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := watch.New(watch.Options{Host: "node7"})
	if err := watch.Run(t.Context(), watch.NewReader(f), watch.Pace{}, func(s watch.Scan) error { w.Add(s); return nil }); err != nil {
		t.Fatal(err)
	}
	b := &lockedBuffer{}
	return &view{w: b, watcher: w, span: shortSpan, keys: true, size: func() (int, int) { return columns, rows }}, b
}

// TestViewFits: in terminals of all sizes no line is wider and there are no more
// lines than have room; each clears what was right of it.
func TestViewFits(t *testing.T) {
	for _, rows := range []int{1, 3, 10, 24, 50} {
		for columns := 1; columns <= 140; columns += 3 {
			lines := shown(t, columns, rows, false)
			if len(lines) > rows {
				t.Fatalf("%d lines in %d rows", len(lines), rows)
			}
			for _, l := range lines {
				l, ok := strings.CutSuffix(l, clearRight)
				if !ok || utf8.RuneCountInString(l) > columns || strings.Contains(l, "\x1b") {
					t.Fatalf("%d columns: %q", columns, l)
				}
			}
		}
	}
}

func TestViewShows(t *testing.T) {
	text := strings.Join(shown(t, 80, 30, false), "\n")
	for _, want := range []string{"headroom watch  node7  2026-03-01", "alarms 3", "q quit  h 24 h", "GPU 0  Simulated", "GROWING since", "IDLE since", "4711", "python3 train.py", "(dead)", "memory", "▅▅", "  1 h"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if coloured := strings.Join(shown(t, 80, 30, true), "\n"); !strings.Contains(coloured, "\x1b[1;31m") {
		t.Error("no colour")
	}
}

// TestViewKeys: h turns the span, q quits, other keys do nothing; a picture is
// one write.
func TestViewKeys(t *testing.T) {
	v, b := newTestView(t, night, 80, 24)
	quits := 0
	v.listen(strings.NewReader("xh"), func() { quits++ })
	if quits != 0 || !strings.Contains(b.String(), "  24 h") || strings.Count(b.String(), home) != 1 {
		t.Errorf("quits %d: %s", quits, b)
	}
	for _, key := range []string{"q", "Q", "\x03", "xxq"} {
		v.listen(strings.NewReader(key+"h"), func() { quits++ })
	}
	if quits != 4 || v.span != longSpan {
		t.Errorf("quits %d, span %v", quits, v.span)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := v.end(ctx); err != context.Canceled || !strings.Contains(b.String(), "end of the record") {
		t.Error(err)
	}
	v.w = failing{}
	if err := v.scan(nil); err != errFailing {
		t.Error(err)
	}
	if err := v.end(ctx); err != errFailing {
		t.Error(err)
	}
}

func TestViewOfFailures(t *testing.T) {
	w := watch.New(watch.Options{})
	b := &lockedBuffer{}
	v := &view{w: b, watcher: w, span: shortSpan, size: func() (int, int) { return 80, 24 }}
	for range 3 {
		w.Add(watch.Scan{Time: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Error: "the driver is not loaded"})
	}
	if err := v.draw(); err != nil || !strings.Contains(b.String(), "query failed: the driver is not loaded") || !strings.Contains(b.String(), "FAILED since 12:00") {
		t.Errorf("%v: %s", err, b)
	}
}

// TestWatchInstances: a record of a partitioned GPU has a row for each instance,
// on the terminal and in lines, and marks what is under MPS.
func TestWatchInstances(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mig.jsonl")
	scan := `{"time":"2026-03-01T12:00:00Z","devices":[
		{"gpu":0,"gpu_instance":3,"uuid":"MIG-a","name":"H200 MIG 1g.18gb","total_bytes":4096,"used_bytes":1024,"free_bytes":3072,"processes":[{"pid":7,"bytes":1024,"mps":true,"job":"12"}]},
		{"gpu":0,"gpu_instance":5,"total_bytes":4096,"used_bytes":0,"free_bytes":4096},
		{"gpu":0,"gpu_instance":6,"total_bytes":4096,"used_bytes":0,"free_bytes":4096}]}`
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(scan, "\n", "")), 0o644); err != nil {
		t.Fatal(err)
	}
	want := "GPU 0 instance 3  H200 MIG 1g.18gb  1KiB of 4KiB  25%  job 12 PID 7 under MPS 1KiB\nGPU 0 instance 5  0B of 4KiB  0%\nGPU 0 instance 6  0B of 4KiB  0%\n"
	if status, stdout, stderr := headroom("watch", "--source", path, "--once"); status != 0 || stdout != want {
		t.Errorf("status %d: %s%s, want\n%s", status, stdout, stderr, want)
	}
	v, b := newTestView(t, path, 80, 24)
	if err := v.draw(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"GPU 0 instance 3  H200 MIG 1g.18gb  1KiB of 4KiB", "MPS job 12", "GPU 0 instance 6"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b)
		}
	}
}

// TestScanOfNVML: what the driver does not tell stays unknown.
func TestScanOfNVML(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	if s := scanOf(now, nil, errFailing); s.Error != errFailing.Error() || !s.Time.Equal(now) {
		t.Errorf("%+v", s)
	}
	s := scanOf(now, []cuda.Status{
		{Instance: -1, Name: "A", UUID: "GPU-a", Memory: cuda.Memory{Total: 10, Free: 3, Used: 6}, Reserved: 1, Busy: 5, Temperature: 50, Processes: []cuda.Process{{PID: 7, Memory: 4}, {PID: 8, Memory: ^uint64(0)}}},
		{Index: 1, Instance: -1, Busy: -1, Temperature: -1, Err: errFailing, ProcessesErr: errFailing},
		{Index: 2, Instance: 7, UUID: "MIG-b", Memory: cuda.Memory{Total: 10, Free: 3, Used: 7}, Busy: -1, Temperature: -1, Processes: []cuda.Process{{PID: 9, Memory: 4, MPS: true}, {PID: 10, Memory: ^uint64(0), MPS: true}}},
	}, nil)
	want := []watch.Device{
		{Name: "A", UUID: "GPU-a", TotalBytes: 10, FreeBytes: 3, UsedBytes: 6, ReservedBytes: 1, Utilisation: new(5), Temperature: new(50), Processes: []watch.Process{{PID: 7, Bytes: 4}, {PID: 8, BytesUnknown: true}}},
		{Index: 1, Error: errFailing.Error(), ProcessesError: errFailing.Error()},
		{Index: 2, Instance: new(7), UUID: "MIG-b", TotalBytes: 10, FreeBytes: 3, UsedBytes: 7, Processes: []watch.Process{{PID: 9, Bytes: 4, MPS: true}, {PID: 10, BytesUnknown: true, MPS: true}}},
	}
	if !reflect.DeepEqual(s.Devices, want) {
		t.Errorf("%+v, want %+v", s.Devices, want)
	}
}

// TestWatchWithoutDriver: it says so, and what to do instead.
func TestWatchWithoutDriver(t *testing.T) {
	if n, err := openNVML(); err == nil {
		n.Close()
		t.Skip("this machine has a driver")
	}
	status, stdout, stderr := headroom("watch", "--once")
	if status != 1 || stdout != "" || !strings.Contains(stderr, "libnvidia-ml.so.1") || !strings.Contains(stderr, "--source FILE") {
		t.Errorf("status %d: %s%s", status, stdout, stderr)
	}
}
