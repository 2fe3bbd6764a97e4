package data

import (
	"fmt"
	"math"
	"slices"
)

// Sequences are token sequences of different lengths, read one by one in any
// order. The methods may be called concurrently.
type Sequences interface {
	// Len is the number of sequences.
	Len() int

	// Length is the number of tokens of sequence i.
	Length(i int) int

	// Read fills dst, which has Length(i) elements.
	Read(i int, dst []int32) error
}

// Documents are the documents of a corpus, or pieces of them.
type Documents struct {
	corpus *Corpus
	starts []int // the last one is behind the end of a document that is not there
	ends   []int
}

// Documents finds the documents of the corpus by going through it once. A
// separator belongs to no document, and documents without tokens are left out.
// Longer ones than limit are cut into pieces of limit tokens and a rest; with a
// limit of 0 none is. Two numbers are kept for each document.
//
// The tokenizer of bytes separates documents by a newline, so that its
// documents are lines.
func (c *Corpus) Documents(limit int) (*Documents, error) {
	if limit < 0 {
		return nil, fmt.Errorf("data: documents cut at %d tokens", limit)
	}
	d := &Documents{corpus: c}
	separator, begin := c.tokenizer.Separator(), 0
	block := make([]int32, min(readSize, c.Len()))
	for at := 0; at < c.Len(); at += len(block) {
		block = block[:min(len(block), c.Len()-at)]
		if err := c.window(block, at); err != nil {
			return nil, err
		}
		for i, id := range block {
			if id == separator {
				d.add(begin, at+i, limit)
				begin = at + i + 1
			}
		}
	}
	d.add(begin, c.Len(), limit)
	return d, nil
}

// add takes the document [begin, end) in pieces.
func (d *Documents) add(begin, end, limit int) {
	for ; begin < end; begin = d.ends[len(d.ends)-1] {
		stop := end
		if limit > 0 {
			stop = min(end, begin+limit)
		}
		d.starts, d.ends = append(d.starts, begin), append(d.ends, stop)
	}
}

// Len is the number of documents.
func (d *Documents) Len() int { return len(d.starts) }

// Length is the number of tokens of document i.
func (d *Documents) Length(i int) int { return d.ends[i] - d.starts[i] }

// Read fills dst with the tokens of document i.
func (d *Documents) Read(i int, dst []int32) error {
	checkLength(d, i, dst)
	return d.corpus.window(dst, d.starts[i])
}

// Lists are sequences in memory.
type Lists [][]int32

// Len is the number of sequences.
func (l Lists) Len() int { return len(l) }

// Length is the number of tokens of sequence i.
func (l Lists) Length(i int) int { return len(l[i]) }

// Read copies sequence i.
func (l Lists) Read(i int, dst []int32) error {
	checkLength(l, i, dst)
	copy(dst, l[i])
	return nil
}

func checkLength(s Sequences, i int, dst []int32) {
	if n := s.Length(i); len(dst) != n {
		panic(fmt.Sprintf("data: room for %d tokens of sequence %d, which has %d", len(dst), i, n))
	}
}

// Padded is a batch of sequences, all padded to the length of the longest. It is
// used again for the next batch.
type Padded struct {
	Rows, Width int
	Tokens      []int32 // [Rows, Width]
	Lengths     []int32 // of the rows, without padding
	Samples     []int   // which sequences they are
}

// BucketOptions says how sequences are put into batches. Either Tokens and
// Multiple are set, or Rows and Widths.
type BucketOptions struct {
	Tokens   int    // most tokens of a batch, padding included: rows times width
	Multiple int    // the width is rounded up to a multiple of this, 1 at least
	Rows     int    // sequences of every batch
	Widths   []int  // the width is rounded up to one of these, which ascend
	Pad      int32  // the token to pad with
	Seed     uint64 // of the order; take another one for each epoch
}

// Buckets are batches of sequences of similar length, so that little is padded:
// the sequences are sorted by their rounded length, equal ones in random order,
// and cut into batches as large as Tokens allows, or of Rows. The order of the
// batches is random. All follows from the seed. It may be used concurrently.
//
// With Rows, fewer sequences than that may be left over: random ones.
type Buckets struct {
	sequences Sequences
	options   BucketOptions
	sorted    []int
	cuts      []int // batch i is sorted[cuts[i]:cuts[i+1]]
	order     permutation
	real, all int // tokens, without and with padding
	rows      int // of the batch with most
}

// NewBuckets sorts the sequences. Empty ones are left out; one longer than a
// batch or all Widths is an error.
func NewBuckets(s Sequences, o BucketOptions) (*Buckets, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	b := &Buckets{sequences: s, options: o}
	most := o.Tokens
	if o.Rows > 0 {
		most = o.Widths[len(o.Widths)-1]
	}
	for i := range s.Len() {
		n := s.Length(i)
		if n > most || n > 0 && b.width(i) > most {
			return nil, fmt.Errorf("data: sequence %d has %d tokens, and rounded up more than the %d that there is room for", i, n, most)
		}
		if n > 0 {
			b.sorted = append(b.sorted, i)
			b.real += n
		}
	}
	if len(b.sorted) < max(o.Rows, 1) {
		return nil, fmt.Errorf("data: %d of %d sequences have tokens: a batch needs %d", len(b.sorted), s.Len(), max(o.Rows, 1))
	}
	b.leaveOver()
	b.sort()
	b.cut()
	b.order = newPermutation(b.Len(), mix(o.Seed))
	return b, nil
}

func (o *BucketOptions) check() error {
	if o.Rows > 0 {
		if len(o.Widths) == 0 || o.Widths[0] < 1 || !slices.IsSorted(o.Widths) || o.Rows > math.MaxInt/o.Widths[len(o.Widths)-1] {
			return fmt.Errorf("data: batches of %d sequences with widths %d: these must be positive and ascend", o.Rows, o.Widths)
		}
		return nil
	}
	if o.Tokens < 1 || o.Multiple < 1 {
		return fmt.Errorf("data: batches of %d tokens with widths in multiples of %d: both must be positive", o.Tokens, o.Multiple)
	}
	return nil
}

// width is the length of sequence i, rounded up.
func (b *Buckets) width(i int) int {
	n := b.sequences.Length(i)
	if b.options.Rows > 0 {
		at, _ := slices.BinarySearch(b.options.Widths, n)
		return b.options.Widths[at]
	}
	m := b.options.Multiple
	return (n-1)/m*m + m
}

// leaveOver takes as many sequences away as fill no batch of Rows.
func (b *Buckets) leaveOver() {
	if b.options.Rows == 0 {
		return
	}
	key := mix(b.options.Seed + 2)
	for range len(b.sorted) % b.options.Rows {
		key = mix(key)
		i := int(key % uint64(len(b.sorted)))
		b.real -= b.sequences.Length(b.sorted[i])
		b.sorted[i] = b.sorted[len(b.sorted)-1]
		b.sorted = b.sorted[:len(b.sorted)-1]
	}
}

func (b *Buckets) sort() {
	key := mix(b.options.Seed + 1)
	slices.SortFunc(b.sorted, func(i, j int) int {
		if d := b.width(i) - b.width(j); d != 0 {
			return d
		}
		if x, y := mix(key^uint64(i)), mix(key^uint64(j)); x < y { // equal for i = j only
			return -1
		}
		return 1
	})
}

// fits says whether a batch of so many rows may be as wide as sequence i.
func (b *Buckets) fits(rows, i int) bool {
	if b.options.Rows > 0 {
		return rows <= b.options.Rows
	}
	return b.width(i) <= b.options.Tokens/rows
}

// cut ends a batch where the next sequence, the longest so far, would make it
// too large.
func (b *Buckets) cut() {
	b.cuts = []int{0}
	for k := 1; k <= len(b.sorted); k++ {
		rows := k - b.cuts[len(b.cuts)-1]
		if k < len(b.sorted) && b.fits(rows+1, b.sorted[k]) {
			continue
		}
		b.cuts = append(b.cuts, k)
		b.all += rows * b.width(b.sorted[k-1])
		b.rows = max(b.rows, rows)
	}
}

// Len is the number of batches.
func (b *Buckets) Len() int { return len(b.cuts) - 1 }

// Waste is the part of all tokens in the batches that is padding.
func (b *Buckets) Waste() float64 { return 1 - float64(b.real)/float64(b.all) }

// NewPadded makes a batch with room for every one of the batches.
func (b *Buckets) NewPadded() *Padded {
	most := b.options.Tokens
	if b.options.Rows > 0 {
		most = b.options.Rows * b.options.Widths[len(b.options.Widths)-1]
	}
	return &Padded{Tokens: make([]int32, 0, most), Lengths: make([]int32, 0, b.rows), Samples: make([]int, 0, b.rows)}
}

// Width is the width of batch i.
func (b *Buckets) Width(i int) int { return b.width(b.sorted[b.cuts[b.order.at(i)+1]-1]) }

// Read fills p, which NewPadded made, with batch i.
func (b *Buckets) Read(i int, p *Padded) error {
	k := b.order.at(i)
	p.Samples = append(p.Samples[:0], b.sorted[b.cuts[k]:b.cuts[k+1]]...)
	p.Rows, p.Width = len(p.Samples), b.Width(i)
	p.Tokens, p.Lengths = p.Tokens[:p.Rows*p.Width], p.Lengths[:0]
	for r, sample := range p.Samples {
		n := b.sequences.Length(sample)
		row := p.Tokens[r*p.Width:][:p.Width]
		if err := b.sequences.Read(sample, row[:n]); err != nil {
			return fmt.Errorf("data: sequence %d: %w", sample, err)
		}
		for i := n; i < p.Width; i++ {
			row[i] = b.options.Pad
		}
		p.Lengths = append(p.Lengths, int32(n))
	}
	return nil
}
