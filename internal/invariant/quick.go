//go:build !invariant && !race

package invariant

// Slow is false in ordinary builds.
const Slow = false
