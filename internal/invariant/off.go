//go:build !invariant

package invariant

// Enabled is false in ordinary builds, so that the compiler removes the checks.
const Enabled = false
