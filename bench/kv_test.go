package bench

import (
	"context"
	"flag"
	"fmt"
	"testing"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/trace"
)

// TestKeyValueCache generates text with GPT-2 medium as most programs do: the
// keys and values of every layer are concatenated with those of the next
// token, so 48 blocks are replaced by slightly larger ones for each. Batches
// of 8 to 24 prompts, float16. It prints reserved / live at the peak without
// and with a plan.
//
//	go test -run KeyValueCache -v . -kv
func TestKeyValueCache(t *testing.T) {
	if !*kv {
		t.Skip("no -kv was given")
	}
	var online, planned ratios
	for batch := 8; batch <= 24; batch += 4 {
		program := growing(batch)
		o := playLifetimes(t, program, nil)
		plan, err := alloc.MakePlan(context.Background(), program, 2<<20)
		if err != nil {
			t.Fatal(err)
		}
		p := playLifetimes(t, program, plan)
		online, planned = append(online, o), append(planned, p)
		fmt.Printf("batch %d: %.5f, planned %.5f\n", batch, o, p)
	}
	fmt.Printf("online: %v\nplanned: %v\n", online, planned)
}

// kv switches TestKeyValueCache on.
var kv = flag.Bool("kv", false, "run TestKeyValueCache")

// playLifetimes plays a program on an allocator over a null device and gives
// reserved / live at their peaks.
func playLifetimes(t *testing.T, program []alloc.Lifetime, plan *alloc.Plan) float64 {
	dev, err := device.OpenNull(device.NullOptions{Capacity: 64 << 30, Virtual: true, Alias: true})
	if err != nil {
		t.Fatal(err)
	}
	a, err := alloc.New(dev, alloc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Follow(plan); err != nil {
		t.Fatal(err)
	}
	ends := map[int][]*alloc.Block{}
	now := 0
	for _, l := range program {
		for ; now <= l.Start; now++ {
			for _, b := range ends[now] {
				b.Free()
			}
		}
		b, err := a.Alloc(l.Size, trace.Other, s)
		if err != nil {
			t.Fatal(err)
		}
		ends[l.End] = append(ends[l.End], b)
	}
	st := a.Stats()
	return float64(st.PeakReserved) / float64(st.PeakLive)
}

// growing gives the requests of 120 tokens after prompts of 40.
func growing(batch int) (program []alloc.Lifetime) {
	const layers, width, vocabulary = 24, 1024, 50257
	clock := 0
	get := func(elements int) int {
		program = append(program, alloc.Lifetime{Size: uint64(2 * elements), Start: clock, End: 1 << 30})
		clock++
		return len(program) - 1
	}
	free := func(i int) {
		program[i].End = clock
		clock++
	}
	get(vocabulary * width)
	get(1024 * width)
	for range layers {
		for _, n := range []int{1, 1, 3 * width, 3, width, 1, 1, 1, 4 * width, 4, 4 * width, 1} {
			get(n * width)
		}
	}
	cache := make([]int, 2*layers)
	for tokens := 40; tokens < 160; tokens++ {
		now := 1
		if tokens == 40 {
			now = tokens
		}
		rows := batch * now
		hidden := get(rows * width)
		for l := range cache {
			if l%2 == 0 {
				norm, qkv := get(rows*width), get(3*rows*width)
				free(norm)
				q := get(rows * width)
				free(qkv)
				free(q)
			}
			bigger := get(batch * tokens * width)
			if tokens > 40 {
				free(cache[l])
			}
			cache[l] = bigger
			if l%2 == 1 {
				scores := get(batch * 16 * now * tokens)
				weights := get(batch * 16 * now * tokens)
				free(scores)
				out := get(rows * width)
				free(weights)
				up := get(4 * rows * width)
				gelu := get(4 * rows * width)
				free(up)
				next := get(rows * width)
				free(gelu)
				free(out)
				free(hidden)
				hidden = next
			}
		}
		logits := get(rows * vocabulary)
		free(hidden)
		free(logits)
	}
	return program
}
