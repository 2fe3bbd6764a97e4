package web_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/internal/web"
	"github.com/headroom-go/headroom/trace"
)

// write writes a snapshot into a folder.
func write(t testing.TB, dir, name string, s *trace.Snapshot) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.WritePickle(f); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// serve serves a file or folder.
func serve(t testing.TB, path string) *httptest.Server {
	t.Helper()
	l, err := web.OpenLibrary(path)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(web.NewServer(l, web.ServerOptions{Names: []string{"gpu-box"}}))
	t.Cleanup(func() {
		s.Close()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// get asks with some headers changed; an empty method is GET.
func get(t testing.TB, address string, change func(r *http.Request)) (status int, body string, header http.Header) {
	t.Helper()
	r, err := http.NewRequest("GET", address, nil)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(r)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(b), answer.Header
}

func TestServerAnswers(t *testing.T) {
	dir := t.TempDir()
	snapshot := newJob(3000, "/m.py", true)
	write(t, dir, "sub/job.pickle", snapshot)
	write(t, dir, ".hidden/job.pickle", snapshot)
	if err := os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("no record"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := serve(t, dir)
	if status, body, _ := get(t, s.URL+"/api/files", nil); status != 200 || !strings.Contains(body, `"sub/job.pickle"`) || strings.Contains(body, "hidden") || strings.Contains(body, "notes") {
		t.Errorf("files: %d %s", status, body)
	}
	ask := func(question string) string {
		status, body, _ := get(t, s.URL+"/api/"+question+"&file=sub/job.pickle&record=0", nil)
		if status != 200 {
			t.Fatalf("%s: %d %s", question, status, body)
		}
		return body
	}
	r := recordOf(t, snapshot)
	for question, want := range map[string]any{
		"samples?from=10&to=900&width=50":  r.Samples(10, 900, 50),
		"lives?from=10&to=900&most=20":     r.Lives(10, 900, 20),
		"weights?from=10&to=900":           r.Weights(10, 900),
		"state?moment=700":                 r.State(700),
		"block?lease=3":                    r.Block(3),
		"search?text=forward&most=5":       r.Search("forward", 5),
		"stacks?":                          r.Stacks(),
		"state?moment=-5":                  r.State(0),
		"samples?from=x&to=9e99&width=1e9": r.Samples(0, 0, 0),
	} {
		text, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if got := ask(question); got != string(text) {
			t.Errorf("%s:\n%.300s\nwant\n%.300s", question, got, text)
		}
	}
	var found struct {
		Explain *inspect.Report
		Replay  *inspect.Result
	}
	if err := json.Unmarshal([]byte(ask("findings?")), &found); err != nil {
		t.Fatal(err)
	}
	h := inspect.NewHistory(snapshot, 0)
	replay, err := h.Replay(inspect.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if found.Explain.Verdict != inspect.Leak || found.Explain.Summary != h.Explain().Summary || found.Replay.PeakReservedBytes != replay.PeakReservedBytes {
		t.Errorf("the server says %+v %+v", found.Explain, found.Replay)
	}
	for question, want := range map[string]int{"nothing?": 400, "whatif?setting=backend:x": 400} {
		if status, _, _ := get(t, s.URL+"/api/"+question+"&file=sub/job.pickle&record=0", nil); status != want {
			t.Errorf("%s: status %d, want %d", question, status, want)
		}
	}
	for _, number := range []string{"1", "-1", "x", ""} {
		if status, _, _ := get(t, s.URL+"/api/state?file=sub/job.pickle&record="+number, nil); status != 400 {
			t.Errorf("record %q: status %d", number, status)
		}
	}
}

// TestServerReadsBelowItsFolder tries the ways out.
func TestServerReadsBelowItsFolder(t *testing.T) {
	outside := t.TempDir()
	write(t, outside, "secret.pickle", newJob(100, "/m.py", false))
	dir := t.TempDir()
	write(t, dir, "job.pickle", newJob(100, "/m.py", false))
	if err := os.Symlink(filepath.Join(outside, "secret.pickle"), filepath.Join(dir, "link.pickle")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "folder")); err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(dir, filepath.Join(outside, "secret.pickle"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, filepath.Join(dir, "job.pickle")} {
		s := serve(t, path)
		for _, name := range []string{filepath.Join(outside, "secret.pickle"), relative, "link.pickle", "folder/secret.pickle", "./../x", "..", ".", "", "job.pickle/", "no.pickle", "a\x00b"} {
			status, body, _ := get(t, s.URL+"/api/open?"+url.Values{"file": {name}}.Encode(), nil)
			if status == 200 && name != "job.pickle/" || strings.Contains(body, `"events"`) && name != "job.pickle/" {
				t.Errorf("%s, %q: %d %s", path, name, status, body)
			}
		}
		if status, body, _ := get(t, s.URL+"/api/open?file=job.pickle", nil); status != 200 || !strings.Contains(body, `"events"`) {
			t.Errorf("%s: the file itself: %d %s", path, status, body)
		}
		if _, body, _ := get(t, s.URL+"/api/files", nil); strings.Contains(body, "secret") || strings.Contains(body, "link") {
			t.Errorf("%s lists %s", path, body)
		}
	}
}

// TestServerIsForItself sends what a page of another site can make a browser
// send.
func TestServerIsForItself(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "job.pickle", newJob(100, "/m.py", false))
	s := serve(t, dir)
	host := strings.TrimPrefix(s.URL, "http://")
	_, port, _ := net.SplitHostPort(host)
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	named := func(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }
	for name, c := range map[string]struct {
		change func(*http.Request)
		want   int
	}{
		"plain":             {nil, 200},
		"localhost":         {named("localhost:" + port), 200},
		"IPv6":              {named("[::1]:" + port), 200},
		"own name":          {named("GPU-box:" + port), 200},
		"foreign name":      {named("evil.example:" + port), 403},
		"foreign bare name": {named("evil.example"), 403},
		"like ours":         {named("localhost.evil.example"), 403},
		"own origin":        {header("Origin", s.URL), 200},
		"foreign origin":    {header("Origin", "http://evil.example"), 403},
		"no origin":         {header("Origin", "null"), 403},
		"other port":        {header("Origin", "http://127.0.0.1:1"), 403},
		"same site":         {header("Sec-Fetch-Site", "same-origin"), 200},
		"address bar":       {header("Sec-Fetch-Site", "none"), 200},
		"cross site":        {header("Sec-Fetch-Site", "cross-site"), 403},
		"same domain":       {header("Sec-Fetch-Site", "same-site"), 403},
		"POST":              {func(r *http.Request) { r.Method = "POST" }, 405},
		"DELETE":            {func(r *http.Request) { r.Method = "DELETE" }, 405},
	} {
		if status, body, _ := get(t, s.URL+"/api/files", c.change); status != c.want {
			t.Errorf("%s: %d %s, want %d", name, status, body, c.want)
		}
	}
	linked := func(r *http.Request) {
		r.Header.Set("Sec-Fetch-Site", "cross-site")
		r.Header.Set("Sec-Fetch-Mode", "navigate")
	}
	if status, _, h := get(t, s.URL+"/", linked); status != 200 || !strings.Contains(h.Get("Content-Security-Policy"), "default-src 'none'") || h.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("a link to the page: %d %v", status, h)
	}
	if status, body, _ := get(t, s.URL+"/healthz", nil); status != 200 || body != "ok\n" {
		t.Errorf("health: %d %q", status, body)
	}
}

// running is a server on a port of this machine with limits of its own.
func running(t *testing.T, limits web.Limits, h http.Handler) (addr string, stop func() error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- web.Serve(ctx, listener, h, limits) }()
	stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { _ = stop() })
	return listener.Addr().String(), stop
}

// TestSlowClients connects as often as is allowed without asking anything, and
// one more time: once the slow ones have been shown out, it is answered.
func TestSlowClients(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "job.pickle", newJob(100, "/m.py", false))
	l, err := web.OpenLibrary(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	limits := web.Limits{Clients: 4, Header: 100 * time.Millisecond, Answer: time.Second, Idle: 100 * time.Millisecond}
	addr, stop := running(t, limits, web.NewServer(l, web.ServerOptions{}))
	var slow []net.Conn
	for range limits.Clients {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: ")
		slow = append(slow, c)
	}
	if status, _, _ := get(t, "http://"+addr+"/healthz", nil); status != 200 {
		t.Errorf("behind slow clients: status %d", status)
	}
	for _, c := range slow {
		b, err := bufio.NewReader(c).ReadString('\n')
		if err == nil && !strings.Contains(b, "408") && !strings.Contains(b, "400") {
			t.Errorf("a slow client was told %q", b)
		}
	}
	if err := stop(); err != nil && err != http.ErrServerClosed {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", addr); err == nil {
		t.Error("the server listens after its end")
	}
}

func TestHundredClients(t *testing.T) {
	dir := t.TempDir()
	for i := range 3 {
		write(t, dir, fmt.Sprintf("rank%d.pickle", i), newJob(1000, "/m.py", false))
	}
	l, err := web.OpenLibrary(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	addr, _ := running(t, web.DefaultLimits(), web.NewServer(l, web.ServerOptions{}))
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			c := http.Client{Timeout: 30 * time.Second}
			for _, question := range []string{"open?", "samples?from=0&to=1000&width=300", "state?moment=500", "search?text=forward&most=5"} {
				answer, err := c.Get(fmt.Sprintf("http://%s/api/%s&record=0&file=rank%d.pickle", addr, question, i%3))
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := io.Copy(io.Discard, answer.Body); err != nil || answer.StatusCode != 200 {
					t.Errorf("client %d, %s: status %d, %v", i, question, answer.StatusCode, err)
				}
				answer.Body.Close()
			}
			c.CloseIdleConnections()
		})
	}
	wg.Wait()
}

// TestSlowAnswer works longer on an answer than a client may take for it, and
// then sends more than fits on the way: one client takes it, the other doesn't.
func TestSlowAnswer(t *testing.T) {
	const limit = time.Second
	ended := make(chan error, 2)
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(limit + limit/4)
		_, err := w.Write(make([]byte, 16<<20))
		ended <- err
	})
	addr, stop := running(t, web.Limits{Clients: 4, Header: time.Second, Answer: limit, Idle: time.Second}, h)
	if status, body, _ := get(t, "http://"+addr+"/", nil); status != 200 || len(body) != 16<<20 {
		t.Errorf("status %d, %d bytes", status, len(body))
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") // and reads nothing
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a client that takes nothing: %v", err)
	}
	if err := stop(); err != nil && err != http.ErrServerClosed {
		t.Error(err)
	}
}
