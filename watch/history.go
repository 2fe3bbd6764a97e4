package watch

import "time"

// rollup is what a device held in one stretch of time.
type rollup struct {
	slot  int64  // which stretch: its time divided by the ring's width
	scans int64  // that fell into it
	used  uint64 // the most bytes in use
	busy  int64  // the sum of the utilisations
	known int64  // how many there were
}

// ring holds the rollups of the newest stretches. Its length never changes.
type ring struct {
	width time.Duration
	slots []rollup // the one of slot s at s modulo the length
}

// history is 24 hours of a device in bounded memory: one hour in stretches of
// ten seconds, and a day in stretches of a minute.
type history struct{ fine, coarse ring }

// The rings.
const (
	fineWidth, fineSlots     = 10 * time.Second, 360
	coarseWidth, coarseSlots = time.Minute, 1440
)

// growWindow is the time over which growth is measured.
const growWindow = 10 * time.Minute

func (h *history) add(now time.Time, used uint64, utilisation *int) {
	if h.fine.slots == nil {
		h.fine = ring{fineWidth, make([]rollup, fineSlots)}
		h.coarse = ring{coarseWidth, make([]rollup, coarseSlots)}
	}
	h.fine.add(now, used, utilisation)
	h.coarse.add(now, used, utilisation)
}

func (r *ring) slot(t time.Time) int64 { return t.UnixNano() / int64(r.width) }

// at is the place of a slot.
func (r *ring) at(slot int64) *rollup {
	n := int64(len(r.slots))
	return &r.slots[(slot%n+n)%n]
}

func (r *ring) add(now time.Time, used uint64, utilisation *int) {
	slot := r.slot(now)
	u := r.at(slot)
	if u.slot != slot {
		*u = rollup{slot: slot}
	}
	u.scans++
	u.used = max(u.used, used)
	if utilisation != nil {
		u.busy += int64(*utilisation)
		u.known++
	}
}

// get is the rollup of a slot, nil if nothing was seen then.
func (r *ring) get(slot int64) *rollup {
	if u := r.at(slot); u.slot == slot && u.scans > 0 {
		return u
	}
	return nil
}

// window is the course of the memory in use over the newest growWindow.
func (h *history) window(now time.Time) []point {
	var points []point
	last := h.fine.slot(now)
	for slot := last - int64(growWindow/fineWidth); slot <= last; slot++ {
		if u := h.fine.get(slot); u != nil {
			points = append(points, point{float64(slot) * fineWidth.Seconds(), float64(u.used)})
		}
	}
	return points
}

// Sample is what a device held in a part of a course of time.
type Sample struct {
	UsedBytes   uint64  // the most
	Utilisation float64 // the mean, per cent; −1: unknown
	Known       bool    // false: nothing was seen
}

// course cuts the time until now in n equal parts and says what was seen in each.
// The span is at most 24 hours.
func (h *history) course(now time.Time, span time.Duration, n int) []Sample {
	samples := make([]Sample, n)
	r := &h.coarse
	if span <= fineWidth*fineSlots {
		r = &h.fine
	}
	if len(r.slots) == 0 {
		return samples
	}
	last, slots := r.slot(now), int64(min(span/r.width, time.Duration(len(r.slots))))
	for i := range samples {
		from, to := slots*int64(i)/int64(n), slots*int64(i+1)/int64(n)
		samples[i] = r.merge(last-slots+1+from, last-slots+1+max(to, from+1))
	}
	return samples
}

// merge is the sample of slots from up to, without, to.
func (r *ring) merge(from, to int64) Sample {
	s := Sample{Utilisation: -1}
	var busy, known int64
	for slot := from; slot < to; slot++ {
		if u := r.get(slot); u != nil {
			s.Known, s.UsedBytes = true, max(s.UsedBytes, u.used)
			busy, known = busy+u.busy, known+u.known
		}
	}
	if known > 0 {
		s.Utilisation = float64(busy) / float64(known)
	}
	return s
}

// growth remembers what each process held now and then over growWindow.
type growth map[int][]held

type held struct {
	time  time.Time
	bytes uint64
}

// growthStep is the time between two memories.
const growthStep = growWindow / 8

// follow notes what processes hold and fills in how they grew.
func (g *growth) follow(now time.Time, processes []Process) {
	next := growth{}
	for i := range processes {
		p := &processes[i]
		if p.BytesUnknown {
			continue
		}
		list := (*g)[p.PID]
		for len(list) > 1 && now.Sub(list[1].time) >= growWindow {
			list = list[1:]
		}
		if len(list) == 0 || now.Sub(list[len(list)-1].time) >= growthStep {
			list = append(list, held{now, p.Bytes})
		}
		next[p.PID] = list
		p.GrownBytes = int64(p.Bytes) - int64(list[0].bytes)
	}
	*g = next
}
