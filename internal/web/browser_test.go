package web_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

var shots = flag.String("shots", "", "keep the screenshots of the browser tests in this folder")

// browser is a tab of a real browser. What the page complains about fails the
// test.
type browser struct {
	t   testing.TB
	ctx context.Context
	*complaints
}

// complaints is what the page has complained about.
type complaints struct {
	mu       sync.Mutex
	problems []string
}

// of is the same browser in a subtest.
func (b *browser) of(t testing.TB) *browser { return &browser{t, b.ctx, b.complaints} }

// openBrowser starts Chromium without a window, or skips the test where there
// is none.
func openBrowser(t testing.TB) *browser {
	t.Helper()
	path := findChromium()
	if path == "" {
		t.Skip("NO BROWSER: install chromium (apt-get install chromium) to run this test")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU)
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 3*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := &browser{t, ctx, &complaints{}}
	messages := chromedp.Console(ctx)
	go func() {
		for m, err := range messages {
			if err != nil {
				return
			}
			if m.Type == chromedp.ConsoleError || m.Type == chromedp.ConsoleException || m.Type == chromedp.ConsoleWarning {
				b.complain(fmt.Sprintf("%s: %s (%s:%d)", m.Type, m.Text, m.URL, m.Line+1))
			}
		}
	}()
	t.Cleanup(b.quiet)
	return b
}

func findChromium() string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

func (b *complaints) complain(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.problems = append(b.problems, text)
}

// quiet fails the test if the page complained.
func (b *browser) quiet() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.problems) > 0 {
		b.t.Errorf("the page complained:\n%s", strings.Join(b.problems, "\n"))
		b.problems = nil
	}
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		b.quiet()
		b.t.Fatal(err)
	}
}

// ask runs an action and gives its value.
func ask[T any](b *browser, action chromedp.Action[T]) T {
	b.t.Helper()
	out, err := chromedp.Run(b.ctx, action)
	if err != nil {
		b.quiet()
		b.t.Fatal(err)
	}
	return out
}

// eval gives the value of an expression, of its promise if it is one.
func eval[T any](b *browser, expression string) T {
	b.t.Helper()
	return ask(b, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// text is what an element shows.
func (b *browser) text(selector string) string {
	b.t.Helper()
	return ask(b, chromedp.Text(chromedp.CSS(selector)))
}

// open goes to a page and waits until it shows a record.
func (b *browser) open(url string) {
	b.t.Helper()
	b.do(chromedp.Navigate(url), chromedp.WaitReady(chromedp.CSS(`body[data-open="true"]`)))
}

// tab chooses a view and waits until it is shown.
func (b *browser) tab(name string) {
	b.t.Helper()
	eval[bool](b, `delete document.body.dataset.ready`)
	b.do(chromedp.Click(chromedp.CSS("#tab-"+name)), chromedp.WaitReady(chromedp.CSS(fmt.Sprintf(`body[data-ready=%q]`, name))))
}

// screen sets the size of the screen and its colours.
func (b *browser) screen(width, height int, scheme string) {
	b.t.Helper()
	b.do(chromedp.EmulateViewport(int64(width), int64(height)))
	features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features}); err != nil {
		b.t.Fatal(err)
	}
	b.do(chromedp.Sleep(300 * time.Millisecond))
}

// shot takes a picture of the whole page.
func (b *browser) shot(name string) {
	b.t.Helper()
	dir := *shots
	if dir == "" {
		dir = b.t.TempDir()
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), ask(b, chromedp.FullScreenshot(100)), 0o644); err != nil {
		b.t.Fatal(err)
	}
}
