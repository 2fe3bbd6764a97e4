package watch

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/headroom-go/headroom/internal/size"
)

// Report is what a watcher knows after a scan. Its JSON form may be read as a
// record's line.
type Report struct {
	Host        string          `json:"host,omitempty"`
	Time        time.Time       `json:"time"`
	Error       string          `json:"error,omitempty"` // why the last query failed as a whole
	Devices     []DeviceReport  `json:"devices"`         // those that an earlier scan listed are in it, too
	Alarms      []Alarm         `json:"alarms"`          // the open ones
	LastSuccess time.Time       `json:"last_success"`    // zero: none
	Scans       uint64          `json:"scans"`
	Failures    uint64          `json:"failures"` // queries that failed as a whole
	Opened      map[Rule]uint64 `json:"-"`        // alarms that opened
}

// DeviceReport is what is known of a device. Where its query failed, Error is
// set and all figures are zero.
type DeviceReport struct {
	Device
	UnownedBytes *uint64   `json:"unowned_bytes,omitempty"` // held by no living process; nil: unknown
	IdleSeconds  *float64  `json:"idle_seconds,omitempty"`  // with memory held; nil: unknown
	Forecast     *Forecast `json:"forecast,omitempty"`      // nil: does not grow, as far as one can tell
}

// Report tells what is known now.
func (w *Watcher) Report() Report {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := Report{
		Host: w.options.Host, Time: w.now, Error: w.last.Error, LastSuccess: w.success, Scans: w.scans, Failures: w.failures,
		Devices: []DeviceReport{}, Alarms: []Alarm{}, Opened: maps.Clone(w.opened),
	}
	for _, t := range w.tracks {
		r.Devices = append(r.Devices, t.report(w.last.Error))
	}
	for _, t := range append([]*track{&w.host}, w.tracks...) {
		for _, a := range t.alarms {
			if a.open {
				r.Alarms = append(r.Alarms, a.Alarm)
			}
		}
	}
	return r
}

func (t *track) report(scanError string) DeviceReport {
	d := t.device
	if !t.ok() {
		why := t.reason
		if scanError != "" {
			why = scanError
		}
		return DeviceReport{Device: Device{Index: d.Index, Instance: d.Instance, UUID: d.UUID, Name: d.Name, Error: why}}
	}
	d.Processes = slices.Clone(d.Processes)
	slices.SortStableFunc(d.Processes, func(a, b Process) int {
		if a.Bytes != b.Bytes {
			return int(min(max(int64(b.Bytes)-int64(a.Bytes), -1), 1))
		}
		return a.PID - b.PID
	})
	r := DeviceReport{Device: d}
	if n, known := d.Unowned(); known {
		r.UnownedBytes = &n
	}
	if s, known := t.idleFor(); known {
		r.IdleSeconds = &s
	}
	if f := t.forecast; f.Grows() {
		r.Forecast = &f
	}
	return r
}

// Course cuts the time until the last scan in n equal parts and says what the
// i-th device of the report held in each. The span is at most 24 hours.
func (w *Watcher) Course(i int, span time.Duration, n int) []Sample {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i >= len(w.tracks) {
		return make([]Sample, n)
	}
	return w.tracks[i].history.course(w.now, span, n)
}

// Alarmed lists the open alarms of a device.
func (r *Report) Alarmed(d *DeviceReport) []Alarm {
	var list []Alarm
	for _, a := range r.Alarms {
		if a.GPU == d.Index && a.UUID == d.UUID {
			list = append(list, a)
		}
	}
	return list
}

// Lines is the report in a line for each GPU, and one if the query failed.
func (r *Report) Lines() []string {
	var lines []string
	for i := range r.Devices {
		lines = append(lines, r.line(&r.Devices[i]))
	}
	switch {
	case r.Error != "" && len(lines) == 0:
		lines = []string{"query failed: " + r.Error}
	case len(lines) == 0:
		lines = []string{"no GPU"}
	}
	return lines
}

func (r *Report) line(d *DeviceReport) string {
	parts := []string{strings.TrimSpace(d.Label() + "  " + d.Name)}
	if d.Error != "" {
		parts = append(parts, "query failed: "+d.Error)
	} else {
		parts = append(parts, d.Figures()...)
		parts = append(parts, d.holders())
	}
	for _, a := range r.Alarmed(d) {
		parts = append(parts, strings.ToUpper(string(a.Rule)))
	}
	if d.Forecast != nil {
		parts = append(parts, "grows by "+d.Forecast.String())
	}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "  ")
}

// Figures are the texts for the memory, the utilisation and the temperature.
func (d *DeviceReport) Figures() []string {
	figures := []string{
		fmt.Sprintf("%s of %s", size.Format(d.UsedBytes), size.Format(d.TotalBytes)),
		fmt.Sprintf("%.0f%%", 100*float64(d.UsedBytes)/float64(d.TotalBytes)),
	}
	if d.Utilisation != nil {
		figures = append(figures, fmt.Sprintf("busy %d%%", *d.Utilisation))
	}
	if d.Temperature != nil {
		figures = append(figures, fmt.Sprintf("%d°C", *d.Temperature))
	}
	return figures
}

// holders names the processes that hold memory, the greatest first.
func (d *DeviceReport) holders() string {
	if d.ProcessesError != "" {
		return "processes unknown: " + d.ProcessesError
	}
	var list []string
	for i := range d.Processes {
		p := &d.Processes[i]
		text := p.who() + " " + p.Amount()
		if p.Dead {
			text += " (dead)"
		}
		list = append(list, text)
	}
	return some(list, 3)
}

// Amount is the text for how much a process holds.
func (p *Process) Amount() string {
	if p.BytesUnknown {
		return "?"
	}
	return size.Format(p.Bytes)
}
