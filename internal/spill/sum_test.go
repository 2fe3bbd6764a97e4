//go:build unix

package spill

import "testing"

// TestSum changes every bit of data, swaps any two of its words, and cuts it: no two of
// all these have one sum, and under another key the sum is another.
func TestSum(t *testing.T) {
	s, other := newSummer(), newSummer()
	data := randomBytes(3*row + 21)
	seen := map[uint64]bool{}
	enter := func(what string, sum uint64) {
		t.Helper()
		if seen[sum] {
			t.Errorf("%s has the sum of other data", what)
		}
		seen[sum] = true
	}
	enter("other key", other.sum(data))
	enter("data", s.sum(data))
	if !seen[s.sum(data)] {
		t.Error("the sum is another the second time")
	}
	for i := range 8 * len(data) {
		data[i/8] ^= 1 << (i % 8)
		enter("a changed bit", s.sum(data))
		data[i/8] ^= 1 << (i % 8)
	}
	swap := func(i, j int) {
		for k := range 8 {
			data[8*i+k], data[8*j+k] = data[8*j+k], data[8*i+k]
		}
	}
	for i := range len(data) / 8 {
		for j := range i {
			swap(i, j)
			enter("two swapped words", s.sum(data))
			swap(i, j)
		}
	}
	for n := range data {
		enter("a shorter piece", s.sum(data[:n]))
	}
	for n := range 5 {
		enter("zeros", s.sum(make([]byte, 1+n*row)))
	}
}
