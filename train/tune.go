package train

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// tune has products take the algorithms that are known or, where none are, those
// that are measured until the next checkpoint, and of several ranks in the first step;
// without Config.Tune nothing of it.
func (t *Trainer) tune(known *device.Tuning) error {
	tuner := t.tuner()
	if tuner == nil {
		return nil
	}
	t.choosing = known == nil && t.par != nil
	return tuner.Tune(known)
}

// tuned is what a checkpoint keeps of that.
func (t *Trainer) tuned() *device.Tuning {
	if tuner := t.tuner(); tuner != nil {
		return tuner.Tuned()
	}
	return nil
}

// tuner is the device, where it tunes; nil where it can't, or must not: what ranks
// along tensor compute alike must be alike to the last bit, in the first step, too, and
// stages have other products each.
func (t *Trainer) tuner() device.Tuner {
	if !t.Config.Tune || t.par != nil && (t.par.at.tensor != nil || t.par.pipe != nil) {
		return nil
	}
	return device.TunerOf(t.mem.Device())
}

// agreeOnTuning has all ranks take what the first one chose, after the first step.
func (t *Trainer) agreeOnTuning() error {
	if !t.choosing {
		return nil
	}
	t.choosing = false
	chosen, err := json.Marshal(t.tuned())
	if err == nil {
		chosen, err = t.par.tell(chosen)
	}
	var known *device.Tuning
	if err == nil {
		err = json.Unmarshal(chosen, &known)
	}
	if err == nil && known != nil {
		err = errors.Join(known.Validate(), t.tune(known))
	}
	if err != nil {
		return t.par.fail(fmt.Errorf("algorithms of products: %w", err))
	}
	return nil
}

// tell gives all ranks the first one's data, which is not empty.
func (l *parallel) tell(data []byte) ([]byte, error) {
	n := []float32{0}
	if l.Group.Rank() == 0 {
		n[0] = float32(len(data))
	}
	if err := l.agree(dist.Max, n...); err != nil {
		return nil, err
	}
	words := make([]int32, (int(n[0])+3)/4)
	err := l.rt.Try(func() {
		t := l.rt.Empty(tensor.Int32, trace.Workspace, len(words))
		defer t.Release()
		copy(device.BytesOf(words), data)
		t.Upload(device.BytesOf(words))
		l.Group.Broadcast(l.rt.Stream(), 0, buf(t))
		t.Download(device.BytesOf(words))
	})
	return device.BytesOf(words)[:int(n[0])], l.failure(errors.Join(err, l.rt.Sync()))
}
