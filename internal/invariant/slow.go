//go:build invariant || race

package invariant

// Slow is true in builds that check invariants or look for races: tests try less in
// them, and what costs little beside that is checked, too.
const Slow = true
