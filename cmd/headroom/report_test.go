package main

import (
	"bufio"
	"context"
	"image/png"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReport writes a page and pictures from a recorded snapshot.
func TestReport(t *testing.T) {
	dir := t.TempDir()
	in, page, svg, picture := record(t, 8<<20, nil), filepath.Join(dir, "r.html"), filepath.Join(dir, "r.svg"), filepath.Join(dir, "r.png")
	status, stdout, stderr := headroom("report", in, in, "-o", page, "--svg", svg, "--png", picture, "--what-if", "max_split_size_mb:64")
	if status != 0 || stdout != "" || strings.Count(stderr, "wrote") != 3 {
		t.Fatalf("status %d: %s%s", status, stdout, stderr)
	}
	text, err := os.ReadFile(page)
	if err != nil || !strings.HasPrefix(string(text), "<!doctype html>") || !strings.Contains(string(text), `"name":"max_split_size_mb:64"`) || !strings.Contains(string(text), "columns-1") {
		t.Errorf("the page is not what was asked for (%v)", err)
	}
	if text, err := os.ReadFile(svg); err != nil || !strings.HasPrefix(string(text), "<svg") {
		t.Errorf("the SVG: %v", err)
	}
	f, err := os.Open(picture)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := png.Decode(f); err != nil {
		t.Error(err)
	}
}

// TestReportPictureAlone writes no page that nobody asked for.
func TestReportPictureAlone(t *testing.T) {
	in := record(t, 8<<20, nil)
	t.Chdir(t.TempDir())
	if status, _, stderr := headroom("report", in, "--png", "a.png"); status != 0 {
		t.Fatal(stderr)
	}
	if _, err := os.Stat("report.html"); err == nil {
		t.Error("there is a page")
	}
}

func TestReportMisuse(t *testing.T) {
	in := record(t, 8<<20, nil)
	for name, args := range map[string][]string{
		"no file":       {"report"},
		"over input":    {"report", in, "-o", in},
		"twice":         {"report", in, "--svg", "x", "--png", "x"},
		"settings":      {"report", in, "--what-if", "no_such:1"},
		"serve nothing": {"serve"},
		"serve two":     {"serve", in, in},
		"serve nowhere": {"serve", in, "--addr", "nonsense"},
	} {
		if status, _, stderr := headroom(args...); status != 2 || stderr == "" {
			t.Errorf("%s: status %d, %q", name, status, stderr)
		}
	}
	for name, args := range map[string][]string{"missing": {"report", "no-such-file"}, "serve missing": {"serve", "no-such-file"}} {
		if status, _, stderr := headroom(args...); status != 1 || stderr == "" {
			t.Errorf("%s: status %d, %q", name, status, stderr)
		}
	}
}

// TestServe asks the command for its page and ends it as a signal does.
func TestServe(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	out, stdout := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- serve(ctx, record(t, 8<<20, nil), "127.0.0.1:0", nil, stdout, io.Discard) }()
	line, err := bufio.NewReader(out).ReadString('\n')
	address, ok := strings.CutPrefix(line, "page    ")
	if err != nil || !ok {
		t.Fatal(err)
	}
	answer, err := http.Get(strings.TrimSpace(address))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if page, err := io.ReadAll(answer.Body); err != nil || !strings.Contains(string(page), `"mode":"serve"`) {
		t.Errorf("the page: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the end of the server: %v", err)
	}
}
