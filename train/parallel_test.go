package train_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/train"
)

// small buckets, so that tiny models have several.
const smallBucket = 4 << 10

// ranksOf runs f as each of so many ranks of a training of c.
func ranksOf(t *testing.T, n int, c train.Config, s train.Strategy, shard train.Shard, dir string, f func(rank int, r *train.Run) error) {
	t.Helper()
	share, err := c.Share(n)
	if err != nil {
		t.Fatal(err)
	}
	var ended sync.WaitGroup
	for _, g := range dist.Local(n, dist.Options{}) {
		ended.Go(func() {
			err := func() error {
				dev, err := device.OpenHost(device.HostOptions{Capacity: 64 << 20, Workers: 1})
				if err != nil {
					return err
				}
				tr, err := train.NewParallel(dev, share, s, train.Parallel{Group: g, Shard: shard, Bucket: smallBucket})
				if err != nil {
					return errors.Join(err, dev.Close())
				}
				err = f(g.Rank(), &train.Run{Trainer: tr, Feed: &noise{fields: c.Fields()}, Dir: dir})
				return errors.Join(err, tr.Close(), dev.Close())
			}()
			if err != nil {
				g.Fail(err)
			}
			if err := errors.Join(err, g.Close()); err != nil {
				t.Errorf("rank %d: %v", g.Rank(), err)
			}
		})
	}
	ended.Wait()
}

// trained runs c on ranks and gives the losses of rank 0 after checking that all
// ranks have the same ones.
func trained(t *testing.T, n int, c train.Config, s train.Strategy, shard train.Shard, dir string) []float64 {
	t.Helper()
	all := make([][]float64, n)
	ranksOf(t, n, c, s, shard, dir, func(rank int, r *train.Run) error {
		r.OnStep = func(p train.Progress) { all[rank] = append(all[rank], p.Loss) }
		_, err := r.Do(context.Background())
		return err
	})
	for _, l := range all[1:] {
		if !slices.Equal(l, all[0]) {
			t.Errorf("ranks have the losses %v and %v", all[0], l)
		}
	}
	return all[0]
}

// TestRanksChangeNothing: 2 and 4 ranks have the losses of one device, whatever
// is sharded, also with micro-batches and recompute.
func TestRanksChangeNothing(t *testing.T) {
	eachFamily(t, func(t *testing.T, c train.Config) {
		if !c.Divisible() {
			if _, err := c.Share(2); err == nil {
				t.Error("a batch that is normalised over was shared")
			}
			return
		}
		c.Batch, c.Schedule.Steps = 8, 12
		if invariant.Enabled { // checking takes its time
			c.Schedule.Steps = 2
		}
		want := losses(t, noisy(t, t.TempDir(), c, c.Plain()))
		plain, small := train.Strategy{MicroBatch: 4}, train.Strategy{MicroBatch: 1, Recompute: c.Blocks()}
		for _, v := range []struct {
			ranks int
			shard train.Shard
			s     train.Strategy
		}{
			{2, train.ShardNothing, plain}, {2, train.ShardState, plain}, {2, train.ShardGradients, plain},
			{4, train.ShardNothing, small}, {4, train.ShardState, small}, {4, train.ShardGradients, small},
		} {
			got := trained(t, v.ranks, c, v.s, v.shard, t.TempDir())
			for i := range want {
				if math.Abs(got[i]-want[i]) > 1e-5*want[i] {
					t.Errorf("%+v: losses %v, want %v", v, got, want)
					break
				}
			}
		}
	})
}

// TestRanksSave: a run cut after its second step on 4 ranks goes on with 1, 2,
// 3 or 4, whatever was sharded, and has the losses of one that was not cut. What
// was saved by 4 and is saved again by others is the same to the last bit.
func TestRanksSave(t *testing.T) {
	c := families()["moe"]
	c.Batch, c.Schedule.Steps = 12, 4
	want := losses(t, noisy(t, t.TempDir(), c, c.Plain()))
	for _, shard := range []train.Shard{train.ShardNothing, train.ShardState, train.ShardGradients} {
		dir := t.TempDir()
		stop, cancel := context.WithCancel(context.Background())
		ranksOf(t, 4, c, train.Strategy{MicroBatch: 3}, shard, dir, func(_ int, r *train.Run) error {
			r.OnStep = func(p train.Progress) {
				if p.Step == 2 {
					cancel()
				}
			}
			out, err := r.Do(stop)
			if err == nil && (!out.Interrupted || out.Steps != 2) {
				t.Errorf("outcome %+v", out)
			}
			return err
		})
		saved, err := os.ReadFile(filepath.Join(dir, train.CheckpointFile))
		if err != nil {
			t.Fatal(err)
		}
		for n := 1; n <= 4; n++ {
			if invariant.Enabled && n != 3 {
				continue
			}
			again := t.TempDir()
			if err := os.WriteFile(filepath.Join(again, train.CheckpointFile), saved, 0o644); err != nil {
				t.Fatal(err)
			}
			next := train.Shard((int(shard) + n) % 3)
			var got []float64
			ranksOf(t, n, c, train.Strategy{MicroBatch: 12 / n}, next, again, func(rank int, r *train.Run) error {
				cp, err := train.OpenCheckpoint(again)
				if err != nil {
					return err
				}
				defer cp.Close()
				if err := r.Resume(cp); err != nil {
					return err
				}
				other := filepath.Join(again, "saved") // by the first rank, the others know it, too
				if err := os.MkdirAll(other, 0o755); err != nil {
					return err
				}
				if err := r.Trainer.Save(other, cp.State); err != nil {
					return err
				}
				copied, err := os.ReadFile(filepath.Join(other, train.CheckpointFile))
				if err != nil || !bytes.Equal(copied, saved) {
					t.Errorf("saved by 4 ranks with shard %d and by %d with shard %d: the files differ (%v)", shard, n, next, err)
				}
				if rank == 0 {
					r.OnStep = func(p train.Progress) { got = append(got, p.Loss) }
				}
				_, err = r.Do(context.Background())
				return err
			})
			for i, l := range got {
				if math.Abs(l-want[2+i]) > 1e-5*want[2+i] {
					t.Errorf("shard %d on 4 ranks, then %d on %d: losses %v, want %v", shard, next, n, got, want[2:])
					break
				}
			}
			if len(got) != 2 {
				t.Errorf("%d steps after the resume", len(got))
			}
		}
	}
}

// TestRanksEvaluate: ranks that share a test set have the score that one device
// has, also where there are fewer samples than ranks.
func TestRanksEvaluate(t *testing.T) {
	for _, name := range []string{"classes", "gpt2"} {
		c := families()[name]
		for _, samples := range []int{7, 3} {
			set := &noise{fields: c.Fields(), n: samples}
			want, err := noisy(t, t.TempDir(), c, c.Plain()).Trainer.Evaluate(set)
			if err != nil {
				t.Fatal(err)
			}
			ranksOf(t, 4, c, train.Strategy{MicroBatch: 1}, train.ShardNothing, "", func(rank int, r *train.Run) error {
				got, err := r.Trainer.Evaluate(set)
				if got.Samples != samples || math.Abs(got.Loss-want.Loss) > 1e-6*want.Loss || math.Abs(got.Accuracy-want.Accuracy) > 1e-6 {
					t.Errorf("%s, %d samples: rank %d has %+v, want %+v", name, samples, rank, got, want)
				}
				return err
			})
		}
	}
}

// TestRanksPrecision: in float16, with a loss scale that is too high at first,
// all ranks leave out the same steps and then have the losses of one device.
func TestRanksPrecision(t *testing.T) {
	c := families()["gpt2"]
	c.Precision, c.Schedule.Steps = tensor.Float16, 3
	lines := func(r *train.Run, to *[]string, losses *[]float64) {
		r.OnStep = func(p train.Progress) {
			*to = append(*to, fmt.Sprint(p.Step, p.Skipped))
			if !p.Skipped {
				*losses = append(*losses, p.Loss)
			}
		}
	}
	var want []string
	var wantLosses []float64
	alone := noisy(t, t.TempDir(), c, c.Plain())
	lines(alone, &want, &wantLosses)
	if _, err := alone.Do(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, shard := range []train.Shard{train.ShardNothing, train.ShardGradients} {
		got, gotLosses := make([][]string, 2), make([][]float64, 2)
		ranksOf(t, 2, c, train.Strategy{MicroBatch: 2}, shard, t.TempDir(), func(rank int, r *train.Run) error {
			lines(r, &got[rank], &gotLosses[rank])
			_, err := r.Do(context.Background())
			return err
		})
		for rank := range 2 {
			if !slices.Equal(got[rank], want) {
				t.Errorf("rank %d has the steps %v, want %v", rank, got[rank], want)
			}
			for i, l := range gotLosses[rank] {
				if math.Abs(l-wantLosses[i]) > 2e-3*wantLosses[i] {
					t.Errorf("rank %d has the losses %v, want %v", rank, gotLosses[rank], wantLosses)
				}
			}
		}
	}
}

// TestRanksShort takes away most of the memory that one rank uses beside its
// weights: both go the same rungs down and later up again, at any share, and have
// the losses of one device. Where next to nothing is left, both fail with the
// number of the rank.
func TestRanksShort(t *testing.T) {
	if invariant.Enabled {
		t.Skip("under the race detector memory comes in segments too large to take half of them away")
	}
	c := config()
	c.GPT2.Width, c.GPT2.Layers = 64, 6
	c.Batch, c.Seq, c.GPT2.Context, c.Schedule.Steps = 16, 64, 64, 18
	want := losses(t, noisy(t, t.TempDir(), c, c.Plain()))
	for _, shard := range []train.Shard{train.ShardNothing, train.ShardState, train.ShardGradients} {
		micro := 4
		if shard == train.ShardNothing {
			micro = 8
		}
		events := make([][]string, 2)
		runShort(t, c, shard, micro, 2, func(rank int, p train.Progress) {
			for _, e := range p.Events {
				if e.Kind == "retry" || e.Kind == "climb" {
					events[rank] = append(events[rank], fmt.Sprint(p.Step, " ", e.Kind))
				}
			}
			if w := want[p.Step-1]; math.Abs(p.Loss-w) > 1e-4*w {
				t.Errorf("shard %d, rank %d, step %d: loss %v, want %v", shard, rank, p.Step, p.Loss, w)
			}
		}, nil)
		if all := strings.Join(events[0], " "); !slices.Equal(events[0], events[1]) || !strings.Contains(all, "4 retry") || !strings.Contains(all, "climb") {
			t.Errorf("shard %d, micro-batches of %d: the ranks had %v and %v", shard, micro, events[0], events[1])
		}
		failed := make([]error, 2)
		runShort(t, c, shard, 4, 1000, func(int, train.Progress) {}, failed)
		for rank, err := range failed {
			if err == nil || !strings.Contains(err.Error(), "rank 1: ") || !errors.Is(err, device.ErrOutOfMemory) {
				t.Errorf("shard %d, rank %d: error %v", shard, rank, err)
			}
		}
	}
}

// runShort trains on two ranks, of which the second keeps after three steps one
// part in so many of its memory beside the weights. failed gets the errors; nil:
// there are to be none.
func runShort(t *testing.T, c train.Config, shard train.Shard, micro int, part uint64, step func(rank int, p train.Progress), failed []error) {
	t.Helper()
	share, err := c.Share(2)
	if err != nil {
		t.Fatal(err)
	}
	var ended sync.WaitGroup
	for _, g := range dist.Local(2, dist.Options{}) {
		ended.Go(func() {
			dev := &shared{Device: host(t), limit: math.MaxUint64, sizes: map[device.Ptr]uint64{}}
			tr, err := train.NewParallel(dev, share, train.Strategy{MicroBatch: micro}, train.Parallel{Group: g, Shard: shard, Bucket: smallBucket})
			if err != nil {
				t.Error(err)
				return
			}
			weights := dev.taken
			r := &train.Run{Trainer: tr, Feed: &noise{fields: c.Fields()}, Dir: t.TempDir()}
			r.OnStep = func(p train.Progress) {
				step(g.Rank(), p)
				if p.Step == 3 && g.Rank() == 1 {
					dev.limit = weights + (dev.taken-weights)/part
					if _, err := tr.Memory().Trim(0); err != nil {
						t.Error(err)
					}
				}
				if p.Step == 5 {
					dev.limit = math.MaxUint64
				}
			}
			_, err = r.Do(context.Background())
			if failed != nil {
				failed[g.Rank()] = err
			} else if err != nil {
				t.Errorf("shard %d, rank %d: %v", shard, g.Rank(), err)
			}
			if err := tr.Close(); err != nil && failed == nil {
				t.Error(err)
			}
			g.Close()
		})
	}
	ended.Wait()
}

// TestRanksFail lets the data of one rank fail: all end with its number and
// reason, and none waits for ever.
func TestRanksFail(t *testing.T) {
	c := families()["gpt2"]
	share, err := c.Share(2)
	if err != nil {
		t.Fatal(err)
	}
	var ended sync.WaitGroup
	for _, g := range dist.Local(2, dist.Options{}) {
		ended.Go(func() {
			tr, err := train.NewParallel(host(t), share, share.Plain(), train.Parallel{Group: g, Shard: train.ShardState})
			if err != nil {
				t.Error(err)
				return
			}
			_, err = (&train.Run{Trainer: tr, Feed: &broken{noise{fields: c.Fields()}, g.Rank() == 1}, Dir: t.TempDir()}).Do(context.Background())
			if err == nil || err.Error() != "rank 1: a page is missing" || g.Err() == nil {
				t.Errorf("rank %d: error %v", g.Rank(), err)
			}
			tr.Close()
			g.Close()
		})
	}
	ended.Wait()
}

// broken is a feed that ends after two batches, if it is bad.
type broken struct {
	noise
	bad bool
}

func (f *broken) Next(arrays ...any) error {
	if f.bad && f.n == 2 {
		return errors.New("a page is missing")
	}
	return f.noise.Next(arrays...)
}

// TestRanksDiffer: where gradients are sharded, ranks with micro-batches of
// different sizes say so instead of waiting for each other.
func TestRanksDiffer(t *testing.T) {
	c := families()["gpt2"]
	share, err := c.Share(2)
	if err != nil {
		t.Fatal(err)
	}
	var ended sync.WaitGroup
	for _, g := range dist.Local(2, dist.Options{}) {
		ended.Go(func() {
			dev := host(t)
			tr, err := train.NewParallel(dev, share, train.Strategy{MicroBatch: 1 + g.Rank()}, train.Parallel{Group: g, Shard: train.ShardGradients})
			if err != nil {
				t.Error(err)
				return
			}
			_, err = (&train.Run{Trainer: tr, Feed: &noise{fields: c.Fields()}, Dir: t.TempDir()}).Do(context.Background())
			if err == nil || !strings.Contains(err.Error(), "micro-batches of 1 to 2 samples") {
				t.Errorf("rank %d: error %v", g.Rank(), err)
			}
			tr.Close()
			g.Close()
		})
	}
	ended.Wait()
}

// TestRanksOverlap looks at the order in which a step queues its work: in the
// last micro-batch alone gradients are reduced, a bucket at a time, and the first
// buckets before the last operations of backward.
func TestRanksOverlap(t *testing.T) {
	c := families()["gpt2"]
	var names []string
	dev, err := device.OpenNull(device.NullOptions{Capacity: 1 << 30, Virtual: true, OnLaunch: func(l *device.Launch) { names = append(names, l.Kernel.Name) }})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := train.NewParallel(dev, c, train.Strategy{MicroBatch: 1}, train.Parallel{Group: dist.Null(0, 2), Bucket: smallBucket})
	if err != nil {
		t.Fatal(err)
	}
	names = nil
	if _, err := tr.Step(c.NewBatch()...); err != nil {
		t.Fatal(err)
	}
	counts, later := map[string][]int{}, 0
	for i, name := range names {
		counts[name] = append(counts[name], i)
	}
	reduced, backward := counts["all_reduce"], counts["embedding_grad"]
	for _, i := range reduced {
		if i < backward[len(backward)-1] {
			later++
		}
	}
	if want := 5; len(reduced) < want || later < want-2 || reduced[0] < backward[len(backward)-3] {
		t.Errorf("buckets are reduced at %v, %d of them before the last of backward at %v", reduced, later, backward)
	}
	if err := errors.Join(tr.Close(), dev.Close()); err != nil {
		t.Error(err)
	}
}
