package train_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/train"
)

// tuner is a host device that is told which algorithms to take, as a GPU is.
type tuner struct {
	device.Device
	told   []*device.Tuning
	chosen *device.Tuning
}

func (d *tuner) Tune(known *device.Tuning) error { d.told = append(d.told, known); return nil }
func (d *tuner) Tuned() *device.Tuning           { return d.chosen }

func tuning(algorithm int) *device.Tuning {
	t := &device.Tuning{Model: "GPU", Library: 130200, Chosen: make([]device.TunedProduct, 2)}
	t.Chosen[0].M, t.Chosen[0].TransA, t.Chosen[0].StrideD, t.Chosen[1].Algorithm = 1600, true, 512, algorithm
	return t
}

// tunedRun runs c for some steps on a device that chooses an algorithm, from the
// checkpoint in dir if there is one.
func tunedRun(t *testing.T, c train.Config, dir string, algorithm, steps int) (d *tuner, err error) {
	t.Helper()
	d = &tuner{Device: host(t), chosen: tuning(algorithm)}
	tr, err := train.New(d, c, c.Plain())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { err = errors.Join(err, tr.Close()) }()
	r := &train.Run{Trainer: tr, Feed: train.Text(batches(t, c)), Dir: dir}
	cp, err := train.OpenCheckpoint(dir)
	if err == nil {
		defer cp.Close()
		err = r.Resume(cp)
	} else if strings.Contains(err.Error(), "no checkpoint to go on from") {
		err = nil
	}
	if err != nil {
		return d, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r.OnStep = func(p train.Progress) {
		if p.Step == steps {
			cancel()
		}
	}
	_, err = r.Do(ctx)
	return d, err
}

// TestTuningSurvives: a run begins by measuring, and one that goes on takes what a
// checkpoint keeps.
func TestTuningSurvives(t *testing.T) {
	c := config()
	c.Tune = true
	dir := t.TempDir()
	first, err := tunedRun(t, c, dir, 3, 2)
	if err != nil || !reflect.DeepEqual(first.told, []*device.Tuning{nil}) {
		t.Errorf("a new run tells the device %+v: %v", first.told, err)
	}
	second, err := tunedRun(t, c, dir, 5, 4)
	if err != nil || !reflect.DeepEqual(second.told, []*device.Tuning{nil, tuning(3)}) {
		t.Errorf("a resumed run tells the device %+v: %v", second.told, err)
	}
	if third, err := tunedRun(t, c, dir, 5, 6); err != nil || !reflect.DeepEqual(third.told, []*device.Tuning{nil, tuning(5)}) {
		t.Errorf("a run that is resumed again tells the device %+v: %v", third.told, err)
	}
	c.Tune = false
	if _, err := tunedRun(t, c, dir, 0, 6); err == nil || !strings.Contains(err.Error(), "tune: true in the checkpoint, false asked") {
		t.Errorf("a tuned run is resumed without: %v", err)
	}
}

// TestTuningIsLeftOut: without Tune the device is told nothing, and a checkpoint keeps
// nothing.
func TestTuningIsLeftOut(t *testing.T) {
	c, dir := config(), t.TempDir()
	d, err := tunedRun(t, c, dir, 3, 2)
	if err != nil || d.told != nil {
		t.Errorf("without Tune the device is told %+v: %v", d.told, err)
	}
	cp, err := train.OpenCheckpoint(dir)
	if err != nil || cp.State.Tuning != nil {
		t.Fatalf("the checkpoint keeps %+v: %v", cp.State.Tuning, err)
	}
	cp.Close()
}

// TestRanksTune: after the first step both ranks take what the first one chose, also
// where that is nothing, and where they divide a layer or the layers they are told
// nothing.
func TestRanksTune(t *testing.T) {
	for _, of := range []struct {
		mesh   train.Mesh
		chosen [2]*device.Tuning
		told   []*device.Tuning
	}{
		{chosen: [2]*device.Tuning{tuning(3), tuning(5)}, told: []*device.Tuning{nil, tuning(3)}},
		{chosen: [2]*device.Tuning{nil, tuning(5)}, told: []*device.Tuning{nil}},
		{mesh: train.Mesh{Tensor: 2}, chosen: [2]*device.Tuning{tuning(3), tuning(5)}},
		{mesh: train.Mesh{Pipeline: 2}, chosen: [2]*device.Tuning{tuning(3), tuning(5)}},
	} {
		c, dir := config(), t.TempDir()
		c.Tune = true
		for rank, err := range eachRank(2, func(g dist.Group) error {
			d := &tuner{Device: host(t), chosen: of.chosen[g.Rank()]}
			return trainer(g, d, c, train.Strategy{MicroBatch: 2}, train.Parallel{Mesh: of.mesh}, func(tr *train.Trainer) error {
				r := &train.Run{Trainer: tr, Feed: &noise{fields: c.Fields()}, Dir: dir}
				if _, err := r.Do(context.Background()); err != nil {
					return err
				}
				if !reflect.DeepEqual(d.told, of.told) {
					t.Errorf("on %+v rank %d is told %+v, want %+v", of.mesh, g.Rank(), d.told, of.told)
				}
				return nil
			})
		}) {
			if err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		}
	}
}

// TestTuningIsChecked: an algorithm that there can't be is refused.
func TestTuningIsChecked(t *testing.T) {
	c := config()
	c.Tune = true
	dir := t.TempDir()
	if _, err := tunedRun(t, c, dir, 8, 2); err != nil {
		t.Fatal(err)
	}
	if _, err := train.OpenCheckpoint(dir); err == nil || !strings.Contains(err.Error(), "algorithm 8 for a product of") {
		t.Errorf("algorithm 8 of 8: %v", err)
	}
}
