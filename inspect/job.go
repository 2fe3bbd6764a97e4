package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/trace"
)

// How the ranks of a job are explained together. Each rank is looked at by itself, at
// the moment that counts there (explain.go). The job's rank is the one that ran out or,
// where none did, has the highest peak. Why it and not another one is said by the first
// of these that holds:
//
//	it leaks, has holes or met a limit     the others do, too, or don't
//	it holds a tenth more than the others  by the call site with the most of that:
//	                                       one that only it has, more blocks, larger ones
//	others have taken more than it could   its device has less room
//	else                                   all are alike, and it was merely the first
//
// Bytes are compared with the mean of the other ranks, so that one rank that differs
// stands out among few.

// Member is a rank of a job: a device of a record, with a name for it.
type Member struct {
	Name string
	*History
}

// JobReport is the answer of ExplainJob.
type JobReport struct {
	Kind    string  `json:"kind"` // KindJob
	Verdict Verdict `json:"verdict"`
	Summary string  `json:"summary"` // the job's rank with its figures, and why it and no other
	Rank    int     `json:"rank"`    // the job's rank: its place in Ranks

	Ranks []RankFigures `json:"ranks"`
	// Imbalance is the most that is live on a rank by the mean of all; 1 where all have
	// the same.
	Imbalance float64 `json:"imbalance"`
	// What the ranks have different amounts of, that first of which the job's rank has
	// most beyond the others.
	Purposes []Spread `json:"purposes"`
	Sites    []Spread `json:"sites"`

	Actions []string `json:"actions"`
	Report  *Report  `json:"report"` // of the job's rank
}

// KindJob is the kind of a JobReport.
const KindJob = "job"

// RankNote begins the annotation by which a program says in its snapshot which rank of
// its job it is, and where that stands: "rank 3 of 8: pipeline 1 of 2, data 1 of 4".
const RankNote = "rank "

// RankFigures are those of one rank at the moment that counts: when its memory ran
// out, or at its peak.
type RankFigures struct {
	Name          string  `json:"name"`
	Place         string  `json:"place,omitempty"` // where it stands in the job, if its snapshot says so (RankNote)
	Device        int     `json:"device"`
	Verdict       Verdict `json:"verdict"`
	RanOut        bool    `json:"ran_out"`
	LiveBytes     uint64  `json:"live_bytes"`
	ReservedBytes uint64  `json:"reserved_bytes"`
	CachedBytes   uint64  `json:"cached_bytes"`    // reserved and not live
	ByPurpose     []Share `json:"live_by_purpose"` // the live blocks as they were asked for, the largest first
}

// Spread is a part of the memory that ranks have different amounts of.
type Spread struct {
	What   string   `json:"what"` // a purpose, or a call site with one
	Bytes  []uint64 `json:"bytes"`
	Counts []int    `json:"counts"` // blocks
	excess float64  // of the job's rank over the mean of the others

	purpose trace.Purpose
	site    Site
}

// job is what a JobReport rests on.
type job struct {
	ranks   []Member
	of      []*evidence
	reports []*Report
	at      int // the job's rank
}

// ExplainJob explains the ranks of a job together, of which there are two or more.
func ExplainJob(ranks []Member) *JobReport {
	j := &job{ranks: ranks}
	for i, m := range ranks {
		e := examine(m.History)
		j.of, j.reports = append(j.of, e), append(j.reports, e.report())
		if e.worse(j.of[j.at]) {
			j.at = i
		}
	}
	mine := j.reports[j.at]
	r := &JobReport{Kind: KindJob, Verdict: mine.Verdict, Rank: j.at, Report: mine, Actions: []string{}}
	r.Purposes = j.spreads(func(p trace.Purpose, _ Site) Spread { return Spread{What: p.String(), purpose: p} })
	r.Sites = j.spreads(func(p trace.Purpose, s Site) Spread {
		return Spread{What: fmt.Sprintf("%s, %s", p, s), purpose: p, site: s}
	})
	var most, sum uint64
	for i, e := range j.of {
		r.Ranks = append(r.Ranks, j.figures(i))
		most, sum = max(most, e.live), sum+e.live
	}
	if r.Imbalance = 1; sum > 0 {
		r.Imbalance = float64(most) * float64(len(ranks)) / float64(sum)
	}
	j.judge(r)
	return r
}

// figures are those of the i-th rank.
func (j *job) figures(i int) RankFigures {
	e, r := j.of[i], j.reports[i]
	return RankFigures{Name: j.ranks[i].Name, Place: e.h.place(), Device: e.h.device, Verdict: r.Verdict, RanOut: e.oom >= 0,
		LiveBytes: e.live, ReservedBytes: e.peakReserved, CachedBytes: *r.CachedBytes,
		ByPurpose: shares(e.leases, func(l *Lease) string { return e.purposes.of(l).String() })}
}

// place is what a program has noted of its place in a job, or "".
func (h *History) place() string {
	for _, a := range h.snapshot.Annotations {
		if strings.HasPrefix(a.Name, RankNote) {
			return a.Name
		}
	}
	return ""
}

// spreads are the parts, by a key, of which ranks have different amounts.
func (j *job) spreads(key func(trace.Purpose, Site) Spread) []Spread {
	parts := map[string]*Spread{}
	for i, e := range j.of {
		for _, l := range e.leases {
			k := key(e.purposes.of(l), e.sites.site(l.Stack))
			s := parts[k.What]
			if s == nil {
				s, parts[k.What] = &k, &k
				s.Bytes, s.Counts = make([]uint64, len(j.of)), make([]int, len(j.of))
			}
			s.Bytes[i] += l.Size
			s.Counts[i]++
		}
	}
	out := []Spread{}
	for _, s := range parts {
		if s.excess = over(s.Bytes, j.at); slices.Max(s.Bytes) > slices.Min(s.Bytes) {
			out = append(out, *s)
		}
	}
	slices.SortFunc(out, func(a, b Spread) int { return cmp.Or(cmp.Compare(b.excess, a.excess), cmp.Compare(a.What, b.What)) })
	return out
}

// others is the mean of all values but one.
func others[T uint64 | int](values []T, but int) float64 {
	sum := 0.0
	for i, v := range values {
		if i != but {
			sum += float64(v)
		}
	}
	return sum / float64(len(values)-1)
}

// over is by how much a value is more than the mean of the others.
func over[T uint64 | int](values []T, at int) float64 {
	return float64(values[at]) - others(values, at)
}

// uneven is the share of what a rank holds by which it must be more than others hold
// to be the reason.
const uneven = 0.1

// judge says why it was this rank, and what would have evened it out.
func (j *job) judge(r *JobReport) {
	e, mine := j.of[j.at], j.reports[j.at]
	live, could := make([]uint64, len(j.of)), e.reserved+e.free
	roomier := 0 // ranks that have taken more than this one could
	for i, other := range j.of {
		if live[i] = other.live; i != j.at && e.oom >= 0 && other.peakReserved > could {
			roomier++
		}
	}
	r.Summary = fmt.Sprintf("%s: %s. ", j.name(), mine.Summary)
	switch {
	case mine.Verdict == Leak || mine.Verdict == Fragmentation || mine.Verdict == Limit:
		r.Summary += j.shared(mine.Verdict)
		r.Actions = append(r.Actions, mine.Actions...)
	case len(r.Sites) > 0 && over(live, j.at) >= uneven*float64(e.live):
		r.Summary += fmt.Sprintf("It holds %s more than the others on average: %s", size.Format(uint64(over(live, j.at))), r.Sites[0].why(j.at))
		if e.oom >= 0 {
			r.Verdict = Imbalance
			r.Summary += j.evened(live, could)
			r.Actions = append(r.Actions, r.Sites[0].even(j.at))
		}
	case roomier > 0:
		r.Verdict = OutsidePool
		r.Summary += fmt.Sprintf("It holds no more than the others, of which %s than this one could have: its device has less room", counted(roomier, "rank")+" reserved more")
		r.Actions = append(r.Actions, "see what else is on that device: another process, or one more context (headroom watch); ranks need devices with the same room")
	case e.oom >= 0:
		r.Summary += "The others hold about as much, so that they were as near to it: spreading things otherwise wins nothing"
		r.Actions = append(r.Actions, mine.Actions...)
	default:
		r.Summary += fmt.Sprintf("The ranks are even: the most is %.2f times the mean", r.Imbalance)
	}
	r.Summary += incomplete(r.Ranks)
}

// incomplete says that ranks are missing, or there more than once, where all snapshots
// say of which rank they are.
func incomplete(ranks []RankFigures) string {
	seen, most := map[int]bool{}, 0
	for _, k := range ranks {
		var rank, of int
		if n, _ := fmt.Sscanf(k.Place, RankNote+"%d of %d", &rank, &of); n < 2 {
			return ""
		}
		seen[rank], most = true, max(most, of)
	}
	if len(seen) == most && len(ranks) == most {
		return ""
	}
	return fmt.Sprintf(". These are %s, of %d of the %d ranks of a job: they are numbered here as they come", counted(len(ranks), "snapshot"), len(seen), most)
}

// name is the job's rank in a sentence.
func (j *job) name() string { return fmt.Sprintf("rank %d (%s)", j.at, j.ranks[j.at].Name) }

// shared says how many other ranks have a verdict, too.
func (j *job) shared(v Verdict) string {
	n := -1
	for _, r := range j.reports {
		if r.Verdict == v {
			n++
		}
	}
	switch n {
	case 0:
		return "It is so on no other rank: look for what this one alone runs (logging, evaluation, writing checkpoints) or is given (its part of the data)"
	case len(j.reports) - 1:
		return "So it is on all ranks"
	}
	return fmt.Sprintf("So it is on %d of the other %d ranks", n, len(j.reports)-1)
}

// evened says whether the request would have fitted had all ranks the mean.
func (j *job) evened(live []uint64, could uint64) string {
	mean := uint64(0)
	for _, v := range live {
		mean += v / uint64(len(live))
	}
	need := mean + j.of[j.at].request
	if need > could {
		return fmt.Sprintf(". Shared out evenly each would hold %s, and the request would not fit either: %s of %s", size.Format(mean), size.Format(need), size.Format(could))
	}
	return fmt.Sprintf(". Shared out evenly each would hold %s, and the request would fit: %s of %s", size.Format(mean), size.Format(need), size.Format(could))
}

// The ways in which a rank has more of something.
type manner uint8

const (
	only   manner = iota // the others have none
	more                 // more blocks
	bigger               // larger ones
)

func (s Spread) manner(at int) manner {
	const clearly = 1.25
	switch {
	case others(s.Bytes, at) == 0:
		return only
	case float64(s.Counts[at]) >= clearly*others(s.Counts, at):
		return more
	}
	return bigger
}

// lasting says whether the part is of the model, and not of the samples.
func (s Spread) lasting() bool {
	return s.purpose == trace.Parameter || s.purpose == trace.Gradient || s.purpose == trace.OptimizerState
}

// why says in what the rank has more of the part.
func (s Spread) why(at int) string {
	held := fmt.Sprintf("%s of %s", counted(s.Counts[at], "block"), size.Format(s.Bytes[at]))
	mean := fmt.Sprintf("%.3g of %s on average", others(s.Counts, at), size.Format(uint64(others(s.Bytes, at))))
	switch m := s.manner(at); {
	case m == only:
		return fmt.Sprintf("%s of %s at %s, which the others have nothing of", held, words(s.purpose), s.site)
	case m == more && s.lasting():
		return fmt.Sprintf("%s of %s at %s, the others %s: it has more layers or experts", held, words(s.purpose), s.site, mean)
	case m == more:
		return fmt.Sprintf("%s of %s at %s, the others %s: it keeps more micro-batches for backward, as the first stages of a pipeline do, or has more layers", held, words(s.purpose), s.site, mean)
	case s.lasting():
		return fmt.Sprintf("%s of %s at %s, the others %s: the same arrays are larger there, such as an embedding, or not sharded evenly", held, words(s.purpose), s.site, mean)
	}
	return fmt.Sprintf("%s of %s at %s, the others %s: the same values are larger there, as with longer samples or with experts that more tokens are routed to", held, words(s.purpose), s.site, mean)
}

// even says what evens that out.
func (s Spread) even(at int) string {
	switch m := s.manner(at); {
	case m == only && !s.lasting():
		return fmt.Sprintf("find out why only this rank runs %s, or give it fewer layers", s.site)
	case m == bigger && !s.lasting():
		return "share samples out by their tokens rather than by their number (sort, pack or pad them alike), and let experts have a capacity, or a loss that balances them"
	case m == more && !s.lasting():
		return "give the first stages of the pipeline fewer layers or let them recompute, have fewer micro-batches on their way (1F1B rather than GPipe), or smaller ones"
	}
	return "shard what is of the model (parameters, gradients, optimizer state) over all ranks, or give this rank fewer layers or experts"
}

// words is a purpose in a sentence.
func words(p trace.Purpose) string { return strings.ReplaceAll(p.String(), "_", " ") }
