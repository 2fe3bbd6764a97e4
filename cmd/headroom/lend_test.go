package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headroom-go/headroom/plan"
)

// spoken is what a command has printed, for several goroutines.
type spoken struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *spoken) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *spoken) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// TestTrainBorrows: a run with values at a lender gives the file of weights of one with
// values on the host, says how fast places are, keeps that with --rates, and the lender
// says who has borrowed what.
func TestTrainBorrows(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	out, done := &spoken{}, make(chan error, 1)
	lender := &lendFlags{bytes: 64 << 20, listen: "0", grace: time.Minute, keep: 1}
	go func() { done <- lender.lend(ctx, out) }()
	for !strings.Contains(out.String(), "\n") {
		time.Sleep(time.Millisecond)
	}
	_, address, _ := strings.Cut(out.String(), " at ")
	address, kept, _ := strings.Cut(address, ", ")
	if kept != "and keeps 1B available\n" {
		t.Errorf("the lender says %q of what it keeps", kept)
	}
	data, dir := text(t), t.TempDir()
	p, rates, fast := filepath.Join(dir, "plan.json"), filepath.Join(dir, "rates.json"), filepath.Join(dir, "fast.json")
	known := plan.HostRates(runtime.GOMAXPROCS(0))
	known.Away = map[string]plan.CopyRates{address: {OutBytesPerSecond: 4e9, BackBytesPerSecond: 4e9}}
	if err := known.Write(fast); err != nil {
		t.Fatal(err)
	}
	job := []string{"--model", "gpt2-nano", "--batch", "16", "--seq", "128", "--device", "host:16MiB"}
	if status, _, stderr := headroom(append([]string{"plan", "--out", p, "--rates", fast, "--away", "64KiB", "--away", "32MiB," + address}, job...)...); status != 0 {
		t.Fatal(stderr)
	}
	if made, err := plan.Read(p); err != nil || made.Chosen.AwayBytes <= 64<<10 {
		t.Fatalf("the plan moves nothing to the lender: %v, %v", made.Chosen.Description, err)
	}
	train := func(name string, more ...string) (string, []byte) {
		to := filepath.Join(dir, name)
		status, _, stderr := headroom(append(append([]string{"train", "--steps", "1", "--data", data, "--out", to, "--plan", p}, job...), more...)...)
		weights, err := os.ReadFile(filepath.Join(to, "model.safetensors"))
		if status != 0 || err != nil {
			t.Fatalf("status %d, %v\n%s", status, err, stderr)
		}
		return stderr, weights
	}
	words, lent := train("lent", "--away", "64KiB", "--away", "32MiB,"+address, "--rates", rates)
	if _, host := train("host", "--away", "32MiB"); !bytes.Equal(lent, host) {
		t.Error("the weights are others with a lender")
	}
	if !strings.Contains(words, "32MiB,"+address+": ") {
		t.Errorf("no word of the lender's speed:\n%s", words)
	}
	if words, _ := train("again", "--away", "64KiB", "--away", "32MiB,"+address, "--rates", rates); strings.Contains(words, "GB/s") {
		t.Errorf("what --rates knows is measured again:\n%s", words)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for _, want := range []string{"measuring (127.0.0.1:", "gpt2-nano (127.0.0.1:", "borrows 32MiB; 32MiB of 64MiB are lent", "gave back 32MiB; 0B of 64MiB are lent"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// TestBadLenders: each is a clear message and the right status.
func TestBadLenders(t *testing.T) {
	data := text(t)
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"lend"}, 2, "lend needs one size"},
		{[]string{"lend", "0"}, 2, "nothing to lend"},
		{[]string{"lend", "many"}, 2, "many"},
		{[]string{"lend", "1000TiB"}, 2, "available"},
		{[]string{"lend", "1KiB", "--listen", "nowhere:http:1"}, 2, "--listen"},
		{[]string{"lend", "1KiB", "--keep", "some"}, 2, "--keep"},
		{small(data, t.TempDir()+"/x", "--away", "1MiB,tcp://here"), 2, "write it like tcp://host:9402"},
		{small(data, t.TempDir()+"/x", "--away", "1MiB,cuda:x"), 2, "no number of a GPU"},
		{small(data, t.TempDir()+"/x", "--away", "1MiB,cuda:1"), 1, "only another GPU does"},
		{small(data, t.TempDir()+"/x", "--away", "1MiB,tcp://127.0.0.1:1"), 1, "lender 127.0.0.1:1: "},
	} {
		if status, _, stderr := headroom(c.args...); status != c.status || !strings.Contains(stderr, c.want) {
			t.Errorf("%q: status %d, want %d with %q: %s", c.args, status, c.status, c.want, stderr)
		}
	}
}
