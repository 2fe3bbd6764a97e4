package train

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// The order in which the stages of a pipeline compute the micro-batches of a step.
//
// A schedule is a list of computations for each rank: the forward pass of a chunk
// of its layers on a micro-batch, or its backward pass. For p ranks, m
// micro-batches, and A bytes that a rank's layers keep of one:
//
//	             memory of rank r           idle share of the time
//	GPipe        m·A                        (p−1)/(m+p−1)
//	OneFOneB     min(m, p−r)·A              (p−1)/(m+p−1)
//	Interleaved  (1+(p−1−2r)/(p·v))·p·A     (p−1)/(v·m+p−1), for v chunks a rank
//	ZeroBubble   (p−1−r)·A + (r+1)·W        (p−1)/(3·m+p−1), for m ≥ p
//
// GPipe is that of Huang et al. (2019); OneFOneB and Interleaved are those of
// Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters"
// (2021).
//
// ZeroBubble is ZB-H1 of Qi et al., "Zero Bubble Pipeline Parallelism" (2024).
// Gradients of weights, which no other rank waits for, are put off
// (tensor.BackwardDeferring) and computed where a rank would wait. Rank r puts off
// those of r micro-batches, by as many as its warm-up is shorter than the first
// rank's, so that each holds p of them in some form. W bytes are what is kept of one
// for the weights: the inputs of products and the gradients of their results, 1.6·A
// for GPT-2. The first rank, whose gradients nobody waits for, puts nothing off and
// keeps p·A.
//
// From the lists of all ranks follow the messages between them: play lets every
// computation begin as soon as what it needs is there, a backward pass taking twice
// the time of a forward one, or as much where it puts half of its work off, and
// orders the messages of all ranks by the moment when they are ready. Each rank sends
// and receives its own in this order. So no rank waits for a message that waits for
// it, not even where each computation and each message waits for all before it on the
// rank: a message needs computations that are over at its moment, and these need
// earlier messages alone.

// Schedule is an order in which stages compute.
type Schedule uint8

// The schedules.
const (
	OneFOneB Schedule = iota
	GPipe
	Interleaved
	ZeroBubble
)

// scheduleNames are what the schedules are called, in their order.
func scheduleNames() []string { return []string{"1f1b", "gpipe", "interleaved", "zb-h1"} }

func (s Schedule) String() string { return scheduleNames()[s] }

// MarshalText gives the schedule's name.
func (s Schedule) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a schedule's name.
func (s *Schedule) UnmarshalText(text []byte) error {
	i := slices.Index(scheduleNames(), string(text))
	if i < 0 {
		return fmt.Errorf("%q is none of %s", text, strings.Join(scheduleNames(), ", "))
	}
	*s = Schedule(i)
	return nil
}

// action is a computation of a chunk of a rank's layers, or the message before or
// behind it.
type action struct {
	do           verb
	phase        phase
	chunk, micro int
}

type verb uint8

const (
	compute verb = iota
	send         // the result of this action's computation
	receive      // what this action's computation needs
)

// phase is which of its passes a micro-batch goes through a chunk in.
type phase uint8

const (
	forward  phase = iota
	backward       // all gradients, but those of weights where it puts these off
	weights        // what backward has put off
)

// pipeline is the shape of one.
type pipeline struct {
	schedule             Schedule
	ranks, chunks, micro int // chunks of each rank, micro-batches of a step
}

// order is what a rank computes: the passes of each phase, in the order of the
// micro-batches for every chunk.
func (p pipeline) order(rank int) (list []action) {
	total := p.micro * p.chunks
	warm := total // forward passes before the first backward one
	switch p.schedule {
	case OneFOneB, ZeroBubble:
		warm = min(total, p.ranks-1-rank)
	case Interleaved:
		warm = min(total, (p.chunks-1)*p.most()+2*(p.ranks-1-rank))
	}
	begins := []int{forward: 0, backward: warm} // each phase behind so many forward passes
	if p.splits(rank) {
		begins = append(begins, warm+rank)
	}
	for i := range total + begins[len(begins)-1] {
		for of, first := range begins {
			if k := i - first; k >= 0 && k < total {
				list = append(list, p.pass(k, phase(of)))
			}
		}
	}
	return list
}

// splits says whether a rank's backward passes put gradients of weights off.
func (p pipeline) splits(rank int) bool { return p.schedule == ZeroBubble && rank > 0 }

// rounds is how many rounds a step has, in each of which a rank computes its chunks
// one after the other: of as many micro-batches as ranks, or some more.
func (p pipeline) rounds() int { return max(1, p.micro/p.ranks) }

// most is the size of the greatest round.
func (p pipeline) most() int { return (p.micro + p.rounds() - 1) / p.rounds() }

// pass is the i-th pass of a phase.
func (p pipeline) pass(i int, of phase) action {
	from, to := 0, 0 // of the round that it is in
	for round := 0; i >= to*p.chunks; round++ {
		from, to = to, p.micro*(round+1)/p.rounds()
	}
	i -= from * p.chunks
	chunk := i / (to - from)
	if of != forward {
		chunk = p.chunks - 1 - chunk
	}
	return action{phase: of, chunk: chunk, micro: from + i%(to-from)}
}

// stage is which one of all a rank's chunk is.
func (p pipeline) stage(rank, chunk int) int { return chunk*p.ranks + rank }

// depth is the number of stages.
func (p pipeline) depth() int { return p.ranks * p.chunks }

// follower is the rank and the computation that need a's result, if any do.
func (p pipeline) follower(rank int, a action) (next int, b action, ok bool) {
	stage := p.stage(rank, a.chunk) + 1
	if a.phase == backward {
		stage -= 2
	}
	if stage < 0 || stage == p.depth() || a.phase == weights {
		return 0, action{}, false
	}
	return stage % p.ranks, action{phase: a.phase, chunk: stage / p.ranks, micro: a.micro}, true
}

// sender is the rank whose result a computation needs.
func (p pipeline) sender(rank int, a action) int {
	stage := p.stage(rank, a.chunk) - 1
	if a.phase == backward {
		stage += 2
	}
	return stage % p.ranks
}

// waits says whether a computation needs what another one gives.
func (p pipeline) waits(rank int, a action) bool {
	return a.phase == backward || a.phase == forward && p.stage(rank, a.chunk) > 0
}

// takes is the time of a computation.
func (p pipeline) takes(rank int, a action) int {
	if a.phase == backward && !p.splits(rank) {
		return 2
	}
	return 1
}

// timed is a computation of a rank, or a message between two.
type timed struct {
	action
	rank       int // that computes, or sends
	begin, end int
}

// play gives all computations with their times; false where they wait for each
// other without end.
func (p pipeline) play() ([]timed, bool) {
	ready := map[timed]int{} // when what a computation needs is there, by rank and action
	left, now := make([][]action, p.ranks), make([]int, p.ranks)
	for r := range left {
		left[r] = p.order(r)
	}
	var all []timed
	for moved := true; moved; {
		moved = false
		for r := range left {
			for len(left[r]) > 0 {
				a := left[r][0]
				at, ok := ready[timed{action: a, rank: r}]
				if !ok && p.waits(r, a) {
					break
				}
				t := timed{action: a, rank: r, begin: max(now[r], at)}
				t.end = t.begin + p.takes(r, a)
				if next, b, ok := p.follower(r, a); ok {
					ready[timed{action: b, rank: next}] = t.end
				} else if a.phase == forward { // the loss
					a.phase = backward
					ready[timed{action: a, rank: r}] = t.end
				}
				all, now[r], left[r], moved = append(all, t), t.end, left[r][1:], true
			}
		}
	}
	done := !slices.ContainsFunc(left, func(l []action) bool { return len(l) > 0 })
	return all, done
}

// program is what a rank does: its computations, and between them its messages. One
// that arrives during a computation is received from before it on.
func (p pipeline) program(rank int) []action {
	all, ok := p.play()
	if !ok {
		panic(fmt.Sprintf("train: stages of %+v wait for each other", p))
	}
	slices.SortStableFunc(all, func(a, b timed) int { return cmp.Or(cmp.Compare(a.end, b.end), cmp.Compare(a.rank, b.rank)) })
	var list []action
	for _, t := range all { // by their ends: what is ready at the end of one comes behind it
		if t.rank == rank {
			list = append(list, t.action)
		}
		next, b, ok := p.follower(t.rank, t.action)
		if t.rank == rank && ok {
			t.do = send
			list = append(list, t.action)
		}
		if ok && next == rank {
			b.do = receive
			list = append(list, b)
		}
	}
	return list
}

// steps is the pipeline of p with so many micro-batches; without one, of one rank.
func (p Parallel) steps(micros int) pipeline {
	return pipeline{schedule: p.Schedule, ranks: max(1, p.Mesh.Pipeline), chunks: p.chunks(), micro: micros}
}

// Stretch is how many times longer than its computations a step of so many
// micro-batches takes, by the schedule: 1 without a pipeline.
func (p Parallel) Stretch(micros int) float64 {
	s := p.steps(micros)
	all, _ := s.play()
	end := 0
	for _, t := range all {
		end = max(end, t.end)
	}
	const both = 3 // the times of a forward and a backward pass
	return float64(end) / float64(both*s.micro*s.chunks)
}

// InFlight is how many of so many micro-batches a rank holds at a time, by the
// schedule: 1 without a pipeline.
func (p Parallel) InFlight(stage, micros int) int {
	s := p.steps(micros)
	return (s.live(stage) + s.chunks - 1) / s.chunks
}

// live is how many forward passes of a rank wait at most for the last of their
// gradients.
func (p pipeline) live(rank int) int {
	live, most := 0, 0
	for _, a := range p.order(rank) {
		switch {
		case a.phase == forward:
			live++
		case a.phase == weights || !p.splits(rank):
			live--
		}
		most = max(most, live)
	}
	return most
}
