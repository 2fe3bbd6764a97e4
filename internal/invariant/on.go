//go:build invariant

package invariant

// Enabled is true in builds that check invariants after every operation.
const Enabled = true
