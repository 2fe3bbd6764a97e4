// Package invariant switches expensive checks on (build tag invariant) and off, and
// says whether a build is slow.
package invariant
