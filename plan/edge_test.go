package plan

import (
	"math/rand/v2"
	"testing"
)

// TestApproach finds known limits from guesses that are right, too low and too
// high, and asks for few sizes, of those below the guess only where that is
// too high.
func TestApproach(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		limit := 1 + random.IntN(2000)
		largest := random.IntN(limit + 1)
		guess := max(0, min(limit, largest+random.IntN(200)-100))
		found, asked := 0, map[int]bool{}
		approach(limit, guess, func(n int) bool {
			if asked[n] || n < 1 || n > limit || n < guess && guess <= largest {
				t.Fatalf("size %d of %d is asked for, from a guess of %d (again: %v)", n, limit, guess, asked[n])
			}
			if asked[n] = true; n <= largest {
				found = n
			}
			return n <= largest
		})
		near := largest - largest/128
		if guess > largest { // it goes down in steps
			near = largest - guess/32 - 1
		}
		if found < near || found > largest || len(asked) > 24+max(0, guess-largest) {
			t.Fatalf("%d of %d from a guess of %d, by %d trials: want %d", found, limit, guess, len(asked), largest)
		}
	}
}

// TestEdge finds known limits, exactly and roughly.
func TestEdge(t *testing.T) {
	for limit := 1; limit < 70; limit++ {
		for largest := range limit + 1 {
			fits := func(n int) bool { return n <= largest }
			if got := edge(limit, limit, fits); got != largest {
				t.Fatalf("%d of %d, want %d", got, limit, largest)
			}
			if got := edge(limit, 8, fits); got > largest || got < largest-largest/8 {
				t.Fatalf("roughly %d of %d, want %d", got, limit, largest)
			}
		}
	}
}
