package data

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestWidths: the padding is the least that any choice of widths takes, which is
// found by trying all.
func TestWidths(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		const longest = 9
		lists, n := randomLists(r, 1+r.IntN(12), longest), 1+r.IntN(4)
		lists = append(lists, make([]int32, 1+r.IntN(longest)))
		got := Widths(lists, n, 1)
		most := slices.Max(lengthsOf(lists))
		if len(got) == 0 || len(got) > n || !slices.IsSorted(got) || got[len(got)-1] != most {
			t.Fatalf("widths %v of at most %d for lengths %v", got, n, lengthsOf(lists))
		}
		least := paddedTo(lists, []int{most})
		for set := range 1 << (most - 1) {
			var widths []int
			for w := 1; w < most; w++ {
				if set>>(w-1)&1 == 1 {
					widths = append(widths, w)
				}
			}
			if widths = append(widths, most); len(widths) <= n {
				least = min(least, paddedTo(lists, widths))
			}
		}
		if got := paddedTo(lists, got); got != least {
			t.Errorf("%d tokens, %d are possible with %d widths of %v", got, least, n, lengthsOf(lists))
		}
	}
	lists := Lists{make([]int32, 3), make([]int32, 9), make([]int32, 30), nil}
	if got := Widths(lists, 9, 8); !slices.Equal(got, []int{8, 16, 30}) {
		t.Errorf("widths %v in multiples of 8", got)
	}
	if got := Widths(Lists{nil}, 3, 8); got != nil {
		t.Errorf("widths %v of nothing", got)
	}
}

// paddedTo counts the tokens of sequences that are padded to the next width.
func paddedTo(s Sequences, widths []int) (sum int) {
	for i := range s.Len() {
		if n := s.Length(i); n > 0 {
			at, _ := slices.BinarySearch(widths, n)
			sum += widths[at]
		}
	}
	return sum
}

// TestByLength: every batch has its rows, all of them fit the width, an epoch has
// each sequence once but for fewer than fill a batch, and these are others in other
// epochs.
func TestByLength(t *testing.T) {
	lists := randomLists(rand.New(rand.NewPCG(3, 4)), 103, 20)
	for i := range lists {
		lists[i] = append(lists[i], 7) // none is empty
	}
	const rows = 4
	b, err := NewByLength(lists, BucketOptions{Rows: rows, Widths: []int{5, 12, 21}, Pad: -1, Seed: 5})
	if err != nil {
		t.Fatal(err)
	}
	left := map[int]bool{}
	for range 5 {
		seen := map[int]bool{}
		for range 103 / rows {
			width, err := b.Width()
			if err != nil {
				t.Fatal(err)
			}
			p, err := b.Next()
			if err != nil {
				t.Fatal(err)
			}
			if p.Rows != rows || p.Width != width || len(p.Tokens) != rows*width {
				t.Fatalf("a batch of %d×%d, announced with %d", p.Rows, p.Width, width)
			}
			for k, s := range p.Samples {
				if seen[s] || !slices.Equal(p.Tokens[k*width:][:p.Lengths[k]], lists[s]) {
					t.Fatalf("sequence %d came before, or changed", s)
				}
				seen[s] = true
			}
		}
		for i := range lists {
			if !seen[i] {
				left[i] = true
			}
		}
	}
	if len(left) < 5 { // 3 of 103 in each of 5 epochs
		t.Errorf("only the sequences %v were left over", left)
	}
}

// TestByLengthRestores: from each of its places on the batches are those that
// followed there, across epochs.
func TestByLengthRestores(t *testing.T) {
	lists := randomLists(rand.New(rand.NewPCG(5, 6)), 30, 20)
	o := BucketOptions{Rows: 4, Widths: []int{8, 20}, Seed: 5}
	open := func(lists Lists, o BucketOptions) *ByLength {
		b, err := NewByLength(lists, o)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	next := func(b *ByLength) []int {
		p, err := b.Next()
		if err != nil {
			t.Fatal(err)
		}
		return slices.Clone(p.Samples)
	}
	b := open(lists, o)
	var states []LengthState
	var want [][]int
	for range 20 {
		states, want = append(states, b.State()), append(want, next(b))
	}
	for i, s := range states {
		other := o
		other.Seed = 6 // the state's counts
		c := open(lists, other)
		if err := c.Restore(s); err != nil {
			t.Fatal(err)
		}
		for k := i; k < len(want); k++ {
			if got := next(c); !slices.Equal(got, want[k]) {
				t.Fatalf("batch %d from place %d: %v, want %v", k, i, got, want[k])
			}
		}
	}
	before := b.State()
	for name, change := range map[string]func(s *LengthState){
		"position":  func(s *LengthState) { s.Position = 100 },
		"negative":  func(s *LengthState) { s.Position = -1 },
		"rows":      func(s *LengthState) { s.Rows = 2 },
		"widths":    func(s *LengthState) { s.Widths = []int{20} },
		"sequences": func(s *LengthState) { s.Sequences = "others" },
	} {
		s := states[3]
		change(&s)
		if err := b.Restore(s); err == nil || b.State().Position != before.Position || b.State().Epoch != before.Epoch {
			t.Errorf("%s: error %v, place %+v", name, err, b.State())
		}
	}
	lists[3] = append(slices.Clone(lists[3]), 1)
	if err := open(lists, o).Restore(states[3]); err == nil {
		t.Error("other sequences were taken for these")
	}
}
