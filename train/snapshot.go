package train

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/headroom-go/headroom/inspect"
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

// snapshotName is the form of further ranks' names.
var snapshotName = regexp.MustCompile(`^memory\.([1-9][0-9]*)\.pickle$`)

// removeStale removes the snapshots that a run of more ranks than this one has left in
// the folder, so that all that lie there are of one job. The rank that writes calls it
// before the first step, and so before any other rank's snapshot.
func (r *Run) removeStale() error {
	ranks := 1
	if r.Trainer != nil && r.Trainer.par != nil {
		ranks = r.Trainer.par.Group.Size()
	}
	entries, err := os.ReadDir(r.Dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		m := snapshotName.FindStringSubmatch(e.Name())
		if m == nil || !e.Type().IsRegular() {
			continue
		}
		if rank, err := strconv.Atoi(m[1]); err != nil || rank < ranks { // no rank's that ever was
			continue
		}
		if err := os.Remove(filepath.Join(r.Dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
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
	result, err := r.placed(step, parts)
	rt.Observe(nil)
	mem.SetSink(nil, 0)
	if err != nil {
		return result, err
	}
	s := &trace.Snapshot{Segments: mem.Segments(), Traces: []*trace.Trace{events.Trace()}, Settings: mem.Settings(), Annotations: parts.List}
	return result, atomicfile.Write(filepath.Join(r.Dir, r.snapshotFile()), func(w io.Writer) error { return s.WritePickle(w) })
}

// placed runs a step as a range that says which rank of the job this is, if it is one.
func (r *Run) placed(step func() (Result, error), parts *profile.Annotations) (result Result, err error) {
	if r.Trainer.par == nil {
		return r.annotated(step, parts)
	}
	r.Trainer.rt.Range(r.Trainer.par.note(), func() { result, err = r.annotated(step, parts) })
	return result, err
}

// note says which rank this is, and where it stands along the axes that have several:
// "rank 3 of 8: pipeline 1 of 2, data 1 of 4, parameters sharded". Axes count from 0, as
// ranks do.
func (l *parallel) note() string {
	rank, ranks := l.Group.Rank(), l.Group.Size()
	axes, err := l.Mesh.axes(ranks)
	if err != nil {
		panic(err) // the trainer was made of them
	}
	var where []string
	stride := ranks
	for _, a := range axes {
		if stride /= a.Size; a.Size > 1 {
			where = append(where, fmt.Sprintf("%s %d of %d", a.Name, rank/stride%a.Size, a.Size))
		}
	}
	if l.Shard != ShardNothing {
		where = append(where, [...]string{ShardState: "state", ShardGradients: "gradients", ShardParameters: "parameters"}[l.Shard]+" sharded")
	}
	return fmt.Sprintf("%s%d of %d: %s", inspect.RankNote, rank, ranks, strings.Join(where, ", "))
}
