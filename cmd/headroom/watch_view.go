package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/watch"
)

// view shows a watch on a terminal. It draws every picture over the one before
// with a single write and clears only what is left of that, so that nothing
// flickers.
type view struct {
	w       io.Writer
	size    func() (columns, rows int)
	colour  bool
	watcher *watch.Watcher
	keys    bool // there are some

	mu   sync.Mutex // draws come from the scans and from the keys
	span time.Duration
	done bool // the source has no more
}

// The spans of time that the view shows.
const (
	shortSpan = time.Hour
	longSpan  = 24 * time.Hour
)

// What steers the terminal: another screen without a cursor, and back.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearRight  = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// openView takes the terminal. quit is called when the user asks to leave.
// The function that it returns gives the terminal back.
func openView(stdout io.Writer, stdin io.Reader, w *watch.Watcher, quit func()) (watchOutput, func()) {
	f := stdout.(*os.File) // it is a terminal
	v := &view{w: stdout, colour: colourWanted(), watcher: w, span: shortSpan, size: func() (int, int) {
		columns, rows, err := term.GetSize(int(f.Fd()))
		if err != nil || columns <= 0 || rows <= 0 { // some terminals don't say
			return 80, 24
		}
		return columns, rows
	}}
	restore := func() {}
	if keys := keyboard(stdin); keys != nil {
		if state, err := term.MakeRaw(int(keys.Fd())); err == nil {
			restore = func() { _ = term.Restore(int(keys.Fd()), state) }
			v.keys = true
			go v.listen(keys, quit)
		}
	}
	fmt.Fprint(stdout, enterScreen)
	return v, func() { fmt.Fprint(stdout, leaveScreen); restore() }
}

// keyboard is the terminal that keys come from, nil if there is none.
func keyboard(stdin io.Reader) *os.File {
	if f, ok := stdin.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return f
	}
	f, err := os.Open("/dev/tty") // standard input is a record
	if err != nil {
		return nil
	}
	return f
}

// listen does what keys ask for until there are no more.
func (v *view) listen(keys io.Reader, quit func()) {
	const interrupt = 3 // Ctrl-C, where the terminal does not make a signal of it
	var key [1]byte
	for {
		if n, err := keys.Read(key[:]); n == 0 || err != nil {
			return
		}
		switch key[0] {
		case 'q', 'Q', interrupt:
			quit()
			return
		case 'h', 'H':
			v.mu.Lock()
			v.span = shortSpan + longSpan - v.span
			v.mu.Unlock()
			_ = v.draw() // the next scan's fails, too
		}
	}
}

func (v *view) scan([]watch.Change) error { return v.draw() }

// end shows the last picture until the user leaves.
func (v *view) end(ctx context.Context) error {
	v.mu.Lock()
	v.done = true
	v.mu.Unlock()
	if err := v.draw(); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// draw draws the newest picture.
func (v *view) draw() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	columns, rows := v.size()
	lines := v.fit(v.watcher.Report(), columns, rows)
	_, err := io.WriteString(v.w, home+strings.Join(lines, clearRight+"\r\n")+clearRight+clearBelow)
	return err
}

// fit makes the picture with as much as has room: fewer and fewer processes of
// each GPU, then no courses, then what is on top.
func (v *view) fit(r watch.Report, columns, rows int) []string {
	var lines []string
	for _, most := range []int{1000, 16, 8, 4, 2, 1, 0, -1} {
		if lines = v.picture(r, columns, most); len(lines) <= rows {
			return lines
		}
	}
	return lines[:max(rows, 0)]
}

// picture makes the lines of a picture, with at most so many processes of a GPU;
// −1 leaves out the courses, too.
func (v *view) picture(r watch.Report, columns, most int) []string {
	var b bytes.Buffer
	p := &page{w: &b, width: max(columns, 1), colour: v.colour}
	v.head(p, r)
	if len(r.Devices) == 0 {
		p.line(bad, "%s", r.Lines()[0])
	}
	for i := range r.Devices {
		p.write(plain, "")
		v.device(p, &r, i, most)
	}
	return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
}

func (v *view) head(p *page, r watch.Report) {
	parts := []string{"headroom watch"}
	for _, part := range []string{r.Host, r.Time.Format("2006-01-02 15:04:05")} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	if v.done {
		parts = append(parts, "end of the record")
	}
	if n := len(r.Alarms); n > 0 {
		parts = append(parts, fmt.Sprintf("alarms %d", n))
	}
	if v.keys {
		parts = append(parts, "q quit  h "+spanText(shortSpan+longSpan-v.span))
	}
	p.line(bold, "%s", strings.Join(parts, "  "))
	for _, a := range r.Alarms {
		if a.GPU == watch.HostGPU {
			p.line(bad, "%s since %s: %s", strings.ToUpper(string(a.Rule)), a.Since.Format("15:04"), a.Text)
		}
	}
}

func spanText(d time.Duration) string { return fmt.Sprintf("%.0f h", d.Hours()) }

func (v *view) device(p *page, r *watch.Report, i, most int) {
	d := &r.Devices[i]
	title := strings.TrimSpace(d.Label() + "  " + d.Name)
	if d.Error != "" {
		p.line(bad, "%s  query failed: %s", title, d.Error)
	} else {
		p.line(bold, "%s  %s", title, strings.Join(d.Figures(), "  "))
	}
	if most >= 0 {
		v.course(p, d, i)
	}
	growing := false
	for _, a := range r.Alarmed(d) {
		growing = growing || a.Rule == watch.Growing
		_, text, _ := strings.Cut(a.Text, ": ") // the GPU's number stands above
		p.line(bad, "  %s since %s: %s", strings.ToUpper(string(a.Rule)), a.Since.Format("15:04"), text)
	}
	if d.Forecast != nil && !growing {
		p.line(plain, "  grows by %s", d.Forecast)
	}
	writeHolders(p, d, most)
}

// course draws what the device held and did.
func (v *view) course(p *page, d *watch.DeviceReport, i int) {
	const label = "  memory "
	room := min(p.width-len(label)-len("  24 h"), 120)
	if room < 8 {
		return
	}
	var memory, busy strings.Builder
	for _, s := range v.watcher.Course(i, v.span, room) {
		memory.WriteRune(bar(s.Known && d.TotalBytes > 0, float64(s.UsedBytes)/float64(max(d.TotalBytes, 1))))
		busy.WriteRune(bar(s.Known && s.Utilisation >= 0, s.Utilisation/100))
	}
	p.write(plain, label+memory.String()+"  "+spanText(v.span))
	p.write(plain, "  busy   "+busy.String()+"  "+spanText(v.span))
}

// bar is a character for a share of 1, a blank for an unknown one.
func bar(known bool, share float64) rune {
	const bars = "▁▂▃▄▅▆▇█"
	if !known {
		return ' '
	}
	n := utf8.RuneCountInString(bars)
	return []rune(bars)[min(max(int(share*float64(n)), 0), n-1)]
}

// writeHolders writes the processes that hold the most memory of a device.
func writeHolders(p *page, d *watch.DeviceReport, most int) {
	if d.ProcessesError != "" {
		p.line(plain, "  processes unknown: %s", d.ProcessesError)
	}
	shown := d.Processes[:min(len(d.Processes), max(most, 0))]
	var rows [][]string
	for i := range shown {
		h := &shown[i]
		grown := ""
		if h.GrownBytes > 0 {
			grown = "+" + size.Format(uint64(h.GrownBytes)) + "/10 min"
		}
		user := h.User
		if h.Dead {
			user = "(dead)"
		}
		rows = append(rows, []string{"", fmt.Sprint(h.PID), h.Amount(), grown, user, place(h), h.Command})
	}
	p.table("lrrlllm", rows...)
	if more := len(d.Processes) - len(shown); more > 0 {
		p.line(plain, "  and %d more processes", more)
	}
}

// place says where a process runs: under MPS, and its job, pod or container.
func place(h *watch.Process) string {
	where := ""
	switch {
	case h.Job != "":
		where = "job " + h.Job
	case h.Pod != "":
		where = "pod " + h.Pod
	case h.Container != "":
		where = h.Runtime + " " + h.Container
	}
	if h.MPS {
		where = "MPS " + where
	}
	return strings.TrimSpace(where)
}
