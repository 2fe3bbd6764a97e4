// Package webtest drives the pages of package web in a real browser, for tests.
package webtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
)

// Tab is a tab of a real browser. What the page complains about fails the test.
type Tab struct {
	Context context.Context // for chromedp
	Shots   string          // folder for pictures; empty: they are not kept

	t testing.TB
	*complaints
}

// complaints is what the page has complained about.
type complaints struct {
	mu       sync.Mutex
	problems []string
}

// Of is the same tab in a subtest.
func (b *Tab) Of(t testing.TB) *Tab { return &Tab{b.Context, b.Shots, t, b.complaints} }

// Open starts Chromium without a window, or skips the test where there is none.
// The folder is for pictures; empty: they are not kept.
func Open(t testing.TB, shots string) *Tab {
	t.Helper()
	path := findChromium()
	if path == "" {
		t.Skip("NO BROWSER: install chromium (apt-get install chromium) to run this test")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU)
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 9*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := &Tab{ctx, shots, t, &complaints{}}
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
	t.Cleanup(b.Quiet)
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

// Quiet fails the test if the page complained.
func (b *Tab) Quiet() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.problems) > 0 {
		b.t.Errorf("the page complained:\n%s", strings.Join(b.problems, "\n"))
		b.problems = nil
	}
}

func (b *Tab) Do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.Context, steps...); err != nil {
		b.Quiet()
		b.t.Fatal(err)
	}
}

// Ask runs an action and gives its value.
func Ask[T any](b *Tab, action chromedp.Action[T]) T {
	b.t.Helper()
	out, err := chromedp.Run(b.Context, action)
	if err != nil {
		b.Quiet()
		b.t.Fatal(err)
	}
	return out
}

// Eval gives the value of an expression, of its promise if it is one.
func Eval[T any](b *Tab, expression string) T {
	b.t.Helper()
	return Ask(b, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// Text is what an element shows.
func (b *Tab) Text(selector string) string {
	b.t.Helper()
	return Ask(b, chromedp.Text(chromedp.CSS(selector)))
}

// Goto goes to a page and waits until it shows a record.
func (b *Tab) Goto(url string) {
	b.t.Helper()
	b.Do(chromedp.Navigate(url), chromedp.WaitReady(chromedp.CSS(`body[data-open="true"]`)))
}

// View chooses a view and waits until it is shown.
func (b *Tab) View(name string) {
	b.t.Helper()
	Eval[bool](b, `delete document.body.dataset.ready`)
	b.Do(chromedp.Click(chromedp.CSS("#tab-"+name)), chromedp.WaitReady(chromedp.CSS(fmt.Sprintf(`body[data-ready=%q]`, name))))
}

// Screen sets the size of the screen and its colours.
func (b *Tab) Screen(width, height int, scheme string) {
	b.t.Helper()
	b.Do(chromedp.EmulateViewport(int64(width), int64(height)))
	features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}
	if _, err := chromedp.Call(b.Context, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features}); err != nil {
		b.t.Fatal(err)
	}
	b.Do(chromedp.Sleep(300 * time.Millisecond))
}

// Shot takes a picture of the whole page.
func (b *Tab) Shot(name string) {
	b.t.Helper()
	dir := b.Shots
	if dir == "" {
		dir = b.t.TempDir()
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), Ask(b, chromedp.FullScreenshot(100)), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// Wheel turns the wheel over the middle of an element.
func (b *Tab) Wheel(selector string, deltaY float64) {
	b.t.Helper()
	at := b.Middle(selector)
	p := input.DispatchMouseEventParams{Type: input.DispatchMouseEventTypeMouseWheel, X: at.X, Y: at.Y, DeltaX: 0.01, DeltaY: deltaY} // a zero would be left out
	if _, err := chromedp.Call(b.Context, input.DispatchMouseEvent, p); err != nil {
		b.t.Fatal(err)
	}
}

// Point is a place on the screen, in pixels.
type Point struct{ X, Y float64 }

// Middle is where an element is on the screen, into which it scrolls it.
func (b *Tab) Middle(selector string) Point {
	b.t.Helper()
	return Eval[Point](b, fmt.Sprintf(`(() => { const e = document.querySelector(%q); e.scrollIntoView({block: "center"}); const r = e.getBoundingClientRect(); return {X: r.x + r.width / 2, Y: r.y + r.height / 2}; })()`, selector))
}

// Settled waits until the timeline shows what was asked for.
func (b *Tab) Settled() {
	b.t.Helper()
	Eval[bool](b, `(async () => { do { await new Promise(r => setTimeout(r, 20)); } while (headroom.busy()); return true; })()`)
}
