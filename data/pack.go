package data

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
)

// IgnoredTarget is the target of a place that has no next token to predict.
const IgnoredTarget = -100

// Planes of a sample of Packed.
const (
	PackedTokens    = iota // the tokens, then padding
	PackedTargets          // the next token of the same sequence, else IgnoredTarget
	PackedSegments         // 1 for the row's first sequence, 2 for the next ...; 0 for padding
	PackedPositions        // the place in the sequence, from 0; 0 for padding
	packedPlanes
)

// Packed puts sequences of different lengths into rows of one length, several
// in a row, so that little is padding. Attention does not cross from one
// sequence to another if it is allowed only between places of one segment: a
// mask of blocks on the diagonal.
//
// It is a Source of int32 samples of shape [4, row]: tokens, targets, segments
// and positions. The rows are the same in every epoch; shuffle them.
type Packed struct {
	sequences Sequences
	row       int
	pad       int32
	rows      [][]int
	real      int // tokens without padding
}

// NewPacked packs the sequences into rows of the given number of tokens. Empty
// sequences are left out; one longer than a row is an error (Corpus.Documents
// cuts them).
func NewPacked(s Sequences, row int, pad int32) (*Packed, error) {
	lengths := make([]int, s.Len())
	p := &Packed{sequences: s, row: row, pad: pad}
	for i := range lengths {
		lengths[i] = s.Length(i)
		p.real += lengths[i]
	}
	var err error
	if p.rows, err = Pack(lengths, row); err == nil && len(p.rows) == 0 {
		err = fmt.Errorf("data: no tokens in %d sequences", len(lengths))
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Len is the number of rows.
func (p *Packed) Len() int { return len(p.rows) }

// Shape is [4, row].
func (p *Packed) Shape() []int { return []int{packedPlanes, p.row} }

// DType is Int32.
func (p *Packed) DType() DType { return Int32 }

// Waste is the part of all tokens that is padding.
func (p *Packed) Waste() float64 {
	return 1 - float64(p.real)/(float64(len(p.rows))*float64(p.row))
}

// Read fills dst with row i.
func (p *Packed) Read(i int, dst []byte) error {
	checkWhole(p, i, dst)
	all := make([]int32, packedPlanes*p.row)
	plane := func(k int) []int32 { return all[k*p.row:][:p.row] }
	tokens, targets, segments, positions := plane(PackedTokens), plane(PackedTargets), plane(PackedSegments), plane(PackedPositions)
	at := 0
	for segment, sequence := range p.rows[i] {
		end := at + p.sequences.Length(sequence)
		if err := p.sequences.Read(sequence, tokens[at:end]); err != nil {
			return fmt.Errorf("data: sequence %d: %w", sequence, err)
		}
		copy(targets[at:], tokens[at+1:end])
		targets[end-1] = IgnoredTarget
		for begin := at; at < end; at++ {
			segments[at], positions[at] = int32(segment+1), int32(at-begin)
		}
	}
	for ; at < p.row; at++ {
		tokens[at], targets[at] = p.pad, IgnoredTarget
	}
	for k, x := range all {
		binary.LittleEndian.PutUint32(dst[4*k:], uint32(x))
	}
	return nil
}

// Pack divides sequences of the given lengths among rows of one length: the
// longest first, each into the row that it fills best, a new one if it fits in
// none (best fit decreasing, which needs at most 11/9 of the least possible
// number of rows and 4 more; Johnson 1973). It gives the sequences of each row.
// Those of length 0 are in none.
func Pack(lengths []int, row int) ([][]int, error) {
	if row < 1 {
		return nil, fmt.Errorf("data: rows of %d tokens", row)
	}
	var order []int
	for i, n := range lengths {
		if n < 0 || n > row {
			return nil, fmt.Errorf("data: sequence %d has %d tokens, a row %d: cut it, or take longer rows", i, n, row)
		}
		if n > 0 {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(i, j int) int { return lengths[j] - lengths[i] })
	var rows [][]int
	room := newRooms(row)
	for _, i := range order {
		r, left := room.take(lengths[i])
		if r < 0 {
			r, left = len(rows), row
			rows = append(rows, nil)
		}
		rows[r] = append(rows[r], i)
		room.put(r, left-lengths[i])
	}
	return rows, nil
}

// rooms finds the row with the least room that is enough.
type rooms struct {
	rows [][]int  // by the room they have
	some []uint64 // a bit for each room that some row has
}

func newRooms(row int) *rooms {
	return &rooms{make([][]int, row+1), make([]uint64, row/64+1)}
}

func (r *rooms) put(row, room int) {
	r.rows[room] = append(r.rows[room], row)
	r.some[room/64] |= 1 << (room % 64)
}

// take removes a row with room for n, and gives -1 if there is none.
func (r *rooms) take(n int) (row, room int) {
	word := n / 64
	found := r.some[word] >> (n % 64) << (n % 64)
	for found == 0 {
		if word++; word == len(r.some) {
			return -1, 0
		}
		found = r.some[word]
	}
	room = word*64 + bits.TrailingZeros64(found)
	list := r.rows[room]
	row = list[len(list)-1]
	if r.rows[room] = list[:len(list)-1]; len(list) == 1 {
		r.some[room/64] &^= 1 << (room % 64)
	}
	return row, room
}
