package train

import (
	"encoding/json"
	"testing"
)

// twoChoices are lengths of which the longer has a choice.
func twoChoices() []Shape {
	choice := func(micro int, seconds float64) Choice { return Choice{Strategy{MicroBatch: micro}, seconds} }
	return []Shape{{Seq: 8, Choices: []Choice{choice(4, 1)}}, {Seq: 16, Choices: []Choice{choice(4, 2), choice(2, 2.1)}}}
}

// TestChooser: choices are taken in turn, the planned one until times may decide,
// and then the one whose least time was the least.
func TestChooser(t *testing.T) {
	c := newChooser(twoChoices())
	var turns []int
	for _, seconds := range []float64{3, 9, 0, 2.5, 3, 2.6} { // the planned: 3, none, 3; the other: 9, 2.5, 2.6
		turns = append(turns, c.choice(1))
		c.done(1, seconds)
		c.done(0, 1)
	}
	for i, k := range turns {
		if k != i%2 {
			t.Fatalf("turns %v", turns)
		}
	}
	if c.choice(1) != 0 || c.choice(0) != 0 {
		t.Error("times decided before they were asked to")
	}
	c.settle()
	if c.choice(1) != 1 || c.choice(0) != 0 {
		t.Errorf("chosen %d, after %+v", c.choice(1), c.states[1])
	}
	c.done(1, 20)
	c.settle()
	if c.choice(1) != 1 {
		t.Error("what was settled changed")
	}
}

// TestChooserGoesOn: from a checkpoint on, the same choices are made until the next
// one, whatever steps take.
func TestChooserGoesOn(t *testing.T) {
	const saveEvery = 4
	for cut := 0; cut < 24; cut += saveEvery {
		run := newChooser(twoChoices())
		steps := func(c *chooser, n int, seconds float64) (taken []int) {
			for i := range n {
				taken = append(taken, c.choice(1))
				c.done(1, seconds*float64(1+i%3))
			}
			return taken
		}
		for range cut / saveEvery {
			steps(run, saveEvery, 1)
			run.settle()
		}
		text, err := json.Marshal(State{Lengths: run.state()})
		if err != nil {
			t.Fatal(err)
		}
		var s State
		if err := json.Unmarshal(text, &s); err != nil {
			t.Fatal(err)
		}
		again := newChooser(twoChoices())
		again.restore(s.Lengths)
		want, got := steps(run, saveEvery, 1), steps(again, saveEvery, 0.1)
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("after %d steps: choices %v, before they were %v", cut, got, want)
			}
		}
	}
}

// TestChooserForgets: what was measured of other choices, and what is broken, is
// nothing.
func TestChooserForgets(t *testing.T) {
	good := LengthState{Seq: 16, Steps: 9, Measured: []Measure{{4, 2}, {2, 1}}, Chosen: 1, Settled: true}
	for name, change := range map[string]func(s *LengthState){
		"length":  func(s *LengthState) { s.Seq = 9 },
		"micro":   func(s *LengthState) { s.Measured = []Measure{{4, 2}, {1, 1}} },
		"fewer":   func(s *LengthState) { s.Measured, s.Chosen = s.Measured[:1], 0 },
		"chosen":  func(s *LengthState) { s.Chosen = 2 },
		"before":  func(s *LengthState) { s.Chosen = -1 },
		"steps":   func(s *LengthState) { s.Steps = -3 },
		"nothing": func(s *LengthState) { *s = LengthState{Seq: 16} },
	} {
		bad := good
		change(&bad)
		c := newChooser(twoChoices())
		c.restore([]LengthState{bad})
		if c.choice(1) != 0 || c.states[1].Steps != 0 {
			t.Errorf("%s: %+v", name, c.states[1])
		}
	}
	c := newChooser(twoChoices())
	if c.restore([]LengthState{good}); c.choice(1) != 1 {
		t.Errorf("what is good was not taken: %+v", c.states[1])
	}
}
