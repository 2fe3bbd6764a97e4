package safetensors

import (
	"fmt"
	"slices"
)

// Piece is a part of an array that is kept in several: of a box in it the
// elements From up to but not including To, which are counted row by row within
// the box.
type Piece struct {
	Whole []int `json:"whole"` // shape of the array
	At    []int `json:"at"`    // where the box begins
	Shape []int `json:"shape"` // of the box
	From  int   `json:"from"`
	To    int   `json:"to"`
}

// Box is the piece of an array of shape whole that is the box of the given shape
// at a place; at nil: at the array's beginning.
func Box(whole, at, shape []int) Piece {
	if at == nil {
		at = make([]int, len(whole))
	}
	return Piece{Whole: whole, At: at, Shape: shape, To: product(shape)}
}

// Len is the number of the piece's elements.
func (p Piece) Len() int { return p.To - p.From }

// All says whether the piece is the whole array.
func (p Piece) All() bool { return p.Len() == product(p.Whole) }

// Check says what is wrong with a piece, if anything.
func (p Piece) Check() error {
	if len(p.At) != len(p.Whole) || len(p.Shape) != len(p.Whole) {
		return fmt.Errorf("piece %+v: an array of %d dimensions has no such box", p, len(p.Whole))
	}
	if _, err := newTensor("piece", F32, p.Whole); err != nil {
		return err
	}
	for i, n := range p.Whole {
		if p.At[i] < 0 || p.Shape[i] < 0 || p.Shape[i] > n || p.At[i] > n-p.Shape[i] {
			return fmt.Errorf("piece %+v: the box is not within the array", p)
		}
	}
	if p.From < 0 || p.To < p.From || p.To > product(p.Shape) {
		return fmt.Errorf("piece %+v: the box has no such elements", p)
	}
	return nil
}

// Overlap calls f for every run of elements that two pieces of one array have in
// common: n of them, from the inP-th of p and the inQ-th of q on, in p's order. It
// ends with the first error of f. Both pieces passed Check. The array's shape may
// have a dimension of the one as several of the other, where one's box is all of
// it.
func Overlap(p, q Piece, f func(inP, inQ, n int) error) error {
	if !SameArray(p, q) {
		return fmt.Errorf("pieces of arrays of the shapes %v and %v", p.Whole, q.Whole)
	}
	p, q = p.as(q), q.as(p)
	p, q = folded(p, q)
	last := len(p.Whole) - 1
	from, to := make([]int, last+1), make([]int, last+1) // the box in common
	for i := range from {
		from[i], to[i] = max(p.At[i], q.At[i]), min(p.At[i]+p.Shape[i], q.At[i]+q.Shape[i])
		if from[i] >= to[i] {
			return nil
		}
	}
	for at := slices.Clone(from); ; {
		inP, inQ := p.offset(at), q.offset(at)
		lo := max(0, -inP, -inQ)
		hi := min(to[last]-from[last], p.Len()-inP, q.Len()-inQ)
		if lo < hi {
			if err := f(inP+lo, inQ+lo, hi-lo); err != nil {
				return err
			}
		}
		i := last - 1
		for ; i >= 0; i-- { // the next row
			if at[i]++; at[i] < to[i] {
				break
			}
			at[i] = from[i]
		}
		if i < 0 {
			return nil
		}
	}
}

// SameArray says whether two pieces can be of one array: they have its shape alike,
// or one's box is all of it and the other has it in smaller dimensions.
func SameArray(p, q Piece) bool {
	return slices.Equal(p.Whole, q.Whole) || p.allBox() && refines(q.Whole, p.Whole) || q.allBox() && refines(p.Whole, q.Whole)
}

func (p Piece) allBox() bool { return slices.Equal(p.Whole, p.Shape) }

// as is p with the array's shape that q has, if its box is all of the array.
func (p Piece) as(q Piece) Piece {
	if len(p.Whole) >= len(q.Whole) {
		return p
	}
	return Piece{q.Whole, make([]int, len(q.Whole)), q.Whole, p.From, p.To}
}

// refines says whether fine is coarse with some dimensions as several.
func refines(fine, coarse []int) bool {
	for _, n := range coarse {
		m := 1
		for len(fine) > 0 && m < n {
			m, fine = m*fine[0], fine[1:]
		}
		if m != n {
			return false
		}
	}
	return product(fine) == 1
}

// folded are the same pieces with as few dimensions as can be, one at least: equal
// boxes are rows, and dimensions of which both have all belong to the one before.
func folded(p, q Piece) (fp, fq Piece) {
	if slices.Equal(p.At, q.At) && slices.Equal(p.Shape, q.Shape) {
		n := []int{product(p.Shape)}
		return Piece{n, []int{0}, n, p.From, p.To}, Piece{n, []int{0}, n, q.From, q.To}
	}
	fp, fq = Piece{From: p.From, To: p.To}, Piece{From: q.From, To: q.To}
	for i, n := range p.Whole {
		if i > 0 && p.Shape[i] == n && q.Shape[i] == n {
			fp.scale(n)
			fq.scale(n)
			continue
		}
		fp.extend(n, p.At[i], p.Shape[i])
		fq.extend(n, q.At[i], q.Shape[i])
	}
	return fp, fq
}

// extend adds a dimension.
func (p *Piece) extend(whole, at, n int) {
	p.Whole, p.At, p.Shape = append(p.Whole, whole), append(p.At, at), append(p.Shape, n)
}

// scale makes the last dimension n times as long.
func (p *Piece) scale(n int) {
	last := len(p.Whole) - 1
	p.Whole[last] *= n
	p.At[last] *= n
	p.Shape[last] *= n
}

// offset is which of the piece's elements lies at a place in the array; it may be
// under 0, or behind the last.
func (p Piece) offset(at []int) int {
	n := 0
	for i, x := range at {
		n = n*p.Shape[i] + x - p.At[i]
	}
	return n - p.From
}

func product(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}
