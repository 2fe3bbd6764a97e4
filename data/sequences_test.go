package data

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// randomLists makes sequences whose tokens tell where they are: 1000·i + place.
func randomLists(r *rand.Rand, n, longest int) Lists {
	l := make(Lists, n)
	for i := range l {
		l[i] = make([]int32, r.IntN(longest+1))
		for k := range l[i] {
			l[i][k] = int32(1000*i + k)
		}
	}
	return l
}

func lengthsOf(s Sequences) []int {
	n := make([]int, s.Len())
	for i := range n {
		n[i] = s.Length(i)
	}
	return n
}

// slowPack is best fit decreasing as its definition says; it gives how full the
// rows are.
func slowPack(lengths []int, row int) (full []int) {
	lengths = slices.Clone(lengths)
	slices.Sort(lengths)
	slices.Reverse(lengths)
	for _, n := range lengths {
		best := -1
		for r, have := range full {
			if have+n <= row && (best < 0 || have > full[best]) {
				best = r
			}
		}
		switch {
		case n == 0:
		case best < 0:
			full = append(full, n)
		default:
			full[best] += n
		}
	}
	slices.Sort(full)
	return full
}

func checkPack(t *testing.T, lengths []int, row int) {
	t.Helper()
	rows, err := Pack(lengths, row)
	if err != nil {
		t.Fatal(err)
	}
	var full []int
	seen := make([]bool, len(lengths))
	for _, members := range rows {
		sum := 0
		for _, i := range members {
			if seen[i] {
				t.Fatalf("sequence %d is in two rows", i)
			}
			seen[i] = true
			sum += lengths[i]
		}
		full = append(full, sum)
	}
	for i, n := range lengths {
		if seen[i] != (n > 0) {
			t.Fatalf("sequence %d of %d tokens: in a row: %v", i, n, seen[i])
		}
	}
	slices.Sort(full)
	if want := slowPack(lengths, row); !slices.Equal(full, want) {
		t.Fatalf("lengths %v in rows of %d: filled %v, want %v", lengths, row, full, want)
	}
}

func TestPack(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for row := 1; row < 300; row += 7 {
		checkPack(t, lengthsOf(randomLists(r, r.IntN(200), row)), row)
	}
	for _, bad := range [][]int{{5, 11, 3}, {-1}} {
		if _, err := Pack(bad, 10); err == nil {
			t.Errorf("%v was packed into rows of 10", bad)
		}
	}
	if _, err := Pack(nil, 0); err == nil {
		t.Error("rows of 0")
	}
}

func FuzzPack(f *testing.F) {
	f.Add([]byte{1, 2, 3, 200}, uint16(200))
	f.Add([]byte{64, 64, 63, 65, 0, 128}, uint16(128))
	f.Fuzz(func(t *testing.T, b []byte, row uint16) {
		if row == 0 || len(b) > 500 {
			return
		}
		lengths := make([]int, len(b))
		for i, n := range b {
			lengths[i] = int(n) * 3 % (int(row) + 1)
		}
		checkPack(t, lengths, int(row))
	})
}

// TestPacked reads every row through its planes and finds each token once, with
// its place, and as target what follows it.
func TestPacked(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, row := range []int{1, 2, 17, 64} {
		lists := randomLists(r, 100, row)
		p, err := NewPacked(lists, row, -7)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(p.Shape(), []int{4, row}) || p.DType() != Int32 {
			t.Errorf("shape %v of %s", p.Shape(), p.DType())
		}
		found, padding := 0, 0
		sample := make([]byte, SampleBytes(p))
		for i := range p.Len() {
			if err := p.Read(i, sample); err != nil {
				t.Fatal(err)
			}
			at := func(plane, k int) int {
				return int(int32(binary.LittleEndian.Uint32(sample[4*(plane*row+k):])))
			}
			segments := map[int]int{} // to the sequence
			for k := range row {
				token, target, segment, position := at(PackedTokens, k), at(PackedTargets, k), at(PackedSegments, k), at(PackedPositions, k)
				if segment == 0 {
					if padding++; token != -7 || target != IgnoredTarget || position != 0 {
						t.Fatalf("padding has token %d, target %d, position %d", token, target, position)
					}
					continue
				}
				found++
				sequence := token / 1000
				if s, ok := segments[segment]; ok != (position > 0) || ok && s != sequence || token%1000 != position {
					t.Fatalf("token %d at %d has segment %d and position %d", token, k, segment, position)
				}
				segments[segment] = sequence
				want := token + 1
				if position == len(lists[sequence])-1 {
					want = IgnoredTarget
				}
				if target != want {
					t.Fatalf("token %d has target %d, want %d", token, target, want)
				}
			}
		}
		total := 0
		for _, n := range lengthsOf(lists) {
			total += n
		}
		if found != total || math.Abs(p.Waste()-float64(padding)/float64(found+padding)) > 1e-12 {
			t.Errorf("rows of %d: %d tokens of %d, %d padding, waste %v", row, found, total, padding, p.Waste())
		}
	}
	if _, err := NewPacked(Lists{{}, {}}, 4, 0); err == nil {
		t.Error("nothing was packed")
	}
}

// TestBuckets: each sequence comes once, in a batch within the limit, padded to
// the rounded length of the longest, and the waste is what is counted.
func TestBuckets(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, o := range []BucketOptions{{Tokens: 100, Multiple: 1, Pad: -1, Seed: 1}, {Tokens: 128, Multiple: 8, Pad: 0, Seed: 2}, {Tokens: 64, Multiple: 64, Pad: 5, Seed: 3}, {Tokens: 1000, Multiple: 3, Pad: 0, Seed: 4}} {
		lists := randomLists(r, 300, min(o.Tokens/o.Multiple*o.Multiple, 100))
		b, err := NewBuckets(lists, o)
		if err != nil {
			t.Fatal(err)
		}
		p := b.NewPadded()
		seen, padding, tokens, buffer := map[int]bool{}, 0, 0, &p.Tokens[:1][0]
		for i := range b.Len() {
			if err := b.Read(i, p); err != nil {
				t.Fatal(err)
			}
			longest := 0
			for k, s := range p.Samples {
				row := p.Tokens[k*p.Width:][:p.Width]
				n := len(lists[s])
				if seen[s] || int(p.Lengths[k]) != n || !slices.Equal(row[:n], lists[s]) {
					t.Fatalf("sequence %d came before, or changed", s)
				}
				for _, id := range row[n:] {
					if id != o.Pad {
						t.Fatalf("padded with %d", id)
					}
				}
				seen[s], longest = true, max(longest, n)
				padding, tokens = padding+p.Width-n, tokens+n
			}
			if p.Rows != len(p.Samples) || p.Rows*p.Width > o.Tokens || p.Width%o.Multiple != 0 || p.Width-longest >= o.Multiple || &p.Tokens[0] != buffer {
				t.Fatalf("%+v: a batch of %d×%d for at most %d tokens", o, p.Rows, p.Width, longest)
			}
		}
		for i, n := range lengthsOf(lists) {
			if seen[i] != (n > 0) {
				t.Fatalf("sequence %d of %d tokens: in a batch: %v", i, n, seen[i])
			}
		}
		if got, want := b.Waste(), float64(padding)/float64(padding+tokens); math.Abs(got-want) > 1e-12 {
			t.Errorf("waste %v, counted %v", got, want)
		}
	}
}

// TestBucketsWaste: sorting pays. In the order as they come, batches of as many
// tokens would be padding for a third or more.
func TestBucketsWaste(t *testing.T) {
	lists := randomLists(rand.New(rand.NewPCG(7, 8)), 2000, 200)
	b, err := NewBuckets(lists, BucketOptions{Tokens: 2000, Multiple: 1})
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPacked(lists, 200, 0)
	if err != nil {
		t.Fatal(err)
	}
	if b.Waste() > 0.02 || p.Waste() > 0.02 {
		t.Errorf("waste %v in buckets, %v packed", b.Waste(), p.Waste())
	}
}

func TestBucketsSeed(t *testing.T) {
	lists := randomLists(rand.New(rand.NewPCG(9, 10)), 100, 10)
	order := func(seed uint64) string {
		b, err := NewBuckets(lists, BucketOptions{Tokens: 20, Multiple: 5, Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		var samples, widths []int
		p := b.NewPadded()
		for i := range b.Len() {
			if err := b.Read(i, p); err != nil {
				t.Fatal(err)
			}
			samples, widths = append(samples, p.Samples...), append(widths, p.Width)
		}
		if slices.IsSorted(widths) {
			t.Errorf("the batches come in the order of their widths: %v", widths)
		}
		return fmt.Sprint(samples)
	}
	if first := order(1); first != order(1) || first == order(2) {
		t.Error("the order does not follow from the seed")
	}
	for _, o := range []BucketOptions{{Tokens: 0, Multiple: 1, Pad: 0, Seed: 0}, {Tokens: 10, Multiple: 0, Pad: 0, Seed: 0}, {Tokens: 9, Multiple: 1, Pad: 0, Seed: 0}, {Tokens: 10, Multiple: 11, Pad: 0, Seed: 0}, {Rows: 2}, {Rows: 2, Widths: []int{0, 9}}, {Rows: 2, Widths: []int{10, 5}}, {Rows: 2, Widths: []int{5, 9}}, {Rows: 101, Widths: []int{10}}} {
		if _, err := NewBuckets(lists, o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
	if _, err := NewBuckets(Lists{{}}, BucketOptions{Tokens: 1, Multiple: 1}); err == nil {
		t.Error("no tokens were taken")
	}
}

// brokenLists fails to read sequence bad.
type brokenLists struct {
	Lists
	bad int
}

func (b brokenLists) Read(i int, dst []int32) error {
	if i == b.bad {
		return errDisk
	}
	return b.Lists.Read(i, dst)
}

func TestSequenceErrors(t *testing.T) {
	s := brokenLists{Lists{{1, 2}, {3}, {4, 5, 6}}, 1}
	p, err := NewPacked(s, 6, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Read(0, make([]byte, 96)); !errors.Is(err, errDisk) || !strings.Contains(err.Error(), "sequence 1") {
		t.Errorf("packed: %v", err)
	}
	b, err := NewBuckets(s, BucketOptions{Tokens: 9, Multiple: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Read(0, b.NewPadded()); !errors.Is(err, errDisk) || !strings.Contains(err.Error(), "sequence 1") {
		t.Errorf("buckets: %v", err)
	}
}

// TestDocuments finds the documents of a text that strings.Split finds.
func TestDocuments(t *testing.T) {
	text := "one\n\ntwo and a half\n" + strings.Repeat("x", 25) + "\n\n\nlast"
	c := mustLoad(t, Bytes{}, makeTree(t, "a", text))
	for _, limit := range []int{0, 1, 7, 25, 100} {
		d, err := c.Documents(limit)
		if err != nil {
			t.Fatal(err)
		}
		var got, want []string
		for i := range d.Len() {
			tokens := make([]int32, d.Length(i))
			if err := d.Read(i, tokens); err != nil {
				t.Fatal(err)
			}
			got = append(got, Bytes{}.Decode(tokens))
		}
		for _, part := range strings.Split(text, "\n") {
			for ; limit > 0 && len(part) > limit; part = part[limit:] {
				want = append(want, part[:limit])
			}
			if part != "" {
				want = append(want, part)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("limit %d: %q, want %q", limit, got, want)
		}
	}
	if _, err := c.Documents(-1); err == nil {
		t.Error("limit -1")
	}
}
