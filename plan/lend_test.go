package plan_test

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/internal/spill"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/train"
)

// lender lends memory in this process, until end calls it back.
func lender(t *testing.T, bytes uint64) (address string, end func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- spill.Lend(ctx, listener, spill.LendOptions{Bytes: bytes, Grace: time.Minute}) }()
	var err2 error
	end = func() {
		cancel()
		if done != nil {
			err2 = <-done
			done = nil
		}
		if err2 != nil {
			t.Error(err2)
		}
	}
	t.Cleanup(end)
	return listener.Addr().String(), end
}

// cutAfter passes bytes to a lender, and after so many the connection breaks.
func cutAfter(t *testing.T, address string, bytes int64) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		in, err := listener.Accept()
		if err != nil {
			return
		}
		defer in.Close()
		out, err := net.Dial("tcp", address)
		if err != nil {
			return
		}
		defer out.Close()
		go io.Copy(in, out)
		io.CopyN(out, in, bytes)
	}()
	return listener.Addr().String()
}

// withLender is room on the host and at a lender.
func withLender(host, far uint64) plan.Options {
	o := quick
	tier := plan.Tier{Bytes: host, OutBytesPerSecond: 5e9, BackBytesPerSecond: 5e9}
	o.Away.Tiers = []plan.Tier{tier, {Bytes: far, OutBytesPerSecond: 4e9, BackBytesPerSecond: 4e9, Far: true}}
	return o
}

// lentTo is a step whose values go to a lender.
func lentTo() train.Config {
	if invariant.Slow { // checks take their time
		c := config(nn.GPT2Config{Vocab: 64, Context: 16, Width: 32, Layers: 1, Heads: 2}, 4, 16)
		c.Schedule.Steps = 3
		return c
	}
	return config(nn.GPT2Config{Vocab: 256, Context: 64, Width: 64, Layers: 4, Heads: 4}, 8, 64)
}

// TestLenderMakesRoom: a step that fits neither its device nor what the host sets
// aside fits with a lender; its peaks are those foretold and its losses those of a
// step that has memory for all, bit for bit.
func TestLenderMakesRoom(t *testing.T) {
	if invariant.Slow {
		t.Skip("it searches for long, and TestLenderDies runs the same")
	}
	const host, far = 64 << 10, 32 << 20
	c := config(nn.GPT2Config{Vocab: 256, Context: 1024, Width: 32, Layers: 16, Heads: 2}, 1, 1024)
	dev, err := device.Open("host:6MiB")
	if err != nil {
		t.Fatal(err)
	}
	alone := withLender(host, far)
	alone.Away.Tiers, alone.Work = alone.Away.Tiers[:1], 30_000
	if p, err := plan.Search(context.Background(), dev.Info(), c, alone); !errors.As(err, new(*plan.TooSmallError)) {
		t.Fatalf("without a lender: %+v, %v", p, err)
	}
	p, err := plan.Search(context.Background(), dev.Info(), c, withLender(host, far))
	if err != nil {
		t.Fatal(err)
	}
	t.Log(p.Chosen.Description, p.Chosen.AwayBytes)
	if p.Chosen.AwayBytes <= host || p.Chosen.Strategy.StateAway {
		t.Errorf("%s: %d bytes away", p.Chosen.Description, p.Chosen.AwayBytes)
	}
	address, _ := lender(t, far)
	r := borrow(t, dev, c, p.Chosen.Strategy, address, host)
	got := r.losses(t)
	if want := plainLosses(t, c, p.Chosen.Strategy); !slices.Equal(got, want) {
		t.Errorf("losses %v, want %v", got, want)
	}
	if s := r.Memory().Stats(); s.PeakLive != p.Chosen.PeakBytes || s.PeakReserved != p.Chosen.ReservedBytes {
		t.Errorf("peak %d, reserved %d, foretold %d and %d", s.PeakLive, s.PeakReserved, p.Chosen.PeakBytes, p.Chosen.ReservedBytes)
	}
	r.end(t)
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}

// borrowing is a trainer whose values go to the host and to a lender, where the
// host has room for all to the lender first.
type borrowing struct {
	*train.Trainer
	host   *spill.Place
	loan   *spill.Loan
	before func(step int)
	kinds  map[string]int // of events
	words  string         // of these
}

func borrow(t *testing.T, dev device.Device, c train.Config, s train.Strategy, address string, host uint64) *borrowing {
	t.Helper()
	r := &borrowing{kinds: map[string]int{}, before: func(int) {}}
	var err error
	if r.Trainer, err = train.New(dev, c, s); err != nil {
		t.Fatal(err)
	}
	if r.host, err = spill.Memory(dev, host); err != nil {
		t.Fatal(err)
	}
	r.loan, err = spill.Borrow(context.Background(), dev, address, 32<<20, spill.BorrowOptions{Name: "test", Spare: r.host.TakeBytes})
	if err != nil {
		t.Fatal(err)
	}
	tiers := spill.Tiers{r.host, r.loan}
	if host >= 32<<20 { // room for all
		slices.Reverse(tiers)
	}
	if err := r.UseStore(tiers, nil); err != nil {
		t.Fatal(err)
	}
	return r
}

// losses trains.
func (r *borrowing) losses(t *testing.T) (losses []float64) {
	t.Helper()
	batch := r.Config.NewBatch()
	for step := range r.Config.Schedule.Steps {
		for i, f := range r.Config.Fields() {
			for k := range batch[i].([]int32) {
				batch[i].([]int32)[k] = int32((k*k + step) % f.Below)
			}
		}
		r.before(step)
		got, err := r.Step(batch...)
		if err != nil {
			t.Fatal(err)
		}
		losses = append(losses, got.Loss)
		for _, e := range got.Events {
			r.kinds[e.Kind]++
			r.words += e.Text + "\n"
		}
	}
	return losses
}

func (r *borrowing) end(t *testing.T) {
	t.Helper()
	if err := errors.Join(r.Close(), r.loan.Close(), r.host.Close()); err != nil {
		t.Error(err)
	}
}

// plainLosses are those of s with all values kept.
func plainLosses(t *testing.T, c train.Config, s train.Strategy) []float64 {
	t.Helper()
	dev, err := device.Open("host:64MiB")
	if err != nil {
		t.Fatal(err)
	}
	s.Values = nil
	r := &borrowing{before: func(int) {}}
	if r.Trainer, err = train.New(dev, c, s); err != nil {
		t.Fatal(err)
	}
	losses := r.losses(t)
	if err := errors.Join(r.Close(), dev.Close()); err != nil {
		t.Error(err)
	}
	return losses
}

// allAway is a strategy that moves every value away that can be.
func allAway(t *testing.T, c train.Config, micro int) train.Strategy {
	t.Helper()
	info := device.Info{Capacity: 64 << 20, Granularity: 2 << 20, Virtual: true}
	s, err := plan.AllAway(info, c, train.Strategy{MicroBatch: micro})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestLenderDies cuts the connection at moments of a run in which every value waits
// at the lender: the steps in progress are done again, and all losses are the same
// bits. The mixture has indices among its values.
func TestLenderDies(t *testing.T) {
	configs := map[string]train.Config{"gpt2": lentTo(), "moe": families()["moe"]}
	if invariant.Slow {
		delete(configs, "moe")
	}
	lost := 0
	for name, c := range configs {
		s := allAway(t, c, 4)
		want := plainLosses(t, c, s)
		for _, cut := range []int64{1 << 10, 3 << 20, 7<<20 + 5, 1 << 40} {
			if invariant.Slow && cut != 1<<10 {
				continue
			}
			dev, err := device.Open("host:64MiB")
			if err != nil {
				t.Fatal(err)
			}
			address, _ := lender(t, 32<<20)
			r := borrow(t, dev, c, s, cutAfter(t, address, cut), 4096)
			if got := r.losses(t); !slices.Equal(got, want) {
				t.Errorf("%s, cut after %d bytes: losses %v, want %v", name, cut, got, want)
			}
			if n := r.kinds["lost"]; n > 1 || len(r.kinds) > n || n > 0 && !strings.Contains(r.words, "lender 127.0.0.1:") || cut == 1<<40 && n > 0 {
				t.Errorf("%s, cut after %d bytes: %s", name, cut, r.words)
			}
			lost += r.kinds["lost"]
			r.end(t)
			if err := dev.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	if lost == 0 {
		t.Error("no step was done again")
	}
}

// TestLenderCallsBack calls memory back before a step, and in the middle of one. With
// room on the host nothing is done again.
func TestLenderCallsBack(t *testing.T) {
	s := allAway(t, lentTo(), 4)
	want := plainLosses(t, lentTo(), s)
	for _, delay := range []time.Duration{0, 3 * time.Millisecond} {
		for _, host := range []uint64{4096, 32 << 20} {
			dev, err := device.Open("host:64MiB")
			if err != nil {
				t.Fatal(err)
			}
			address, end := lender(t, 32<<20)
			r := borrow(t, dev, lentTo(), s, address, host)
			called := make(chan struct{})
			r.before = func(step int) {
				if step != 2 {
					return
				}
				go func() {
					defer close(called)
					time.Sleep(delay)
					end()
				}()
				if delay == 0 {
					<-called
				}
			}
			if got := r.losses(t); !slices.Equal(got, want) {
				t.Errorf("losses %v, want %v", got, want)
			}
			<-called
			if again := r.kinds["lost"] > 0; again && (host > 4096 || delay == 0) {
				t.Errorf("host %d, delay %v: %s", host, delay, r.words)
			}
			r.end(t)
			if err := dev.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestLenderDiesShort: when a lender dies and nothing else has room for what it held,
// values are made again.
func TestLenderDiesShort(t *testing.T) {
	if invariant.Slow {
		t.Skip("memory comes in other pieces under the race detector")
	}
	c := lentTo()
	dev, err := device.Open("host:6MiB")
	if err != nil {
		t.Fatal(err)
	}
	o := withLender(4096, 32<<20)
	p, err := plan.Search(context.Background(), dev.Info(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	s := p.Chosen.Strategy
	t.Log(p.Chosen.Description)
	want := plainLosses(t, c, s)
	address, _ := lender(t, 32<<20)
	r := borrow(t, dev, c, s, cutAfter(t, address, int64(p.Chosen.AwayBytes)), 4096)
	got := r.losses(t)
	t.Log(r.words)
	if !slices.Equal(got, want) {
		t.Errorf("losses %v, want %v", got, want)
	}
	if r.kinds["lost"] != 1 || r.kinds["retry"] == 0 || r.kinds["evict"] == 0 {
		t.Errorf("events %v", r.kinds)
	}
	r.end(t)
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}
