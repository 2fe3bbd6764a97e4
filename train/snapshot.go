package train

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/headroom-go/headroom/internal/atomicfile"
	"github.com/headroom-go/headroom/profile"
	"github.com/headroom-go/headroom/trace"
)

// SnapshotFile is the name of the memory snapshot in a run's folder, in the
// format of PyTorch's memory snapshots. Further ranks write one, too, such as
// memory.2.pickle.
const SnapshotFile = "memory.pickle"

// snapshotFile is the name of this rank's.
func (r *Run) snapshotFile() string {
	if r.writes() {
		return SnapshotFile
	}
	return fmt.Sprintf("memory.%d.pickle", r.Trainer.par.Group.Rank())
}

// stackDepth is the number of frames recorded with a block.
const stackDepth = 24

// What the stacks of a block's begin and end take, about, and the share of a
// step that stacks for a profile may take.
const (
	stackSeconds = 3e-6
	stackShare   = 0.005
)

// recorded runs one step and, for the second of a process (the first where
// there is but one), when memory is as in all later ones, records every event
// with its stack and writes the snapshot, in which the parts of the step are
// annotated. The step after it is profiled if that is asked for.
func (r *Run) recorded(step func() (Result, error)) (Result, error) {
	if r.snapped && r.Profile && !r.looked {
		r.looked = true
		return r.profiled(step)
	}
	if r.snapped || r.stepped == 0 && r.Trainer.Config.Schedule.Steps > 1+r.Trainer.Steps() {
		return step()
	}
	r.snapped = true
	rt, mem, events := r.Trainer.rt, r.Trainer.Memory(), trace.NewRecorder(0)
	parts := profile.NewAnnotations(mem)
	mem.SetSink(events, stackDepth)
	rt.Observe(parts)
	result, err := r.annotated(step, parts)
	rt.Observe(nil)
	mem.SetSink(nil, 0)
	if err != nil {
		return result, err
	}
	s := &trace.Snapshot{Segments: mem.Segments(), Traces: []*trace.Trace{events.Trace()}, Settings: mem.Settings(), Annotations: parts.List}
	return result, atomicfile.Write(filepath.Join(r.Dir, r.snapshotFile()), func(w io.Writer) error { return s.WritePickle(w) })
}
