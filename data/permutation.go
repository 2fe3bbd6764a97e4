package data

import "math/bits"

// permutation is a pseudo-random order of 0 ... n-1 that needs no table: a
// Feistel cipher on the smallest even number of bits that holds n, applied
// until the result is below n (Black and Rogaway 2002, "Ciphers with arbitrary
// finite domains"). On average that takes less than four applications.
type permutation struct {
	n    uint64
	half int // bits of one half of the cipher's block
	keys [8]uint64
}

func newPermutation(n int, seed uint64) permutation {
	p := permutation{n: uint64(n), half: max(1, (bits.Len64(uint64(n-1))+1)/2)}
	for i := range p.keys {
		p.keys[i] = mix(seed + uint64(i))
	}
	return p
}

// at is the i-th number of the order.
func (p *permutation) at(i int) int {
	x := p.encrypt(uint64(i))
	for x >= p.n {
		x = p.encrypt(x)
	}
	return int(x)
}

func (p *permutation) encrypt(x uint64) uint64 {
	mask := uint64(1)<<p.half - 1
	left, right := x>>p.half, x&mask
	for _, key := range p.keys {
		left, right = right, left^mix(right^key)&mask
	}
	return left<<p.half | right
}

// mix is one step of SplitMix64 from state x (Steele, Lea and Flood 2014): a
// bijection that spreads every bit over all.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
