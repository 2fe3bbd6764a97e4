package watch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var someChange = Change{
	Event: Opened, Time: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Host: "node7",
	Alarm: Alarm{Rule: Full, GPU: 1, UUID: "GPU-1", Since: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Value: 0.97, Text: "GPU 1: full; $(reboot) 'x'"},
}

// TestMain is the program that TestCommand runs, where it is asked to be.
func TestMain(m *testing.M) {
	switch os.Getenv("WATCH_TEST_PROGRAM") {
	case "tell":
		text := strings.Join(os.Args[1:], "|") + "\n"
		for _, v := range os.Environ() {
			if strings.HasPrefix(v, "HEADROOM_") {
				text += v + "\n"
			}
		}
		if err := os.WriteFile(os.Getenv("WATCH_TEST_FILE"), []byte(text), 0o644); err != nil {
			os.Exit(1)
		}
	case "fail":
		os.Exit(3)
	case "hang":
		time.Sleep(time.Hour)
	default:
		os.Exit(m.Run())
	}
}

func TestCommand(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "told")
	p := Command{Path: self, Environ: []string{"WATCH_TEST_PROGRAM=tell", "WATCH_TEST_FILE=" + path}}
	if again, err := p.Do(t.Context(), someChange); again || err != nil {
		t.Fatal(again, err)
	}
	told, _ := os.ReadFile(path)
	const want = `opened|full|1|GPU 1: full; $(reboot) 'x'
HEADROOM_EVENT=opened
HEADROOM_RULE=full
HEADROOM_GPU=1
HEADROOM_TEXT=GPU 1: full; $(reboot) 'x'
HEADROOM_UUID=GPU-1
HEADROOM_HOST=node7
HEADROOM_TIME=2026-03-01T12:00:00Z
HEADROOM_VALUE=0.97
`
	if string(told) != want {
		t.Errorf("%s\nwant\n%s", told, want)
	}
	p.Environ = []string{"WATCH_TEST_PROGRAM=fail"}
	if again, err := p.Do(t.Context(), someChange); again || err == nil || !strings.Contains(err.Error(), "status 3") {
		t.Error(again, err)
	}
	p.Environ = []string{"WATCH_TEST_PROGRAM=hang"}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.Do(ctx, someChange); err == nil {
		t.Error("a program that hangs did not fail")
	}
	if _, err := (&Command{Path: "/no/such/program"}).Do(t.Context(), someChange); err == nil {
		t.Error("no error without a program")
	}
}

func TestWebhook(t *testing.T) {
	status := http.StatusNoContent
	var got Change
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %v", r.Method, r.Header)
		}
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
			t.Error(err)
		}
		w.WriteHeader(status)
	}))
	hook := Webhook{URL: server.URL, Client: server.Client()}
	if again, err := hook.Do(t.Context(), someChange); again || err != nil || !reflect.DeepEqual(got, someChange) {
		t.Errorf("%v, %v: %+v", again, err, got)
	}
	for code, want := range map[int]bool{400: false, 404: false, 429: true, 500: true, 503: true} {
		status = code
		if again, err := hook.Do(t.Context(), someChange); again != want || err == nil {
			t.Errorf("%d: again %v, %v", code, again, err)
		}
	}
	server.Close()
	if again, err := hook.Do(t.Context(), someChange); !again || err == nil {
		t.Errorf("no server: again %v, %v", again, err)
	}
	hook.URL = "://"
	if again, err := hook.Do(t.Context(), someChange); again || err == nil {
		t.Errorf("no address: again %v, %v", again, err)
	}
}

// acting is an action that does as a test says, try by try.
type acting func(ctx context.Context, try int) (bool, error)

type tried struct {
	f  acting
	n  int
	at []time.Time
}

func (a *tried) Name() string { return "test" }

func (a *tried) Do(ctx context.Context, _ Change) (bool, error) {
	a.n++
	a.at = append(a.at, time.Now())
	return a.f(ctx, a.n)
}

// faults collects what a notifier reports.
type faults struct {
	mu   sync.Mutex
	list []string
}

func (f *faults) add(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, err.Error())
}

func TestBackoff(t *testing.T) {
	tries := Tries{Most: 4, Limit: 10 * time.Second, Backoff: time.Second}
	for name, c := range map[string]struct {
		do     acting
		pauses []time.Duration
		want   ActionCount
		fault  string
	}{
		"done":        {func(context.Context, int) (bool, error) { return false, nil }, nil, ActionCount{"test", 1, 0, 0}, ""},
		"at the last": {func(_ context.Context, n int) (bool, error) { return true, failIf(n < 4) }, []time.Duration{1e9, 2e9, 4e9}, ActionCount{"test", 1, 0, 0}, ""},
		"never":       {func(context.Context, int) (bool, error) { return true, errFailing }, []time.Duration{1e9, 2e9, 4e9}, ActionCount{"test", 0, 1, 0}, "test: after 4 tries: the disk is gone"},
		"no use":      {func(context.Context, int) (bool, error) { return false, errFailing }, nil, ActionCount{"test", 0, 1, 0}, "test: after 1 tries: the disk is gone"},
		"hangs": {func(ctx context.Context, _ int) (bool, error) { <-ctx.Done(); return true, ctx.Err() },
			[]time.Duration{11e9, 12e9, 14e9}, ActionCount{"test", 0, 1, 0}, "test: after 4 tries: context deadline exceeded"},
	} {
		synctest.Test(t, func(t *testing.T) {
			a, f := &tried{f: c.do}, &faults{}
			n := NewNotifier(tries, f.add, a)
			n.Notify(someChange)
			n.Close(time.Hour)
			var pauses []time.Duration
			for i := 1; i < len(a.at); i++ {
				pauses = append(pauses, a.at[i].Sub(a.at[i-1]))
			}
			if got := n.Counts(); !reflect.DeepEqual(pauses, c.pauses) || len(got) != 1 || got[0] != c.want || strings.Join(f.list, "\n") != c.fault {
				t.Errorf("%s: pauses %v, %+v, %q", name, pauses, got, f.list)
			}
		})
	}
}

func failIf(bad bool) error {
	if bad {
		return errFailing
	}
	return nil
}

// TestNotifyNeverWaits: with an action that hangs, changes are taken at once;
// the oldest are dropped, and another action is not held up.
func TestNotifyNeverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &faults{}
		hanging := &tried{f: func(ctx context.Context, _ int) (bool, error) { <-ctx.Done(); return false, ctx.Err() }}
		quick := &tried{f: func(context.Context, int) (bool, error) { return false, nil }}
		n := NewNotifier(Tries{Most: 1, Limit: time.Hour}, f.add, hanging, quick)
		begun := time.Now()
		const changes = queueLength + 11
		for i := range changes {
			c := someChange
			c.Text = fmt.Sprint("change ", i)
			n.Notify(c)
			synctest.Wait()
		}
		if waited := time.Since(begun); waited != 0 {
			t.Errorf("waited for %v", waited)
		}
		counts := n.Counts()
		if counts[0].Dropped != 10 || counts[1].Done != changes {
			t.Errorf("%+v", counts)
		}
		if len(f.list) != 10 || !strings.Contains(f.list[0], "change 1\"") { // change 0 is being done
			t.Errorf("%q", f.list)
		}
		n.Close(time.Second) // gives up
		if waited := time.Since(begun); waited != time.Second {
			t.Errorf("closing took %v", waited)
		}
	})
}

func get(t *testing.T, h http.Handler, host, path string) (int, string, http.Header) {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Host = host
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	text, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.Code, string(text), w.Header()
}

func TestHandler(t *testing.T) {
	m, w := newMachine(), New(Options{})
	n := NewNotifier(Tries{}, nil)
	defer n.Close(0)
	live, record := Handler(w, n, time.Minute, true), Handler(w, n, 0, false)
	if code, text, _ := get(t, record, "x", "/healthz"); code != 503 || !strings.Contains(text, "no query has succeeded yet") {
		t.Error(code, text)
	}
	m.now = time.Now().Add(-m.every)
	m.run(t, "gpu 0 80GiB")
	m.scans(w, 1, nil)
	for _, h := range []http.Handler{live, record} {
		if code, text, _ := get(t, h, "localhost:9401", "/healthz"); code != 200 || text != "ok\n" {
			t.Error(code, text)
		}
	}
	code, text, header := get(t, live, "127.0.0.1:9401", "/metrics")
	if code != 200 || !strings.Contains(text, "\nheadroom_scan_success 1\n") || header.Get("Content-Type") != "text/plain; version=0.0.4; charset=utf-8" {
		t.Error(code, text, header)
	}
	if code, _, _ := get(t, live, "[::1]", "/"); code != 200 {
		t.Error(code)
	}
	for _, path := range []string{"/x", "/../etc/passwd", "/metrics/x"} {
		if code, _, _ := get(t, live, "localhost", path); code == 200 {
			t.Errorf("%s is served", path)
		}
	}
	for _, host := range []string{"evil.example", "evil.example:9401", "127.0.0.1.evil.example", "", "10.0.0.1", "localhost.evil"} {
		if code, _, _ := get(t, live, host, "/metrics"); code != 403 {
			t.Errorf("host %q: %d", host, code)
		}
	}
	m.run(t, "fail no driver")
	m.scans(w, 1, nil)
	if code, text, _ := get(t, live, "localhost", "/healthz"); code != 200 {
		t.Error("one failure: ", code, text)
	}
	if code, text, _ := get(t, record, "x", "/healthz"); code != 503 || !strings.Contains(text, "no driver") {
		t.Error(code, text)
	}
	if why := w.Report().unhealthy(time.Now().Add(5*time.Minute), time.Minute); !strings.Contains(why, "5 min ago: no driver") {
		t.Error(why)
	}
	if !errors.Is(WriteMetrics(&failing{}, w.Report(), nil), errFailing) {
		t.Error("an error of the writer is lost")
	}
}
