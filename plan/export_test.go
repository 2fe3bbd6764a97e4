package plan

import (
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/train"
)

// AllAway is s with every value moved away that can be.
func AllAway(info device.Info, c train.Config, s train.Strategy) (train.Strategy, error) {
	free, err := Try(info, unlimited, c, s, Options{})
	if err != nil {
		return s, err
	}
	p, err := task{info: info, c: c}.record(free)
	if err != nil {
		return s, err
	}
	s.Values = p.allAway()
	return s, nil
}
