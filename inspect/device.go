package inspect

import (
	"errors"
	"fmt"

	"github.com/headroom-go/headroom/trace"
)

// WorstDevice gives the device that ExplainSnapshot explains: the one that ran
// out of memory or, where none did, the one with the highest peak. The error
// says that the snapshot holds no memory.
func WorstDevice(s *trace.Snapshot) (int, error) {
	e, err := worstOf(s)
	if err != nil {
		return 0, err
	}
	return e.h.device, nil
}

func worstOf(s *trace.Snapshot) (*evidence, error) {
	var worst *evidence
	for d := range max(len(s.Traces), devices(s)) {
		e := examine(NewHistory(s, d))
		if e.reserved+e.live > 0 && (worst == nil || e.worse(worst)) {
			worst = e
		}
	}
	if worst == nil {
		return nil, errors.New("the snapshot holds no memory: neither events nor segments (was torch.cuda.memory._record_memory_history called?)")
	}
	return worst, nil
}

// knows is an error if the snapshot has no such device.
func knows(s *trace.Snapshot, device int) error {
	if n := max(len(s.Traces), devices(s)); device < 0 || device >= n {
		return fmt.Errorf("device %d is not in the snapshot, which has %d", device, n)
	}
	return nil
}
