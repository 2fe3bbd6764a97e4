package bench

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/generate"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
)

var (
	generates = flag.Bool("generate", false, "run TestGenerate")
	budget    = flag.String("generate-budget", "64MiB", "memory of the device of TestGenerate")
	rounds    = flag.Int("generate-rounds", 3, "times that TestGenerate runs each cache on the host")
)

// served is the model of TestGenerate: a token's keys and values take 12 KiB.
var served = nn.GPT2Config{Vocab: 256, Context: 512, Width: 256, Layers: 6, Heads: 8}

// TestGenerate answers the same requests with four caches of keys and values,
// on the same model and kernels:
//
//	concatenated  one tensor for each layer and batch, joined with the next token's
//	              each time, texts padded to the longest of their batch, which ends
//	              with its last text: as Hugging Face's generate
//	reserved      room for the longest text that the model allows, at once
//	paged         pages of 16 tokens
//	shared        pages of 16 tokens, shared between texts that begin alike
//
// The last three start a text as soon as there is room. It prints first what
// all requests at a time take, on a null device, then what a budget allows, on
// the host (medians; the rounds of the caches take turns).
//
//	go test -run TestGenerate -v . -generate
func TestGenerate(t *testing.T) {
	if !*generates {
		t.Skip("no -generate was given")
	}
	requests := longTailed(96)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	describe(w, requests)
	fmt.Fprintf(w, "all at a time\tkeys and values\twaste\tto reserved\tpeak beside the model\t\n")
	var all []figures
	for _, c := range caches {
		f, err := serve("null:64GiB", c, requests, len(requests))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, f)
	}
	for i, f := range all {
		fmt.Fprintf(w, "%s\t%s\t%.1f %%\t%.2f\t%s\t\n", caches[i].name, mib(f.cache), 100*f.waste, float64(f.cache)/float64(all[1].cache), mib(f.peak))
	}
	inBudget(t, w, requests)
	w.Flush()
}

// inBudget prints the second table.
func inBudget(t *testing.T, w *tabwriter.Writer, requests []generate.Request) {
	batch := largestBatch(t, requests)
	measured := make([][]figures, len(caches))
	for range *rounds {
		for i, c := range caches {
			f, err := serve("host:"+*budget, c, requests, batch)
			if err != nil {
				t.Fatal(err)
			}
			measured[i] = append(measured[i], f)
		}
	}
	fmt.Fprintf(w, "\t\t\t\t\t\t\t\t\nin %s\tmost texts at a time\tmean\tsteps\ttokens through the model\ttokens/s\tto reserved\ttokens/s of processor\tto reserved\tpreemptions\t\n", *budget)
	base := medians(measured[1])
	for i, c := range caches {
		f, n := medians(measured[i]), float64(generated(requests))
		fmt.Fprintf(w, "%s\t%d\t%.1f\t%d\t%d\t%.0f\t%.2f\t%.0f\t%.2f\t%d\t\n", c.name, f.most, f.mean, f.steps, f.computed,
			n/f.wall, base.wall/f.wall, n/f.processor, base.processor/f.processor, f.preemptions)
	}
}

// medians gives the first run's figures with the medians of the times.
func medians(runs []figures) figures {
	f := runs[0]
	for _, time := range []func(*figures) *float64{func(f *figures) *float64 { return &f.wall }, func(f *figures) *float64 { return &f.processor }} {
		slices.SortFunc(runs, func(a, b figures) int { return cmp.Compare(*time(&a), *time(&b)) })
		*time(&f) = *time(&runs[len(runs)/2])
	}
	return f
}

// cache is a way to keep keys and values. pageTokens 0 stands for concatenation.
type cache struct {
	name       string
	pageTokens int
	alone      bool
}

var caches = []cache{{"concatenated", 0, true}, {"reserved", served.Context, true}, {"paged", 16, true}, {"shared", 16, false}}

// figures are what came of one run.
type figures struct {
	cache, peak     uint64  // bytes of keys and values at their peak, and of all beside the model
	waste           float64 // share of cache that holds no token of a text that goes on
	most            int
	mean            float64 // texts at a time
	steps, computed int
	preemptions     int
	wall, processor float64 // seconds
}

// longTailed draws n requests: a common beginning of 96 tokens, then a prompt
// and an answer of lognormal lengths, as those of chats are: medians of 24 and
// 48 tokens, means of some 35 and 75.
func longTailed(n int) (all []generate.Request) {
	r := rand.New(rand.NewPCG(2026, 11))
	draw := func(n int) (v []int32) {
		for range n {
			v = append(v, int32(r.IntN(served.Vocab)))
		}
		return v
	}
	length := func(median, sigma float64, most int) int {
		return max(1, min(most, int(median*math.Exp(sigma*r.NormFloat64()))))
	}
	common := draw(96)
	for range n {
		prompt := slices.Concat(common, draw(length(24, 0.9, 160)))
		all = append(all, generate.Request{Prompt: prompt, MaxTokens: length(48, 0.95, served.Context-len(prompt))})
	}
	return all
}

func describe(w *tabwriter.Writer, requests []generate.Request) {
	var prompts, most int
	for _, r := range requests {
		prompts += len(r.Prompt)
		most = max(most, len(r.Prompt)+r.MaxTokens)
	}
	n := len(requests)
	fmt.Fprintf(w, "%d requests, prompts of %d tokens and answers of %d in the mean, the longest text %d of at most %d\t\n\n",
		n, prompts/n, generated(requests)/n, most, served.Context)
}

// generated is the number of new tokens.
func generated(requests []generate.Request) (n int) {
	for _, r := range requests {
		n += r.MaxTokens
	}
	return n
}

// largestBatch finds the largest batch that concatenation can run in the budget.
func largestBatch(t *testing.T, requests []generate.Request) int {
	for n := len(requests); n > 0; n-- {
		_, err := serve("null:"+*budget, caches[0], requests, n)
		if err == nil {
			return n
		}
		if !errors.Is(err, device.ErrOutOfMemory) {
			t.Fatal(err)
		}
	}
	t.Fatalf("not one text fits %s", *budget)
	return 0
}

// serve answers requests on a device, at most so many at a time.
func serve(on string, c cache, requests []generate.Request, batch int) (f figures, err error) {
	dev, err := device.Open(on)
	if err != nil {
		return f, err
	}
	mem, err := alloc.New(dev, alloc.Options{})
	if err != nil {
		return f, err
	}
	stream, err := dev.NewStream()
	if err != nil {
		return f, err
	}
	rt := tensor.New(mem, stream)
	m := nn.NewGPT2(rt, served, 1)
	before := mem.Stats().Live
	mem.ResetPeaks()
	start, used := time.Now(), processorTime()
	if c.pageTokens == 0 {
		err = rt.Try(func() { f = concatenated(rt, m, requests, batch) })
	} else {
		f, err = engine(rt, m, c, requests)
	}
	f.wall, f.processor = time.Since(start).Seconds(), processorTime()-used
	f.peak = mem.Stats().PeakLive - before
	nn.Release(m)
	return f, errors.Join(err, mem.Close(), stream.Close(), dev.Close())
}

// engine answers requests with package generate.
func engine(rt *tensor.Runtime, m *nn.GPT2, c cache, requests []generate.Request) (f figures, err error) {
	e, err := generate.New(rt, generate.GPT2(m), generate.Options{PageTokens: c.pageTokens, Alone: c.alone, Running: len(requests)})
	if err != nil {
		return f, err
	}
	defer e.Close()
	for _, r := range requests {
		if _, err := e.Add(r); err != nil {
			return f, err
		}
	}
	atATime := 0
	for {
		if _, err := e.Step(); err != nil {
			return f, err
		}
		s := e.Stats()
		if s.Running+s.Waiting == 0 {
			break
		}
		f.steps++
		atATime += s.Running
	}
	s := e.Stats()
	f.cache, f.waste = s.Peak.UsedBytes, float64(s.Peak.WasteBytes)/float64(s.Peak.UsedBytes)
	f.most, f.mean, f.computed, f.preemptions = s.MostRunning, float64(atATime)/float64(f.steps), s.Computed, s.Preemptions
	return f, e.Run(context.Background(), nil)
}

func mib(n uint64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// processorTime is what the process has spent so far, in seconds.
func processorTime() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
