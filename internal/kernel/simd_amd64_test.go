package kernel

import "testing"

// eachSIMD runs f with every instruction set that this processor has.
func eachSIMD(t *testing.T, f func(t *testing.T)) {
	best := bestSIMD()
	defer func() { vectors = best }()
	for set, name := range []string{"Go", "AVX2", "AVX-512"} {
		if simd(set) <= best {
			vectors = simd(set)
			t.Run(name, f)
		}
	}
}
