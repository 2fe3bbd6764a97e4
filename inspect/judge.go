package inspect

import (
	"fmt"
	"strings"

	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/trace"
)

// leakShare is the part of the live bytes that growth must hold to be the
// verdict.
const leakShare = 0.05

// judge gives the verdict, with its arithmetic and what to do.
func (e *evidence) judge(r *Report, growth []Growth) {
	var perStep, total uint64
	for _, g := range growth {
		perStep += g.PerStepBytes
		total += g.PerStepBytes * uint64(g.Steps)
	}
	switch {
	case total > 0 && float64(total) >= leakShare*float64(e.live):
		g := growth[0]
		r.Verdict = Leak
		r.Summary = fmt.Sprintf("%s more lives after every step (%s over %d steps), the most of it allocated by %s", size.Format(perStep), size.Format(total), g.Steps, g.Site)
		if e.oom >= 0 {
			r.Summary += ", until " + e.failure()
		}
		r.Actions = append(r.Actions, leakActions(g)...)
		r.Unhelpful = append(r.Unhelpful, "allocator settings and torch.cuda.empty_cache(): the memory is in use, not cached")
	case e.oom >= 0:
		e.judgeOOM(r)
	case !e.h.told() && e.h.snapshot.Cut == nil:
		r.Verdict = Unknown
		e.judgeMoment(r)
	case e.h.snapshot.Cut != nil:
		r.Verdict = Unknown
		r.Summary = "the file is cut, and what stands before its end tells of no failure: " + e.atPeak()
	default:
		r.Verdict = Healthy
		r.Summary = "nothing failed and nothing grows: " + e.atPeak()
		e.hint(r)
	}
}

// atPeak says what was live at the peak and what was reserved, then and at
// most, which is what tools beside show.
func (e *evidence) atPeak() string {
	if e.peakReserved == 0 {
		return fmt.Sprintf("%s live at the peak; the record does not tell what was reserved", size.Format(e.live))
	}
	text := fmt.Sprintf("%s live at the peak, with %s reserved", size.Format(e.live), size.Format(e.reserved))
	if e.peakReserved > e.reserved {
		text += fmt.Sprintf(" then and %s at most", size.Format(e.peakReserved))
	}
	return text
}

// A word is said where more than muchReserved times what is live at the peak is
// reserved, and more than muchUnused bytes beyond it.
const (
	muchReserved = 1.5
	muchUnused   = 256 << 20
)

// hint says that a job that is well takes much more than it uses.
func (e *evidence) hint(r *Report) {
	if e.live == 0 || float64(e.peakReserved) < muchReserved*float64(e.live) || e.peakReserved-e.live < muchUnused {
		return
	}
	r.Actions = append(r.Actions, fmt.Sprintf("to take less of the device (%.1f times what is live at the peak was reserved): torch.cuda.empty_cache() once between phases, the largest batch first, or other settings",
		float64(e.peakReserved)/float64(e.live)))
}

// doubt says of a record that contradicts itself that it does, and calls it
// anything but healthy.
func (e *evidence) doubt(r *Report) {
	n, first := Check(e.h.snapshot).Contradictions()
	if n == 0 {
		return
	}
	text := fmt.Sprintf("this record contradicts itself in %s (first: %s), so that its figures may be wrong: headroom check lists them", counted(n, "place"), first)
	if r.Verdict == Healthy {
		r.Verdict = Unknown
		r.Summary = text + "; by them, " + r.Summary
		return
	}
	r.Summary += "; but " + text
}

func leakActions(g Growth) []string {
	where := g.Site.From
	if where == "" {
		where = g.Site.At
	}
	return []string{
		fmt.Sprintf("find what keeps the result of %s from one step to the next (a list, a dictionary, an attribute), and keep numbers instead of tensors: .item(), or .detach().cpu()", where),
		"where no gradient is needed, run it under torch.no_grad()",
	}
}

// failure gives the figures of the failed request.
func (e *evidence) failure() string {
	return fmt.Sprintf("%s was asked for with %s free on the device and %s reserved, of it %s live and %s free",
		size.Format(e.request), size.Format(e.free), size.Format(e.reserved), size.Format(e.live), size.Format(e.reserved-min(e.reserved, e.live+e.pending)))
}

// judgeOOM judges a failed request by its figures.
func (e *evidence) judgeOOM(r *Report) {
	request, free, slack, figures := e.request, e.free, *r.CachedBytes, e.failure()
	switch {
	case free >= request:
		r.Verdict = Limit
		r.Summary = figures + ": the device had room, so that it was a limit (a memory fraction) that refused it"
		r.Actions = append(r.Actions, "raise the limit (torch.cuda.set_per_process_memory_fraction, or per_process_memory_fraction in the settings), or use less than it allows")
	case slack >= request && 10*slack >= e.reserved:
		r.Verdict = Fragmentation
		r.Summary = figures + ": enough together, in pieces that are each too small"
	case free+slack >= request:
		r.Verdict = Tight
		r.Summary = figures + ": enough together, but hardly more"
	default:
		r.Verdict = Capacity
		r.Summary = fmt.Sprintf("%s: even perfect packing misses %s", figures, size.Format(request-free-slack))
	}
	if len(r.Causes) > 0 {
		r.Actions = append(r.Actions, fmt.Sprintf("use less where most is: %s holds %s", strings.ReplaceAll(r.Causes[0].What, "_", " "), size.Format(r.Causes[0].Bytes)))
	}
	if slack < request {
		r.Unhelpful = append(r.Unhelpful, fmt.Sprintf("settings against fragmentation alone: they can win back %s at most, %s less than was asked for", size.Format(slack), size.Format(request-slack)))
	}
}

// worthTrying is the share of the reserved memory that must lie free before
// other settings are tried.
const worthTrying = 0.1

// whatIf replays the trace under other settings and on Headroom's allocator,
// where something failed or much is reserved in vain. After a failure the
// capacity is what the job could have at that moment. A record of Headroom's
// allocator is compared with nothing: the settings are PyTorch's. Nor is one without
// history, of which nothing can be replayed.
func (e *evidence) whatIf(r *Report) {
	if e.h.snapshot.Settings.Backend != "" || !e.h.told() {
		return
	}
	recorded, err := e.h.Replay(Options{})
	if err != nil {
		return
	}
	vain := float64(recorded.PeakReservedBytes) - float64(recorded.PeakLiveBytes)
	if e.oom < 0 && vain < worthTrying*float64(recorded.PeakReservedBytes) {
		return
	}
	var capacity uint64
	if e.oom >= 0 {
		capacity = recorded.PeakReservedBytes
		if e.free < e.request {
			capacity = max(capacity, e.reserved+e.free)
		}
	}
	conf, name := e.h.Conf, "expandable_segments:True"
	if conf.Expandable = !conf.Expandable; !conf.Expandable {
		name = "expandable_segments:False"
	}
	e.try(r, recorded, name, Options{Conf: &conf, Capacity: capacity})
	e.try(r, recorded, "Headroom's allocator", Options{Policy: Headroom, Capacity: capacity})
}

// try replays once and says what came of it.
func (e *evidence) try(r *Report, recorded *Result, name string, o Options) {
	got, err := e.h.Replay(o)
	if err != nil {
		return
	}
	helps, line := got.OOM == nil, fmt.Sprintf("%s would have served every request within %s", name, size.Format(o.Capacity))
	switch {
	case e.oom < 0 && got.PeakReservedBytes == recorded.PeakReservedBytes:
		return
	case e.oom < 0:
		helps = got.PeakReservedBytes < recorded.PeakReservedBytes
		line = fmt.Sprintf("%s would have reserved %s at most instead of %s", name, size.Format(got.PeakReservedBytes), size.Format(recorded.PeakReservedBytes))
	case !helps:
		line = fmt.Sprintf("%s would have failed too within %s: %s", name, size.Format(o.Capacity), got.OOM)
	}
	if line += " (replayed)"; helps {
		r.Actions = append(r.Actions, line)
	} else {
		r.Unhelpful = append(r.Unhelpful, line)
	}
}

// judgeMoment says what a snapshot without history leaves open, and how to learn it.
func (e *evidence) judgeMoment(r *Report) {
	if e.h.snapshot.Settings.Backend == trace.ProfileBackend {
		r.Summary = fmt.Sprintf("a profile tells what is live at one moment, and not what failed or what grows: %s", size.Format(e.live))
		r.Actions = append(r.Actions, "take a second one some steps later: headroom diff FIRST SECOND shows what grew")
		return
	}
	r.Summary = fmt.Sprintf("the snapshot holds no history, so that it does not tell what failed or what grows: %s live, with %s reserved, when it was taken", size.Format(e.live), size.Format(e.reserved))
	r.Actions = append(r.Actions, "call torch.cuda.memory._record_memory_history() before the run, and take the snapshot after memory has run out")
}
