// Package remat chooses, for each value of a program, whether to keep it, compute it again or move it away, so that the program stays inside a budget of bytes at the least time.
//
// # What a plan is
//
// A plan is a set of extra runs. An extra run (t, o) says: run operation o again
// at stage t, just before operation t of the program. All runs of a stage are in
// the order of the program, so the total order of events is (stage, operation),
// which is a topological order. A read is served by the latest run of the
// producer before it. A value stays in memory from a run to the last read that
// this run serves and is dropped at once after it: the run's window.
//
// So every set of extra runs is a correct program, and a search may add and take
// away runs freely: only cost and memory change. Views own no memory; a window
// that serves a read through a view which the program itself makes in another
// window pays for making the view again, as DTR's runtime does.
//
// A move copies a value to slower memory and back between two reads. It holds only
// while one run serves both and nothing reads the value in between; otherwise it is
// off. So moves keep the property above.
//
// # How plans are found
//
//	program.go  what is planned
//	graph.go    … compiled: stages, slots of memory, kinds of operations
//	tree.go     memory over the stages: a segment tree of (sum, highest point)
//	state.go    a plan under construction: an edit costs O(log n) per window
//	repair.go   greedy: drop what costs least per byte-time of excess
//	search.go   ruin and recreate, and plans out of cuts and of runs of DTR
//	move.go     copies beside the operations
//	bound.go    the proved bound, and the best choice at one moment
//	flow.go     least cuts
//	solve.go    the portfolio, one budget or many
//	dtr.go      DTR's runtime with its heuristic h_DTR_eq
//	plan.go     the result
//	check.go    a slow executor which believes nothing of the above
//
// Repair takes the event at which memory is highest, looks at every value that lies
// there unread, and drops one until its next read, where its producer runs again.
// The score is the cost of the runs that this needs, divided by the bytes × stages
// of excess that it removes: a price per byte-time. The cost follows arguments that
// are gone by then, unless their window can be lengthened within the budget.
// Afterwards runs are taken away again, the most expensive first, while the plan
// still fits.
//
// Repair drops one value after the other, and so can't see that several together
// are cheap to make again, or that two share what they need. At one moment of the
// program, all values at once, the cheapest choice is a least cut (bound.go). Most
// programs have one moment that decides, where forward ends; so its choice is
// nearly a plan, and its bound is close.
//
// The portfolio: (1) the choices at that moment, and at the one of the highest
// memory, at several prices for a byte, with the rest repaired; (2) a descent through ten budgets from the plain
// peak to the one asked for, with some search at each, which reaches budgets at
// which construction from nothing fails; (3) the run of DTR_eq, whose result no
// plan exceeds; (4) construction from nothing with several powers of the relief
// and noise. The cheapest of each are improved for a while, the best for the rest
// of the work: random ruin (one run, the runs of neighbouring operations or of
// neighbouring stages taken away, or one value dropped more), repair with noise,
// of single operations or of kinds that repeat from layer to layer, clean, and
// acceptance with a falling temperature.
//
// Moves come first: while the peak is too high, the value with the best product of
// relief and cost per byte moves away if both copies fit into what is left of the
// two lanes, in the order in which the lanes will take them. Extra runs only delay
// stages, so copies that hide in the plain program hide in every plan. Where such
// copies don't suffice, the same is done as though operations took somewhat
// longer, and as though they took for ever: so more values move, fewer operations
// run again, and some wait for copies. The executor's clock tells how long, and
// the plan that takes the least time is taken.
//
// Work is counted, not timed, and random numbers come from a seed: the same
// arguments give the same plan.
//
// # Sources
//
// Events, greedy construction and the simulator are in the line of DTR (Kirisame et
// al., ICLR 2021); dropping by cost per byte and time, and swapping beside it, of
// Capuchin (Peng et al., ASPLOS 2020); plans as intervals of retention of Moccasin
// (Bartan et al., ICML 2023). Ruin and recreate is by Schrimpf et al. (2000). The bound is a
// selection problem (Rhys, 1970), solved as a least cut, under a price for memory
// (Everett, 1963), at one moment; it ignores what other moments need, so it is
// loose at small budgets, where operations run again several times.
//
// # Limits
//
// The order of the program is kept, also within a stage: orders that recompute
// across program order are out of reach. How long copies stall is known of whole
// plans only, and decides between few of them. A value moves at most once.
package remat
