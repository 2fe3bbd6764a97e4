package safetensors

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// randomPiece is some of a box in an array of the given shape.
func randomPiece(r *rand.Rand, whole []int) Piece {
	p := Piece{Whole: whole, At: make([]int, len(whole)), Shape: make([]int, len(whole))}
	for i, n := range whole {
		if r.IntN(2) == 0 {
			p.Shape[i] = n
			continue
		}
		p.At[i] = r.IntN(n + 1)
		p.Shape[i] = r.IntN(n - p.At[i] + 1)
	}
	n := product(p.Shape)
	if p.To = n; r.IntN(2) == 0 {
		p.From = r.IntN(n + 1)
		p.To = p.From + r.IntN(n-p.From+1)
	}
	return p
}

// cut is the oracle: the elements of a piece, one by one.
func (p Piece) cut(all []float32) (part []float32) {
	for k := p.From; k < p.To; k++ {
		at, rest, stride := 0, k, 1
		for i := len(p.Whole) - 1; i >= 0; i-- {
			at += (p.At[i] + rest%p.Shape[i]) * stride
			rest /= p.Shape[i]
			stride *= p.Whole[i]
		}
		part = append(part, all[at])
	}
	return part
}

// coarse is a range of the same array, where two of its dimensions are one.
func coarse(r *rand.Rand, p Piece) Piece {
	if len(p.Whole) < 2 {
		return p
	}
	i := r.IntN(len(p.Whole) - 1)
	whole := slices.Delete(slices.Clone(p.Whole), i, i+1)
	whole[i] *= p.Whole[i]
	q := Box(whole, nil, whole)
	q.From = r.IntN(q.To + 1)
	q.To = q.From + r.IntN(q.To-q.From+1)
	return q
}

// TestOverlap copies what random pieces of random arrays have in common, and
// compares with what each has of the array, element by element.
func TestOverlap(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	some := 0
	for range 20000 {
		whole := make([]int, r.IntN(4))
		for i := range whole {
			whole[i] = 1 + r.IntN(5)
		}
		all := make([]float32, product(whole))
		for i := range all {
			all[i] = float32(1 + i)
		}
		p, q := randomPiece(r, whole), randomPiece(r, whole)
		if r.IntN(2) == 0 {
			p = coarse(r, p)
		}
		if p.Check() != nil || q.Check() != nil {
			t.Fatalf("%+v, %+v: %v, %v", p, q, p.Check(), q.Check())
		}
		in, want := p.cut(all), q.cut(all)
		got := make([]float32, q.Len())
		if err := Overlap(p, q, func(inP, inQ, n int) error {
			for _, v := range got[inQ : inQ+n] {
				if v != 0 || n == 0 {
					t.Errorf("%+v in %+v: elements come twice, or none in a run", p, q)
				}
			}
			copy(got[inQ:inQ+n], in[inP:inP+n])
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		for i, v := range want {
			if !slices.Contains(in, v) {
				want[i] = 0
			} else {
				some++
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%+v in %+v: %v, want %v", p, q, got, want)
		}
	}
	if some < 5000 {
		t.Errorf("only %d elements in common", some)
	}
}

// TestOverlapRuns: what lies together is one run.
func TestOverlapRuns(t *testing.T) {
	whole := []int{8, 4, 16}
	rows := Box(whole, []int{2, 0, 0}, []int{3, 4, 16})
	part := Box(whole, nil, whole)
	part.From, part.To = 100, 300
	for _, test := range []struct {
		p, q Piece
		want int
	}{{Box(whole, nil, whole), rows, 1}, {rows, part, 1}, {rows, rows, 1}, {Box(whole, []int{0, 1, 0}, []int{8, 2, 16}), rows, 3}} {
		runs := 0
		if err := Overlap(test.p, test.q, func(_, _, _ int) error { runs++; return nil }); err != nil || runs != test.want {
			t.Errorf("%+v in %+v: %d runs, want %d (%v)", test.p, test.q, runs, test.want, err)
		}
	}
}

func TestBadPieces(t *testing.T) {
	for want, p := range map[string]Piece{
		"no such box":       {Whole: []int{2}, At: []int{0, 0}, Shape: []int{1}, To: 1},
		"overflows":         {Whole: []int{1 << 40, 1 << 40}, At: []int{0, 0}, Shape: []int{1, 1}, To: 1},
		"not within":        {Whole: []int{2, 2}, At: []int{0, 1}, Shape: []int{2, 2}, To: 4},
		"the box is not":    {Whole: []int{2}, At: []int{-1}, Shape: []int{2}, To: 2},
		"within the array":  {Whole: []int{2}, At: []int{1 << 62}, Shape: []int{1 << 62}, To: 1},
		"no such elements":  {Whole: []int{4}, At: []int{0}, Shape: []int{2}, To: 3},
		"has no such eleme": {Whole: []int{4}, At: []int{0}, Shape: []int{2}, From: 2, To: 1},
	} {
		if err := p.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want %q", p, err, want)
		}
	}
	if err := Overlap(Box([]int{2}, nil, []int{2}), Box([]int{3}, nil, []int{3}), nil); err == nil {
		t.Error("pieces of different arrays overlap")
	}
}

func TestReadAt(t *testing.T) {
	var w bytes.Buffer
	if err := Write(&w, nil, []Entry{{"a", F32, []int{2}, Float32s([]float32{8, 9})}, {"x", F32, []int{2, 3}, Float32s([]float32{0, 1, 2, 3, 4, 5})}}); err != nil {
		t.Fatal(err)
	}
	f := mustOpen(t, w.Bytes())
	got := make([]float32, 3)
	if err := f.ReadFloat32At("x", 2, got); err != nil || !slices.Equal(got, []float32{2, 3, 4}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, from := range []int{-1, 4, 1 << 62} {
		if err := f.ReadFloat32At("x", from, got); err == nil {
			t.Errorf("3 elements from %d on were read", from)
		}
	}
	if err := f.ReadFloat32At("y", 0, got); err == nil {
		t.Error("what is not there was read")
	}
}
