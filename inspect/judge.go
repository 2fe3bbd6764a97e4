package inspect

import (
	"fmt"
	"strings"

	"github.com/headroom-go/headroom/internal/size"
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
		r.Actions = append(r.Actions, leakActions(g)...)
		r.Unhelpful = append(r.Unhelpful, "allocator settings and torch.cuda.empty_cache(): the memory is in use, not cached")
	case e.oom >= 0:
		e.judgeOOM(r)
	case e.h.Len() == 0 && e.h.snapshot.Cut == nil:
		r.Verdict = Unknown
		r.Summary = fmt.Sprintf("the snapshot holds no history, so that it does not tell what failed or what grows: %s live, with %s reserved, when it was taken", size.Format(e.live), size.Format(e.reserved))
		r.Actions = append(r.Actions, "call torch.cuda.memory._record_memory_history() before the run, and take the snapshot after memory has run out")
	case e.h.snapshot.Cut != nil:
		r.Verdict = Unknown
		r.Summary = fmt.Sprintf("the file is cut, and what stands before its end tells of no failure: %s live at the peak, with %s reserved", size.Format(e.live), size.Format(e.reserved))
	default:
		r.Verdict = Healthy
		r.Summary = fmt.Sprintf("nothing failed and nothing grows: %s live at the peak, with %s reserved", size.Format(e.live), size.Format(e.reserved))
	}
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

// judgeOOM judges a failed request by its figures.
func (e *evidence) judgeOOM(r *Report) {
	event := e.h.Event(e.oom)
	request, free, slack := event.Size, event.Addr, *r.CachedBytes
	r.RequestBytes, r.FreeBytes = &request, &free
	figures := fmt.Sprintf("%s was asked for with %s free on the device and %s reserved, of it %s live and %s free",
		size.Format(request), size.Format(free), size.Format(e.reserved), size.Format(e.live), size.Format(slack))
	switch {
	case free >= request:
		r.Verdict = Limit
		r.Summary = figures + ": the device had room, so that a limit (a memory fraction) forbade to take it"
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
// capacity is what the job could have at that moment.
func (e *evidence) whatIf(r *Report) {
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
		if *r.FreeBytes < *r.RequestBytes {
			capacity = max(capacity, e.reserved+*r.FreeBytes)
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
