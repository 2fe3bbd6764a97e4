package nn

import "fmt"

// size is a number of a configuration, by its name there.
type size struct {
	name  string
	value int
}

// sizes says which size is out of bounds, if any. The limit keeps products of
// two sizes far from overflow.
func sizes(all ...size) error {
	const limit = 1 << 24
	for _, s := range all {
		if s.value < 1 || s.value > limit {
			return fmt.Errorf("%s is %d: it must be from 1 to %d", s.name, s.value, limit)
		}
	}
	return nil
}
