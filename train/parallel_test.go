package train_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/device/devicetest"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/internal/atomicfile"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/internal/safetensors"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/train"
)

// small buckets, so that tiny models have several.
const smallBucket = 4 << 10

// eachRank runs f as each of so many ranks of a job, and gives their errors. The
// first of them fails the job.
func eachRank(n int, f func(g dist.Group) error) []error {
	return each(dist.Local(n, dist.Options{}), f)
}

// each is eachRank of a job that was made.
func each(groups []dist.Group, f func(g dist.Group) error) []error {
	errs := make([]error, len(groups))
	var ended sync.WaitGroup
	for i, g := range groups {
		ended.Go(func() {
			errs[i] = errors.New("it ended the test")
			defer func() {
				if errs[i] != nil {
					g.Fail(errs[i])
				}
				errs[i] = errors.Join(errs[i], g.Close())
			}()
			errs[i] = f(g)
		})
	}
	ended.Wait()
	return errs
}

// trainer makes the trainer of a rank and runs f. p has all but the group.
func trainer(g dist.Group, dev device.Device, c train.Config, s train.Strategy, p train.Parallel, f func(tr *train.Trainer) error) error {
	places, err := p.Mesh.Places(g.Size())
	if err != nil {
		return err
	}
	share, err := c.Share(places)
	if err != nil {
		return err
	}
	p.Group, p.Bucket = g, smallBucket
	tr, err := train.NewParallel(dev, share, s, p)
	if err != nil {
		return err
	}
	return errors.Join(f(tr), tr.Close())
}

// ranksOf runs f as each of so many ranks of a training of c, spread as p says but
// for its group. No rank may fail.
func ranksOf(t *testing.T, n int, c train.Config, s train.Strategy, p train.Parallel, dir string, f func(rank int, r *train.Run) error) {
	t.Helper()
	for rank, err := range eachRank(n, func(g dist.Group) error {
		return placed(t, g, func(g dist.Group, dev device.Device) error {
			return trainer(g, dev, c, s, p, func(tr *train.Trainer) error {
				return f(g.Rank(), &train.Run{Trainer: tr, Feed: &noise{fields: c.Fields()}, Dir: dir})
			})
		})
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// placed gives a rank a device of its own: the host's, or where -device names a GPU the
// GPU of its number, and the group of those.
func placed(t *testing.T, g dist.Group, f func(g dist.Group, dev device.Device) error) error {
	if !devicetest.GPUs() {
		return f(g, host(t))
	}
	dev, err := device.Open(fmt.Sprintf("cuda:%d,256MiB", g.Rank()))
	if err != nil {
		return err // there are fewer GPUs
	}
	peers, err := dist.NewPeers(g, device.CUDAOf(dev))
	if err != nil {
		return errors.Join(err, dev.Close())
	}
	if err = f(peers, dev); err != nil {
		g.Fail(err)
	}
	return errors.Join(err, peers.End(), dev.Close())
}

// trained runs c on ranks and gives the losses of rank 0 after checking that all
// ranks have the same ones.
func trained(t *testing.T, n int, c train.Config, s train.Strategy, p train.Parallel, dir string) []float64 {
	t.Helper()
	all := make([][]float64, n)
	ranksOf(t, n, c, s, p, dir, func(rank int, r *train.Run) error {
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

// goesOn has so many ranks go on to the end from a copy of what lies in dir, after
// saving again what they read; look is called with the copy in between. It gives the
// losses of rank 0 after checking that all ranks have the same ones.
func goesOn(t *testing.T, n int, c train.Config, s train.Strategy, p train.Parallel, dir string, look func(again string)) []float64 {
	t.Helper()
	again, all := t.TempDir(), make([][]float64, n)
	if err := os.CopyFS(again, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	ranksOf(t, n, c, s, p, again, func(rank int, r *train.Run) error {
		cp, err := train.OpenCheckpoint(again)
		if err != nil {
			return err
		}
		defer cp.Close()
		if err := r.Resume(cp); err != nil {
			return err
		}
		if err := r.Trainer.Save(again, cp.State); err != nil {
			return err
		}
		if rank == 0 {
			look(again)
		}
		r.OnStep = func(p train.Progress) { all[rank] = append(all[rank], p.Loss) }
		_, err = r.Do(context.Background())
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
		if invariant.Slow { // checking takes its time
			if c.Schedule.Steps = 2; c.MoE.Experts == 0 {
				return
			}
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
			{2, train.ShardParameters, plain}, {4, train.ShardParameters, small},
		} {
			got := trained(t, v.ranks, c, v.s, train.Parallel{Shard: v.shard}, t.TempDir())
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
	for shard := train.ShardNothing; shard <= train.ShardParameters; shard++ {
		dir := t.TempDir()
		cutRanks(t, 4, c, train.Strategy{MicroBatch: 3}, train.Parallel{Shard: shard}, dir, 2)
		if parts := partsIn(t, dir); (len(parts) == 3) != (shard > train.ShardNothing) {
			t.Errorf("shard %d: the parts %q", shard, parts)
		}
		saved := alone(t, dir, c)
		for n := 1; n <= 4; n++ {
			if invariant.Slow && n != 3 {
				continue
			}
			next := train.Shard((int(shard) + n) % 4)
			got := goesOn(t, n, c, train.Strategy{MicroBatch: 12 / n}, train.Parallel{Shard: next}, dir, func(again string) {
				if !bytes.Equal(alone(t, again, c), saved) {
					t.Errorf("saved by 4 ranks with shard %d and by %d with shard %d: the arrays differ", shard, n, next)
				}
				if parts := partsIn(t, again); len(parts) >= max(n, 2) {
					t.Errorf("%d ranks left the parts %q", n, parts)
				}
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

// cutRanks trains on ranks and stops after a step.
func cutRanks(t *testing.T, n int, c train.Config, s train.Strategy, p train.Parallel, dir string, step int) {
	t.Helper()
	stop, cancel := context.WithCancel(t.Context())
	ranksOf(t, n, c, s, p, dir, func(_ int, r *train.Run) error {
		r.OnStep = func(p train.Progress) {
			if p.Step == step {
				cancel()
			}
		}
		out, err := r.Do(stop)
		if err == nil && (!out.Interrupted || out.Steps != step) {
			t.Errorf("outcome %+v", out)
		}
		return err
	})
}

// alone is the checkpoint in dir as one device saves it again.
func alone(t *testing.T, dir string, c train.Config) []byte {
	t.Helper()
	cp, err := train.OpenCheckpoint(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer cp.Close()
	r, to := noisy(t, dir, c, c.Plain()), t.TempDir()
	if err := errors.Join(r.Trainer.Restore(cp), r.Trainer.Save(to, cp.State)); err != nil {
		t.Fatal(err)
	}
	if parts := partsIn(t, to); len(parts) > 0 {
		t.Errorf("one device saved the parts %q", parts)
	}
	file, err := os.ReadFile(filepath.Join(to, train.CheckpointFile))
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// partsIn are the files of a checkpoint beside the first.
func partsIn(t *testing.T, dir string) []string {
	t.Helper()
	parts, err := filepath.Glob(filepath.Join(dir, "checkpoint.*.*.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	return parts
}

// mortal is a group whose rank fails before a collective of the whole job.
type mortal struct {
	dist.Group
	left *int // collectives before that one; -1: none fails
}

var errKilled = errors.New("killed")

func (m mortal) AllReduce(s device.Stream, op dist.Op, bufs ...dist.Buf) {
	if *m.left == 0 {
		m.Fail(errKilled)
	}
	*m.left--
	m.Group.AllReduce(s, op, bufs...)
}

// TestRankIsKilledInSave ends one of three ranks before each collective of a save,
// between which lie its steps: the folder has the whole checkpoint of before or the
// whole new one, and the next save removes what is left over. So it is where a rank
// can't write, or writes into another folder.
func TestRankIsKilledInSave(t *testing.T) {
	c := families()["gpt2"]
	c.Batch, c.Schedule.Steps = 6, 3
	s, p := train.Strategy{MicroBatch: 2}, train.Parallel{Shard: train.ShardState}
	first := t.TempDir()
	cutRanks(t, 3, c, s, p, first, 1)
	old := alone(t, first, c)
	outcomes := map[string]int{}
	save := func(dir string, of func(rank int) string, left func(rank int) int) []error {
		return eachRank(3, func(g dist.Group) error {
			m := mortal{g, new(int)}
			*m.left = -1
			return trainer(m, host(t), c, s, p, func(tr *train.Trainer) error {
				cp, err := train.OpenCheckpoint(dir)
				if err != nil {
					return err
				}
				defer cp.Close()
				if err := tr.Restore(cp); err != nil {
					return err
				}
				if _, err := tr.Step(share(c, g.Rank(), 3)...); err != nil {
					return err
				}
				*m.left = left(g.Rank())
				return tr.Save(of(g.Rank()), cp.State)
			})
		})
	}
	for victim := range 3 {
		if invariant.Slow && victim != 1 {
			continue
		}
		for left := 0; ; left++ {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(first)); err != nil {
				t.Fatal(err)
			}
			here := func(int) string { return dir }
			errs := save(dir, here, func(rank int) int {
				if rank == victim {
					return left
				}
				return -1
			})
			if errors.Join(errs...) == nil {
				if left < 3 || len(partsIn(t, dir)) != 2 {
					t.Errorf("a save of %d collectives left the parts %q", left, partsIn(t, dir))
				}
				break
			}
			for rank, err := range errs {
				if !errors.Is(err, errKilled) {
					t.Errorf("rank %d: %v", rank, err)
				}
			}
			if bytes.Equal(alone(t, dir, c), old) {
				outcomes["old"]++
			} else {
				outcomes["new"]++
			}
			if err := errors.Join(save(dir, here, func(int) int { return -1 })...); err != nil || len(partsIn(t, dir)) != 2 {
				t.Errorf("after a save that ended at collective %d of rank %d: %v, the parts %q", left, victim, err, partsIn(t, dir))
			}
		}
	}
	if outcomes["old"] < 2 || outcomes["new"] < 1 && !invariant.Slow { // it is new for certain where rank 0 dies last
		t.Errorf("outcomes %v", outcomes)
	}
	for other, want := range map[string]string{filepath.Join(first, "none"): "could not be saved", t.TempDir(): "must be one that all ranks share"} {
		errs := save(first, func(rank int) string { return []string{first, first, other}[rank] }, func(int) int { return -1 })
		for _, err := range errs {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("rank 2 saves in %s: error %v", other, err)
			}
		}
		if !bytes.Equal(alone(t, first, c), old) {
			t.Error("a save that failed replaced the checkpoint")
		}
	}
}

// share is a rank's share of a batch of noise.
func share(c train.Config, rank, ranks int) []any {
	batch := c.NewBatch()
	(&noise{fields: c.Fields()}).Next(batch...)
	for i, a := range batch {
		switch a := a.(type) {
		case []int32:
			batch[i] = a[len(a)/ranks*rank : len(a)/ranks*(rank+1)]
		case []float32:
			batch[i] = a[len(a)/ranks*rank : len(a)/ranks*(rank+1)]
		}
	}
	return batch
}

// TestCheckpointIsDamaged: a byte that flipped, a file that is missing, of another
// checkpoint or twice there is an error that names it, and nothing is read from it.
func TestCheckpointIsDamaged(t *testing.T) {
	c := families()["gpt2"]
	c.Batch, c.Schedule.Steps = 6, 3
	first, second := t.TempDir(), t.TempDir()
	for _, dir := range []string{first, second} {
		cutRanks(t, 3, c, train.Strategy{MicroBatch: 2}, train.Parallel{Shard: train.ShardState}, dir, 1)
	}
	part := func(dir string) string { return filepath.Base(partsIn(t, dir)[1]) }
	for want, damage := range map[string]func(dir string) error{
		"checkpoint.safetensors: its bytes have the CRC-32C": func(dir string) error { return flip(filepath.Join(dir, train.CheckpointFile)) },
		part(first) + ": its bytes have the CRC-32C":         func(dir string) error { return flip(filepath.Join(dir, part(dir))) },
		"2 files belong to it":                               func(dir string) error { return os.Remove(filepath.Join(dir, part(dir))) },
		"it is of another checkpoint": func(dir string) error {
			return os.Rename(filepath.Join(second, part(second)), filepath.Join(dir, part(dir)))
		},
		"is none of its own": func(dir string) error { return replaceIn(dir, `\"checkpoint.1-`, `\"../../../x.1-`) },
		"twice in its list": func(dir string) error {
			names := partsIn(t, dir)
			return replaceIn(dir, filepath.Base(names[0]), filepath.Base(names[1]))
		},
		"can't be the piece": func(dir string) error { return replaceIn(dir, `\"from\":0`, `\"from\":9`) },
		"its version is 2":   func(dir string) error { return replaceIn(dir, `\"version\":3`, `\"version\":2`) },
	} {
		dir := t.TempDir()
		if err := errors.Join(os.CopyFS(dir, os.DirFS(first)), damage(dir)); err != nil {
			t.Fatal(err)
		}
		cp, err := train.OpenCheckpoint(dir)
		if err == nil {
			err = errors.Join(noisy(t, dir, c, c.Plain()).Trainer.Restore(cp), cp.Close())
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// TestCheckpointClaimsRows has few elements of an array that is said to have 2^40 rows.
func TestCheckpointClaimsRows(t *testing.T) {
	const part = "checkpoint.1-000000000000.1.safetensors"
	dir := t.TempDir()
	for name, columns := range map[string]int{train.CheckpointFile: 1, part: 2} {
		metadata := map[string]string{
			"headroom.state":  `{"version":3}`,
			"headroom.pieces": fmt.Sprintf(`{"w":{"whole":[1099511627776,2],"at":[0,0],"shape":[1099511627776,%d],"from":%d,"to":%[1]d}}`, columns, columns-1),
			"headroom.part":   name, "headroom.parts": fmt.Sprintf("[%q]", part),
		}
		err := atomicfile.Write(filepath.Join(dir, name), func(w io.Writer) error {
			return safetensors.Write(w, metadata, []safetensors.Entry{{Name: "w", DType: safetensors.F32, Shape: []int{1}, Data: safetensors.Bytes(make([]byte, 4))}})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := train.OpenCheckpoint(dir); err == nil || !strings.Contains(err.Error(), "2199023255550 of its elements are in none of the files") {
		t.Errorf("error %v", err)
	}
}

// flip changes a bit of the last array in a file.
func flip(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	b[len(b)-40] ^= 4
	return os.WriteFile(path, b, 0o644)
}

// replaceIn changes the header of the checkpoint in a folder.
func replaceIn(dir, before, after string) error {
	path := filepath.Join(dir, train.CheckpointFile)
	b, err := os.ReadFile(path)
	if err != nil || len(before) != len(after) || !bytes.Contains(b, []byte(before)) {
		return fmt.Errorf("no %q in the header (%w)", before, err)
	}
	return os.WriteFile(path, bytes.Replace(b, []byte(before), []byte(after), 1), 0o644)
}

// TestRanksEvaluate: ranks that share a test set have the score that one device
// has, also where there are fewer samples than ranks.
func TestRanksEvaluate(t *testing.T) {
	for _, name := range []string{"classes", "gpt2"} {
		c := families()[name]
		for _, samples := range []int{6, 3} {
			set := &noise{fields: c.Fields(), n: samples}
			want, err := noisy(t, t.TempDir(), c, c.Plain()).Trainer.Evaluate(set)
			if err != nil {
				t.Fatal(err)
			}
			shard := []train.Shard{train.ShardNothing, train.ShardParameters}[samples%2]
			ranksOf(t, 4, c, train.Strategy{MicroBatch: 1}, train.Parallel{Shard: shard}, "", func(rank int, r *train.Run) error {
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
	for _, shard := range []train.Shard{train.ShardNothing, train.ShardGradients, train.ShardParameters} {
		got, gotLosses := make([][]string, 2), make([][]float64, 2)
		ranksOf(t, 2, c, train.Strategy{MicroBatch: 2}, train.Parallel{Shard: shard}, t.TempDir(), func(rank int, r *train.Run) error {
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
// the losses of one device.
func TestRanksShort(t *testing.T) {
	if invariant.Slow {
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
		errs := runShort(t, c, train.Parallel{Shard: shard}, micro, 2, func(rank int, p train.Progress) {
			for _, e := range p.Events {
				if e.Kind == "retry" || e.Kind == "climb" {
					events[rank] = append(events[rank], fmt.Sprint(p.Step, " ", e.Kind))
				}
			}
			if w := want[p.Step-1]; math.Abs(p.Loss-w) > 1e-4*w {
				t.Errorf("shard %d, rank %d, step %d: loss %v, want %v", shard, rank, p.Step, p.Loss, w)
			}
		})
		if err := errors.Join(errs...); err != nil {
			t.Errorf("shard %d: %v", shard, err)
		}
		if all := strings.Join(events[0], " "); !slices.Equal(events[0], events[1]) || !strings.Contains(all, "4 retry") || !strings.Contains(all, "climb") {
			t.Errorf("shard %d, micro-batches of %d: the ranks had %v and %v", shard, micro, events[0], events[1])
		}
	}
}

// runShort trains on two ranks, of which the second keeps after three steps one
// part in so many of its memory beside the weights, and gives their errors.
func runShort(t *testing.T, c train.Config, p train.Parallel, micro int, part uint64, step func(rank int, p train.Progress)) []error {
	t.Helper()
	dir := t.TempDir()
	return eachRank(2, func(g dist.Group) error {
		dev := &shared{Device: host(t), limit: math.MaxUint64, sizes: map[device.Ptr]uint64{}}
		return trainer(g, dev, c, train.Strategy{MicroBatch: micro}, p, func(tr *train.Trainer) error {
			weights := dev.taken
			r := &train.Run{Trainer: tr, Feed: &noise{fields: c.Fields()}, Dir: dir}
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
			_, err := r.Do(context.Background())
			return err
		})
	})
}

// TestRanksFail lets the data of one rank fail: all end with its number and
// reason, and none waits for ever.
func TestRanksFail(t *testing.T) {
	c, dir := families()["gpt2"], t.TempDir()
	for rank, err := range eachRank(2, func(g dist.Group) error {
		return trainer(g, host(t), c, train.Strategy{MicroBatch: 2}, train.Parallel{Shard: train.ShardState}, func(tr *train.Trainer) error {
			_, err := (&train.Run{Trainer: tr, Feed: &broken{noise{fields: c.Fields()}, g.Rank() == 1}, Dir: dir}).Do(context.Background())
			if err == nil || err.Error() != "rank 1: a page is missing" || g.Err() == nil {
				t.Errorf("rank %d: error %v", g.Rank(), err)
			}
			return err
		})
	}) {
		if err == nil {
			t.Errorf("rank %d did not fail", rank)
		}
	}
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
	c, dir := families()["gpt2"], t.TempDir()
	for rank, err := range eachRank(2, func(g dist.Group) error {
		return trainer(g, host(t), c, train.Strategy{MicroBatch: 1 + g.Rank()}, train.Parallel{Shard: train.ShardGradients}, func(tr *train.Trainer) error {
			_, err := (&train.Run{Trainer: tr, Feed: &noise{fields: c.Fields()}, Dir: dir}).Do(context.Background())
			return err
		})
	}) {
		if err == nil || !strings.Contains(err.Error(), "micro-batches of 1 to 2 samples") {
			t.Errorf("rank %d: error %v", rank, err)
		}
	}
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
