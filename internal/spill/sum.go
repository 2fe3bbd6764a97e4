package spill

import (
	"encoding/binary"
	"hash/maphash"
	"math/bits"
	"math/rand/v2"
)

// summer makes sums of bytes, under a key that nobody else knows. It is a folded
// multiplication (Makarov's MUM hash, 2016, and wyhash after it): two words of the data,
// each combined with what is secret, are multiplied to 128 bits, of which both halves
// make the next state. Four states take turns, so that the processor need not wait for
// a product, and start as different ones, so that none can stand for another. It takes
// three fifths of the time of hash/maphash, which copies over a connection have little
// of (docs/lending.md).
type summer struct {
	rest   maphash.Seed // for what is less than a row
	states [4]uint64
	key    uint64
}

func newSummer() summer {
	s := summer{rest: maphash.MakeSeed(), key: rand.Uint64()}
	for i := range s.states {
		s.states[i] = rand.Uint64()
	}
	return s
}

// row is how many bytes all states take at once.
const row = 64

func (s *summer) sum(data []byte) uint64 {
	a, b, c, d, key := s.states[0], s.states[1], s.states[2], s.states[3], s.key
	i := 0
	for ; i+row <= len(data); i += row {
		words := data[i : i+row : i+row]
		a = fold(word(words)^key, word(words[8:])^a)
		b = fold(word(words[16:])^key, word(words[24:])^b)
		c = fold(word(words[32:])^key, word(words[40:])^c)
		d = fold(word(words[48:])^key, word(words[56:])^d)
	}
	return a ^ b ^ c ^ d ^ maphash.Bytes(s.rest, data[i:])
}

func fold(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	return high ^ low
}

func word(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }
