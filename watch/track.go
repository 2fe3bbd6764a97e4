package watch

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/headroom-go/headroom/internal/size"
)

// track is what is known of a device from scan to scan.
type track struct {
	device   Device // as last seen
	seen     time.Time
	present  bool // in the last scan, and its query did not fail
	failed   int  // queries in a row that failed
	reason   string
	history  history
	forecast Forecast
	growth   growth
	rested   time.Time // the last scan, if it saw the device idle
	idle     time.Duration
	idling   bool // whether idle is known of the last scan
	alarms   []*alarm
}

// fail notes whether a query failed, and why.
func (t *track) fail(why string) {
	t.reason = why
	t.failed++
	if why == "" {
		t.failed = 0
	}
}

// blind notes a scan that told nothing of the device.
func (t *track) blind() {
	t.present, t.idling, t.rested, t.forecast = false, false, time.Time{}, Forecast{}
}

// follow takes the device's part of a scan.
func (t *track) follow(now time.Time, d Device, held uint64) {
	t.fail(d.Error)
	t.seen = now
	if d.Error != "" {
		t.blind()
		t.present = true
		t.device.Index, t.device.Error = d.Index, d.Error
		return
	}
	t.present = true
	t.device = d
	t.history.add(now, d.UsedBytes, d.Utilisation)
	t.forecast = foresee(t.history.window(now), d.FreeBytes)
	t.growth.follow(now, t.device.Processes)
	t.rest(now, held)
}

// rest counts how long memory has been held without work: the time between two
// successive scans that both saw it so. A scan that saw nothing stops the clock.
func (t *track) rest(now time.Time, held uint64) {
	t.idling = t.device.Utilisation != nil
	if !t.idling {
		t.rested = time.Time{}
		return
	}
	holds, known := t.device.living()
	if !known {
		holds = t.device.UsedBytes
	}
	if *t.device.Utilisation > 0 || holds < held {
		t.idle, t.rested = 0, time.Time{}
		return
	}
	if !t.rested.IsZero() {
		t.idle += now.Sub(t.rested)
	}
	t.rested = now
}

// alarm is the one of a rule.
func (t *track) alarm(r Rule) *alarm {
	for _, a := range t.alarms {
		if a.Rule == r {
			return a
		}
	}
	a := &alarm{Alarm: Alarm{Rule: r}}
	t.alarms = append(t.alarms, a)
	return a
}

// ok says whether the last scan told of the device.
func (t *track) ok() bool { return t.present && t.device.Error == "" && t.device.TotalBytes > 0 }

func (t *track) name() string {
	if t.device.TotalBytes == 0 && t.device.Error == "" {
		return "all GPUs"
	}
	return t.device.Label()
}

func (t *track) share() (float64, bool) {
	if !t.ok() {
		return 0, false
	}
	return float64(t.device.UsedBytes) / float64(t.device.TotalBytes), true
}

// urgency is one over the seconds until the memory is full.
func (t *track) urgency() (float64, bool) {
	if !t.ok() {
		return 0, false
	}
	if !t.forecast.Grows() {
		return 0, true
	}
	return 1 / max(t.forecast.FullInSeconds, 1), true
}

func (t *track) unowned() (float64, bool) {
	n, known := t.device.Unowned()
	return float64(n), known && t.ok()
}

func (t *track) idleFor() (float64, bool) { return t.idle.Seconds(), t.ok() && t.idling }

func (t *track) failedFor() (float64, bool) { return float64(t.failed), true }

func (t *track) sayFull() string {
	d := &t.device
	text := fmt.Sprintf("%s of %s in use (%.0f %%)", size.Format(d.UsedBytes), size.Format(d.TotalBytes), 100*float64(d.UsedBytes)/float64(d.TotalBytes))
	if p := greatest(d.Processes, func(p Process) int64 { return int64(p.Bytes) }); p != nil {
		text += fmt.Sprintf("; the most, %s, by %s", size.Format(p.Bytes), p.who())
	}
	return text
}

func (t *track) sayGrowing() string {
	text := "memory grows by " + t.forecast.String()
	if p := greatest(t.device.Processes, func(p Process) int64 { return p.GrownBytes }); p != nil {
		text += fmt.Sprintf("; in ten minutes %s by %s", size.Format(uint64(p.GrownBytes)), p.who())
	}
	return text
}

func (t *track) sayOrphaned() string {
	n, _ := t.device.Unowned()
	text := size.Format(n) + " held by no living process"
	var dead []string
	for _, p := range t.device.Processes {
		if p.Dead {
			dead = append(dead, fmt.Sprint(p.PID))
		}
	}
	if len(dead) > 0 {
		text += "; the driver still lists the dead " + some(dead, 5)
	}
	return text
}

func (t *track) sayIdle() string {
	var holders []string
	for _, p := range t.device.Processes {
		if !p.Dead {
			holders = append(holders, p.who())
		}
	}
	text := fmt.Sprintf("%s held and nothing computed for %s", size.Format(t.device.UsedBytes), about(t.idle.Seconds()))
	if len(holders) > 0 {
		text += ", by " + some(holders, 3)
	}
	return text
}

func (t *track) sayFailed() string {
	return fmt.Sprintf("%d queries in a row failed: %s", t.failed, t.reason)
}

// greatest is the process with the greatest value above zero, nil if none.
func greatest(list []Process, value func(Process) int64) *Process {
	var best *Process
	for i := range list {
		if v := value(list[i]); v > 0 && (best == nil || v > value(*best)) {
			best = &list[i]
		}
	}
	return best
}

// some joins texts, at most n of them.
func some(texts []string, n int) string {
	if more := len(texts) - n; more > 0 {
		texts = append(slices.Clone(texts[:n]), fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, ", ")
}

// who names a process by all that is known of its owner.
func (p *Process) who() string {
	var parts []string
	for _, part := range []struct{ label, text string }{{"", p.User}, {"", p.Command}, {"job ", p.Job}, {"pod ", p.Pod}, {p.Runtime + " ", p.Container}} {
		if part.text != "" {
			parts = append(parts, strings.TrimLeft(part.label+part.text, " "))
		}
	}
	parts = append(parts, fmt.Sprintf("PID %d", p.PID))
	if p.MPS {
		parts = append(parts, "under MPS")
	}
	return strings.Join(parts, " ")
}
