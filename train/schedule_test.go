package train

import (
	"slices"
	"sync"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/nn"
	"time"
)

// TestSchedules plays every schedule for many pipelines: each rank computes all
// that it has once, each phase of a micro-batch after the one before, in the order of
// the micro-batches, and holds no more of them than the formula says.
func TestSchedules(t *testing.T) {
	eachPipeline(func(p pipeline) {
		if _, ok := p.play(); !ok {
			t.Errorf("%+v: stages wait for each other", p)
			return
		}
		for r := range p.ranks {
			next := map[action]int{}
			for _, a := range p.order(r) {
				key := action{phase: a.phase, chunk: a.chunk}
				if a.micro != next[key] || a.phase > forward && a.micro >= next[action{phase: a.phase - 1, chunk: a.chunk}] {
					t.Fatalf("%+v, rank %d: %+v is too early", p, r, a)
				}
				next[key]++
			}
			phases := 2
			if p.schedule == ZeroBubble && r > 0 {
				phases = 3
			}
			for key, n := range next {
				if n != p.micro || len(next) != phases*p.chunks {
					t.Errorf("%+v, rank %d: %d micro-batches of %+v", p, r, n, key)
				}
			}
			limit := p.micro * p.chunks
			switch p.schedule {
			case OneFOneB:
				limit = min(limit, p.ranks-r)
			case Interleaved:
				limit = min(limit, (p.chunks-1)*p.most()+2*(p.ranks-1-r)+1)
			case ZeroBubble:
				limit = min(limit, p.ranks)
			}
			if most := p.live(r); most != limit {
				t.Errorf("%+v, rank %d: %d in flight, want %d", p, r, most, limit)
			}
		}
	})
}

func eachPipeline(f func(p pipeline)) {
	for ranks := 2; ranks <= 5; ranks++ {
		for micro := 1; micro <= 13; micro++ {
			for chunks := 1; chunks <= 3; chunks++ {
				for s := OneFOneB; s <= ZeroBubble; s++ {
					if (s == Interleaved) == (chunks > 1) {
						f(pipeline{s, ranks, chunks, micro})
					}
				}
			}
		}
	}
}

// TestScheduleTimes compares the time of all with the formulas of the idle time.
func TestScheduleTimes(t *testing.T) {
	took := func(p pipeline) (most int) {
		all, _ := p.play()
		for _, t := range all {
			most = max(most, t.end)
		}
		return most
	}
	for ranks := 2; ranks <= 5; ranks++ {
		for micro := ranks; micro <= 4*ranks; micro += ranks {
			for _, s := range []Schedule{OneFOneB, GPipe} {
				if got, want := took(pipeline{s, ranks, 1, micro}), 3*(micro+ranks-1); got != want {
					t.Errorf("schedule %d of %d ranks and %d micro-batches takes %d, want %d", s, ranks, micro, got, want)
				}
			}
			if got, want := took(pipeline{ZeroBubble, ranks, 1, micro}), 3*micro+ranks-1; got != want {
				t.Errorf("zero bubble, %d ranks and %d micro-batches takes %d, want %d", ranks, micro, got, want)
			}
			for chunks := 2; chunks <= 3; chunks++ {
				if got, want := took(pipeline{Interleaved, ranks, chunks, micro}), 3*(chunks*micro+ranks-1); got != want {
					t.Errorf("interleaved, %d ranks, %d chunks and %d micro-batches takes %d, want %d", ranks, chunks, micro, got, want)
				}
			}
		}
	}
}

// TestProgramsEnd runs the programs of all ranks with messages that wait for the
// other side, each action after the one before: every one receives what it computes
// with, in time, and all come to their end.
func TestProgramsEnd(t *testing.T) {
	eachPipeline(func(p pipeline) {
		boxes := make([]map[int]chan action, p.ranks) // by receiver and sender
		for r := range boxes {
			boxes[r] = map[int]chan action{}
			for from := range p.ranks {
				boxes[r][from] = make(chan action)
			}
		}
		var ended sync.WaitGroup
		for r := range p.ranks {
			ended.Go(func() {
				there := map[action]bool{}
				for _, a := range p.program(r) {
					switch a.do {
					case compute:
						needs := p.stage(r, a.chunk) > 0 && a.phase == forward || p.stage(r, a.chunk) < p.depth()-1 && a.phase == backward
						if needs && !there[a] {
							t.Errorf("%+v, rank %d: %+v without what it needs", p, r, a)
						}
						there[action{send, a.phase, a.chunk, a.micro}] = true
					case send:
						to, b, _ := p.follower(r, action{phase: a.phase, chunk: a.chunk, micro: a.micro})
						if !there[a] {
							t.Errorf("%+v, rank %d: %+v before it is computed", p, r, a)
						}
						boxes[to][r] <- b
					case receive:
						b := action{phase: a.phase, chunk: a.chunk, micro: a.micro}
						if got := <-boxes[r][p.sender(r, b)]; got != b {
							t.Errorf("%+v, rank %d: receives %+v, want %+v", p, r, got, b)
						}
						there[b] = true
					}
				}
			})
		}
		done := make(chan struct{})
		go func() { ended.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Fatalf("%+v: ranks wait for each other", p)
		}
	})
}

// TestZeroBubbleReduces: gradients that were put off in the last micro-batch are
// reduced bucket by bucket between the products that complete them, and none before.
func TestZeroBubbleReduces(t *testing.T) {
	var names []string
	dev, err := device.OpenNull(device.NullOptions{Capacity: 1 << 30, Virtual: true, OnLaunch: func(l *device.Launch) { names = append(names, l.Kernel.Name) }})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	c := Config{Model: "test", GPT2: nn.GPT2Config{Vocab: 256, Context: 32, Width: 32, Layers: 4, Heads: 4}, Batch: 4, Seq: 32, Seed: 1,
		Schedule: nn.Cosine{Peak: 1e-3, Steps: 1}, AdamW: nn.AdamWOptions{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}}
	last := dist.Null(2, 4) // of two stages, each with the batch shared by two
	tr, err := NewParallel(dev, c, Strategy{MicroBatch: 1}, Parallel{Group: last, Mesh: Mesh{Pipeline: 2}, Schedule: ZeroBubble, Bucket: 4 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	names = nil
	if _, err := tr.Step(c.NewBatch()...); err != nil {
		t.Fatal(err)
	}
	sent := len(names) - 1 // the last gradient of an input
	for names[sent] != "exchange" {
		sent--
	}
	const products = 8 // of two blocks
	var before []int   // products before each reduction
	done := 0
	for _, name := range names[sent:] {
		switch name {
		case "matmul":
			done++
		case "all_reduce":
			before = append(before, done-products)
		}
	}
	if slices.Contains(names[:sent], "all_reduce") || len(before) < len(tr.par.buckets) || before[0] != 1 || before[6] != 7 {
		t.Errorf("reductions came behind %v of the last micro-batch's %d products: %v", before, products, names[sent:])
	}
}
