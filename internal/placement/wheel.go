package placement

import (
	"math"
	"math/rand/v2"
)

// A wheel repeats dives and oils what squeaks: the keys of items that ended
// above the aim rise, so that the next dive places them earlier (squeaky wheel
// optimization, Joslin and Clements 1999).
type wheel struct {
	*diver
	rnd   *rand.Rand
	base  [][]float64 // the orders to begin from
	blame [][]float64 // of each order, what has been added to the keys
	keys  []float64
	turn  int
}

func newWheel(p *part, rnd *rand.Rand) *wheel {
	w := &wheel{diver: newDiver(p), rnd: rnd, base: orders(p), keys: make([]float64, len(p.items))}
	for range w.base {
		w.blame = append(w.blame, make([]float64, len(p.items)))
	}
	return w
}

// orders returns the keys to begin from: the longest-lived first, then
// mixtures of lifetime and size, then the items of the fullest sections.
func orders(p *part) [][]float64 {
	full := make([]float64, len(p.items))
	sums := newMaxima(p.sums())
	for i, it := range p.items {
		full[i] = float64(sums.over(it.first, it.end)) / float64(p.bound)
	}
	mix := func(life, size, fullness float64) []float64 {
		keys := make([]float64, len(p.items))
		for i, it := range p.items {
			keys[i] = life*math.Log(float64(it.end-it.first)) + size*math.Log(float64(it.size)) + fullness*full[i]
		}
		return keys
	}
	return [][]float64{mix(1, 0, 0), mix(1, 1, 0), mix(1, 0.3, 0), mix(0, 1, 0), mix(1, 0.3, 3)}
}

// step dives once, aiming at the height. The offsets are valid until the next step.
func (w *wheel) step(aim int64) int64 {
	o := w.turn % len(w.base)
	first := w.turn < len(w.base)
	w.turn++
	noise := 0.1
	if first {
		noise = 0
	}
	for i := range w.keys {
		w.keys[i] = w.base[o][i] + w.blame[o][i] + noise*w.rnd.Float64()
	}
	peak := w.dive(w.keys)
	for i, it := range w.p.items {
		w.blame[o][i] *= 0.9
		if w.offsets[i]+it.size > aim {
			w.blame[o][i] += 0.5
		}
	}
	return peak
}
