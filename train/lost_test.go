package train_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/train"
)

// losing is a Store that loses the values of some rooms, by the order of their Take.
type losing struct {
	tensor.HostStore
	loses func(n int) bool
	taken int
}

var errGone = errors.New("its lender is gone")

func newLosing(loses func(n int) bool) *losing {
	return &losing{loses: loses, HostStore: func(size uint64) ([]byte, func(), error) { return make([]byte, size), func() {}, nil }}
}

func (l *losing) Take(size uint64) (tensor.Room, error) {
	room, err := l.HostStore.Take(size)
	if l.taken++; l.loses(l.taken) {
		room = &lostRoom{room, make([]byte, size)}
	}
	return room, err
}

type lostRoom struct {
	tensor.Room
	zeros []byte
}

func (r *lostRoom) Fetch(side device.Stream, to device.Ptr) { side.Upload(to, r.zeros) }
func (r *lostRoom) Free() error                             { return errors.Join(errGone, r.Room.Free()) }

// allAway has every value wait outside until it is read.
func allAway(t *testing.T, c train.Config) *tensor.Schedule {
	t.Helper()
	tr, err := train.New(host(t), c, c.Plain())
	if err != nil {
		t.Fatal(err)
	}
	r, err := tr.Record(nil, c.NewBatch()...)
	if err = errors.Join(err, tr.Close()); err != nil {
		t.Fatal(err)
	}
	s := &tensor.Schedule{}
	for _, op := range r.Ops {
		if !op.Back {
			s.Waits = append(s.Waits, tensor.Wait{Op: op.Name, Reads: []int{0, math.MaxInt}, Away: true})
		}
	}
	return s
}

// TestLost loses values in the middle of a run: the step is done again, and all losses
// are the same bits. A step that always loses some ends with an error.
func TestLost(t *testing.T) {
	for _, name := range []string{"gpt2", "moe"} {
		c := families()[name]
		s := c.Plain()
		want := losses(t, noisy(t, t.TempDir(), c, s))
		s.Values = allAway(t, c)
		for _, n := range []int{1, 7, 20, 41} {
			store := newLosing(func(i int) bool { return i == n || i == n+1 })
			r := noisy(t, t.TempDir(), c, s)
			if err := r.Trainer.UseStore(store, nil); err != nil {
				t.Fatal(err)
			}
			var events []string
			var got []float64
			r.OnStep = func(p train.Progress) {
				got = append(got, p.Loss)
				for _, e := range p.Events {
					events = append(events, e.Kind+": "+e.Text)
				}
			}
			if _, err := r.Do(context.Background()); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s, value %d lost: losses %v, want %v", name, n, got, want)
			}
			if len(events) != 1 || !strings.HasPrefix(events[0], "lost: ") || !strings.Contains(events[0], errGone.Error()) {
				t.Errorf("%s, value %d lost: events %q", name, n, events)
			}
		}
	}
	c := families()["gpt2"]
	s := c.Plain()
	s.Values = allAway(t, c)
	for _, strict := range []bool{false, true} {
		store := newLosing(func(i int) bool { return i%3 == 0 })
		r := noisy(t, t.TempDir(), c, s)
		r.Trainer.Strict = strict
		if err := r.Trainer.UseStore(store, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Do(context.Background()); !errors.Is(err, tensor.ErrLost) || !errors.Is(err, errGone) {
			t.Errorf("a store that always loses: %v", err)
		}
		if most := 17 * len(s.Values.Waits); store.taken > most || strict && store.taken > len(s.Values.Waits) {
			t.Errorf("%d values were sent", store.taken)
		}
	}
}

// TestRanksLost loses values on one rank: all do the step again with less, and have the losses
// of ranks that lost nothing.
func TestRanksLost(t *testing.T) {
	c := families()["gpt2"]
	s := train.Strategy{MicroBatch: 2}
	for _, shard := range []train.Shard{train.ShardNothing, train.ShardGradients, train.ShardParameters} {
		p := train.Parallel{Shard: shard}
		want := trained(t, 2, c, s, p, t.TempDir())
		away := s
		away.Values = allAway(t, c)
		events, got := make([]string, 2), make([][]float64, 2)
		ranksOf(t, 2, c, away, p, t.TempDir(), func(rank int, r *train.Run) error {
			if err := r.Trainer.UseStore(newLosing(func(i int) bool { return rank == 1 && i == 30 }), nil); err != nil {
				return err
			}
			r.OnStep = func(p train.Progress) {
				got[rank] = append(got[rank], p.Loss)
				for _, e := range p.Events {
					events[rank] += fmt.Sprint(p.Step, " ", e.Kind, " ")
				}
			}
			_, err := r.Do(context.Background())
			return err
		})
		for rank := range 2 {
			if !slices.Equal(got[rank], want) || events[rank] != events[0] || strings.Count(events[rank], "retry") != 1 {
				t.Errorf("shard %d, rank %d: losses %v, want %v; events %q", shard, rank, got[rank], want, events[rank])
			}
		}
	}
}
