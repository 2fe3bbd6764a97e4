package train_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/device/devicetest"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/train"
)

// faulty is a group on whose rank memory runs out where it is about to queue a
// collective of an attempt, in any group of the job.
type faulty struct {
	dist.Group
	*fault
}

type fault struct {
	within bool // an attempt that has not come to its end
	count  int  // collectives of the attempt so far
	at     int  // the one before which memory runs out; -1: none
	always bool // else once
}

func (f faulty) Attempt() error {
	f.within, f.count = true, 0
	return f.Group.Attempt()
}

func (f faulty) Barrier() error {
	f.within = false
	return f.Group.Barrier()
}

func (f faulty) Sub(name string, ranks ...int) (dist.Group, error) {
	g, err := f.Group.Sub(name, ranks...)
	return faulty{g, f.fault}, err
}

func (f faulty) next() {
	if !f.within {
		return
	}
	if f.count == f.at {
		if f.within = false; !f.always {
			f.at = -1
		}
		tensor.Fail(fmt.Errorf("taken by the test: %w", device.ErrOutOfMemory))
	}
	f.count++
}

func (f faulty) AllReduce(s device.Stream, op dist.Op, bufs ...dist.Buf) {
	f.next()
	f.Group.AllReduce(s, op, bufs...)
}

func (f faulty) ReduceScatter(s device.Stream, op dist.Op, dst, src []dist.Buf) {
	f.next()
	f.Group.ReduceScatter(s, op, dst, src)
}

func (f faulty) AllGather(s device.Stream, dst, src []dist.Buf) {
	f.next()
	f.Group.AllGather(s, dst, src)
}

func (f faulty) Exchange(s device.Stream, send, receive []dist.Message) {
	f.next()
	f.Group.Exchange(s, send, receive)
}

// overTCP are the ranks of a job that talk over TCP.
func overTCP(t *testing.T, n int) []dist.Group {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	groups, joined := make([]dist.Group, n), make(chan error)
	for r := range groups {
		go func() {
			g, err := dist.Join(t.Context(), dist.JoinOptions{Rank: r, Size: n, Address: address, Arrival: time.Minute, Silence: time.Minute})
			groups[r] = g
			joined <- err
		}()
	}
	for range groups {
		if err := <-joined; err != nil {
			t.Fatal(err)
		}
	}
	return groups
}

func local(_ *testing.T, n int) []dist.Group { return dist.Local(n, dist.Options{}) }

// TestMemoryRunsOutAnywhere takes the memory of one rank or another away before each
// collective of a step, as many as there are in the first steps, where ranks compute
// the model together: all do the step again, no one waits for ever, and the losses
// are those of one device.
func TestMemoryRunsOutAnywhere(t *testing.T) {
	for _, v := range []struct {
		name   string
		c      train.Config
		ranks  int
		p      train.Parallel
		stride int // every so many-th collective is tried
		groups func(t *testing.T, n int) []dist.Group
	}{
		{"data", product("gpt2"), 2, train.Parallel{Shard: train.ShardState}, 2, local},
		{"tensor", product("masked"), 2, train.Parallel{Mesh: train.Mesh{Tensor: 2}}, 9, local},
		{"expert", product("moe"), 2, train.Parallel{Mesh: train.Mesh{Expert: 2}, Shard: train.ShardState}, 5, local},
		{"parameters", product("gpt2"), 2, train.Parallel{Shard: train.ShardParameters}, 7, local},
		{"product", product("moe"), 4, train.Parallel{Mesh: train.Mesh{Pipeline: 2, Tensor: 2}, Shard: train.ShardNothing}, 9, local},
		{"gathered product", product("masked"), 4, train.Parallel{Mesh: train.Mesh{Tensor: 2}, Shard: train.ShardParameters}, 23, local},
		{"TCP", product("moe"), 2, train.Parallel{Mesh: train.Mesh{Expert: 2}, Shard: train.ShardParameters}, 17, overTCP},
	} {
		t.Run(v.name, func(t *testing.T) {
			if v.name == "TCP" && devicetest.GPUs() {
				t.Skip("the groups of GPUs here are of one process")
			}
			c := v.c
			if c.Schedule.Steps = 7; invariant.Slow { // checking takes its time
				if c.Schedule.Steps = 2; v.name != "parameters" && v.name != "TCP" {
					t.Skip("those with more of what is done at the same time are tried")
				}
			}
			want := losses(t, noisy(t, t.TempDir(), c, c.Plain()))
			all, retries, dir := make([][]float64, v.ranks), make([][]int, v.ranks), t.TempDir()
			for rank, err := range each(v.groups(t, v.ranks), func(g dist.Group) error {
				return placed(t, g, func(g dist.Group, dev device.Device) error {
					f := faulty{g, &fault{at: -1}}
					return trainer(f, dev, c, train.Strategy{MicroBatch: 2}, v.p, func(tr *train.Trainer) error {
						r := &train.Run{Trainer: tr, Feed: &noise{fields: c.Fields()}, Dir: dir}
						r.OnStep = func(p train.Progress) {
							all[g.Rank()] = append(all[g.Rank()], p.Loss)
							for _, e := range p.Events {
								if e.Kind == "retry" {
									retries[g.Rank()] = append(retries[g.Rank()], p.Step)
								}
							}
							if tr.ResetLadder(); p.Step%v.ranks == g.Rank() {
								f.at = (p.Step - 1) * v.stride % f.count
							}
						}
						_, err := r.Do(context.Background())
						return err
					})
				})
			}) {
				if err != nil {
					t.Errorf("rank %d: %v", rank, err)
				}
			}
			for rank := range all {
				if !slices.Equal(all[rank], all[0]) || !slices.Equal(retries[rank], retries[0]) {
					t.Errorf("rank %d has the losses %v and tried steps %v again, rank 0 %v and %v", rank, all[rank], retries[rank], all[0], retries[0])
				}
			}
			if d := apart(all[0], want); d > 1e-5 {
				t.Errorf("losses %v, want %v: %.1e apart", all[0], want, d)
			}
			if n := len(retries[0]); n < c.Schedule.Steps/2 { // not those with fewer collectives than the try before
				t.Errorf("%d of %d steps were tried again", n, c.Schedule.Steps)
			}
		})
	}
}

// TestTogetherShort takes memory away from one rank where the other waits for it
// within the step: both go down together, and have the losses of one device.
func TestTogetherShort(t *testing.T) {
	if invariant.Slow {
		t.Skip("under the race detector memory comes in segments too large to take half of them away")
	}
	c := families()["moe"]
	c.MoE.Width, c.MoE.Hidden, c.MoE.Context, c.Seq, c.Batch, c.Schedule.Steps = 64, 256, 64, 64, 16, 5
	want := losses(t, noisy(t, t.TempDir(), c, c.Plain()))
	for _, p := range []train.Parallel{{Mesh: train.Mesh{Expert: 2}}, {Shard: train.ShardParameters}} {
		retries := [2]int{}
		errs := runShort(t, c, p, 8, 2, func(rank int, p train.Progress) {
			for _, e := range p.Events {
				if e.Kind == "retry" {
					retries[rank]++
				}
			}
			if w := want[p.Step-1]; math.Abs(p.Loss-w) > 1e-4*w {
				t.Errorf("rank %d, step %d: loss %v, want %v", rank, p.Step, p.Loss, w)
			}
		})
		if err := errors.Join(errs...); err != nil || retries[0] == 0 || retries[0] != retries[1] {
			t.Errorf("%+v: the ranks tried %v times again, error %v", p, retries, err)
		}
	}
}

// TestNoRungIsLeft lets one rank have no memory in any attempt: both ranks fail with
// its number, and none waits for ever.
func TestNoRungIsLeft(t *testing.T) {
	c := product("masked")
	for _, p := range []train.Parallel{{}, {Shard: train.ShardGradients}, {Shard: train.ShardParameters}, {Mesh: train.Mesh{Pipeline: 2}}, {Mesh: train.Mesh{Tensor: 2}}} {
		for rank, err := range eachRank(2, func(g dist.Group) error {
			f := faulty{g, &fault{at: 1 - 2*g.Rank(), always: true}}
			return trainer(f, host(t), c, train.Strategy{MicroBatch: 2}, p, func(tr *train.Trainer) error {
				_, err := tr.Step(tr.Config.NewBatch()...)
				return err
			})
		}) {
			if err == nil || !strings.Contains(err.Error(), "rank 0: taken by the test") || !errors.Is(err, device.ErrOutOfMemory) {
				t.Errorf("%+v, rank %d: error %v", p, rank, err)
			}
		}
	}
}
