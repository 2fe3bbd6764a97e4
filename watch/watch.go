// Package watch watches the memory of a machine's GPUs: who holds it, how it
// grows, and when it will be full.
//
// # How a scan goes through
//
//	Source ── Owners ── Watcher.Add ──┬── changes: alarms that opened or closed ── Notifier (webhook, exec)
//	                                  └── Report ── lines, JSON, the metrics, a terminal
//
// A Source gives a Scan: what every GPU holds now, and which processes. It is
// the driver's library, or a record of it (Reader). Owners finds in /proc whose
// the processes are. Watcher keeps a track for each GPU: 24 hours of rollups, the
// growth of its processes, how long it has been idle, and an alarm for each rule.
//
// # Rules and alarms
//
// A rule measures one value from a track; greater is worse. Its alarm opens after
// so many scans in a row at or above one threshold and closes after so many in
// a row below another. What could not be measured changes nothing: a query that
// failed never looks like an idle or an empty GPU. rule.go has the table of rules,
// alarm.go that of the moves.
//
// # Bounds
//
// Sources are not trusted: Add limits the devices, processes and texts it takes
// from a scan, marks figures that cannot be true, and replaces characters that
// would steer a terminal. So a watcher's memory is bounded (about 100 KiB a GPU).
package watch

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Options say how to watch.
type Options struct {
	Host  string    // name of the machine, for reports
	Rules []Setting // nil: Defaults()
	Held  uint64    // bytes from which a GPU counts as held, for idle; 0: 1 GiB
}

// Watcher turns scans into a report and alarms. Its methods may be called from
// several goroutines at once.
type Watcher struct {
	options Options

	mu       sync.Mutex
	host     track // of the scan as a whole
	tracks   []*track
	last     Scan // the newest one
	now      time.Time
	success  time.Time // of the newest scan that did not fail
	scans    uint64
	failures uint64
	opened   map[Rule]uint64 // alarms opened
}

// New makes a watcher that has seen nothing.
func New(o Options) *Watcher {
	if o.Rules == nil {
		o.Rules = Defaults()
	}
	if o.Held == 0 {
		o.Held = 1 << 30
	}
	return &Watcher{options: o, opened: map[Rule]uint64{}}
}

// A clock that is set back by up to slack stands still meanwhile; one that goes
// further back begins a new history.
const slack = time.Minute

// Add takes a scan and returns the alarms that it opened and closed. Scans come
// in the order of their times. It keeps nothing of s.
func (w *Watcher) Add(s Scan) []Change {
	w.mu.Lock()
	defer w.mu.Unlock()
	s = sanitise(s)
	switch {
	case !s.Time.Before(w.now):
		w.now = s.Time
	case w.now.Sub(s.Time) > slack:
		w.now, w.host, w.tracks = s.Time, track{}, nil
	}
	w.last = s
	w.scans++
	if s.Error == "" {
		w.success = w.now
	} else {
		w.failures++
	}
	return w.judge(w.follow(s))
}

// follow brings the tracks up to the scan.
func (w *Watcher) follow(s Scan) []*track {
	w.host.fail(s.Error)
	for _, t := range w.tracks {
		t.present = false
	}
	for _, d := range s.Devices {
		w.track(d).follow(w.now, d, w.options.Held)
	}
	for _, t := range w.tracks {
		if t.present {
			continue
		}
		t.blind()
		if s.Error == "" {
			t.fail("the driver does not list it any more")
		}
	}
	return append([]*track{&w.host}, w.tracks...)
}

// track is the one of a device, a new one if there is none. Beyond the most
// devices that are followed, the one that was missing for longest makes room.
func (w *Watcher) track(d Device) *track {
	i := slices.IndexFunc(w.tracks, func(t *track) bool { return t.device.key() == d.key() })
	if i >= 0 {
		return w.tracks[i]
	}
	if len(w.tracks) >= maxDevices {
		oldest := slices.MinFunc(w.tracks, func(a, b *track) int { return a.seen.Compare(b.seen) })
		w.tracks = slices.DeleteFunc(w.tracks, func(t *track) bool { return t == oldest })
	}
	t := &track{device: d}
	w.tracks = append(w.tracks, t)
	slices.SortStableFunc(w.tracks, func(a, b *track) int { return cmp.Compare(a.device.Index, b.device.Index) })
	return t
}

// judge moves the alarms of the tracks.
func (w *Watcher) judge(tracks []*track) []Change {
	var changes []Change
	for _, t := range tracks {
		for _, setting := range w.options.Rules {
			if setting.OpenScans == 0 {
				continue
			}
			r := ruleOf(setting.Rule)
			value, known := r.measure(t)
			a := t.alarm(setting.Rule)
			moved := a.move(setting, levelOf(setting, value, known))
			if a.open && known {
				a.Value, a.Text = value, t.name()+": "+r.say(t)
			}
			if !moved {
				continue
			}
			a.GPU, a.UUID = t.device.Index, t.device.UUID
			if t == &w.host {
				a.GPU = HostGPU
			}
			c := Change{Host: w.options.Host, Time: w.now, Event: Closed}
			if a.open {
				a.Since, c.Event = w.now, Opened
				w.opened[setting.Rule]++
			}
			c.Alarm = a.Alarm
			changes = append(changes, c)
		}
	}
	return changes
}
