// Package invariant switches expensive checks on (build tag invariant, or under
// the race detector) and off.
package invariant
