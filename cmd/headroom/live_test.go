package main

import (
	"bytes"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/pprof/profile"
)

// lookout is standard error of a job that is to be looked at: it tells its
// address, once.
type lookout struct {
	mu      sync.Mutex
	text    bytes.Buffer
	address chan string
	told    bool
}

var liveLine = regexp.MustCompile(`(?m)^live    (http://127\.0\.0\.1:\d+)/$`)

func (l *lookout) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(b)
	if m := liveLine.FindSubmatch(l.text.Bytes()); m != nil && !l.told {
		l.told = true
		l.address <- string(m[1])
	}
	return len(b), nil
}

// fetch gives the body that is at an address.
func fetch(url string) (string, error) {
	r, err := http.Get(url)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	return string(text), err
}

// TestTrainServes reads a job's pages while it runs: the race detector looks
// on. They hold what the job prints, and end with it.
func TestTrainServes(t *testing.T) {
	var stdout bytes.Buffer
	stderr := &lookout{address: make(chan string, 1)}
	args := small(text(t), filepath.Join(t.TempDir(), "run"), "--serve", "0", "--steps", "60", "--profile")
	status := make(chan int, 1)
	go func() { status <- run(args, &stdout, stderr) }()
	var url string
	select {
	case url = <-stderr.address:
	case s := <-status:
		t.Fatalf("status %d\n%s", s, stderr.text.String())
	}
	named := false // by a profile, the place of a block
	var last string
	for {
		metrics, err := fetch(url + "/metrics")
		if err != nil {
			break // the job has ended
		}
		last = metrics
		for _, path := range []string{"/healthz", "/api/live", "/api/samples?to=100&width=50"} {
			if _, err := fetch(url + path); err != nil {
				break
			}
		}
		if text, err := fetch(url + "/debug/pprof/device"); err == nil {
			p, err := profile.ParseData([]byte(text))
			named = named || err == nil && strings.Contains(p.String(), "NewOptimizer")
		}
	}
	if s := <-status; s != 0 {
		t.Fatalf("status %d\n%s", s, stderr.text.String())
	}
	if !named || !strings.Contains(last, "headroom_budget_bytes 3.3554432e+07\n") || !regexp.MustCompile(`headroom_train_steps_total [1-9]`).MatchString(last) {
		t.Errorf("a profile named the optimizer: %v; the last figures:\n%s", named, last)
	}
}

// TestServeNeedsAnAddress refuses before anything is computed.
func TestServeNeedsAnAddress(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:", "256.0.0.1:80", "a:b:c"} {
		for _, args := range [][]string{small(text(t), t.TempDir()), {"generate", "--model", "gpt2", "--prompt", "x"}} {
			if status, _, stderr := headroom(append(args, "--serve", addr)...); status != 2 || !strings.Contains(stderr, "--serve") {
				t.Errorf("%s --serve %s: status %d, %s", args[0], addr, status, stderr)
			}
		}
	}
}

func TestAddressOf(t *testing.T) {
	for addr, want := range map[string]string{"8080": "127.0.0.1:8080", ":0": "127.0.0.1:0", "0.0.0.0:1": "0.0.0.0:1", "[::1]:2": "[::1]:2", "node7:3": "node7:3"} {
		if got, err := addressOf("--serve", addr); got != want || err != nil {
			t.Errorf("%s: %s, %v", addr, got, err)
		}
	}
}
