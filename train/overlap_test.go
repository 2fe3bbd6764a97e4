package train

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/nn"
)

// traced is a group that notes when each all-reduce of a bucket runs, and when
// the main stream has done what was queued before it.
type traced struct {
	dist.Group
	main    device.Stream
	buckets []*bucketTrace
}

type bucketTrace struct {
	bytes                 int
	ready, begun, reduced time.Time
}

// stamp queues a look at the clock.
func stamp(s device.Stream, at *time.Time) {
	s.Launch(&device.Launch{Kernel: &device.Kernel{Name: "stamp", Host: func(*device.Launch, *device.Workers) { *at = time.Now() }}})
}

func (g *traced) AllReduce(s device.Stream, op dist.Op, bufs ...dist.Buf) {
	if s == g.main { // of a single number
		g.Group.AllReduce(s, op, bufs...)
		return
	}
	b := &bucketTrace{}
	for _, x := range bufs {
		b.bytes += x.Bytes()
	}
	g.buckets = append(g.buckets, b)
	stamp(g.main, &b.ready)
	stamp(s, &b.begun)
	g.Group.AllReduce(s, op, bufs...)
	stamp(s, &b.reduced)
}

// BenchmarkOverlap trains on two ranks in this process and tells how much of the
// time in which gradients are reduced lies within backward. With -v it shows the
// last step's buckets.
func BenchmarkOverlap(b *testing.B) {
	c := Config{Model: "bench", GPT2: nn.GPT2Config{Vocab: 256, Context: 128, Width: 192, Layers: 8, Heads: 6}, Batch: 4, Seq: 128, Seed: 1,
		Schedule: nn.Cosine{Peak: 1e-3, Steps: 1 << 30}, Clip: 1, AdamW: nn.AdamWOptions{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}}
	var ended sync.WaitGroup
	for _, g := range dist.Local(2, dist.Options{}) {
		ended.Go(func() {
			dev, err := device.OpenShare("host:512MiB", 2)
			if err != nil {
				b.Error(err)
				return
			}
			look := &traced{Group: g}
			t, err := NewParallel(dev, c, c.Plain(), Parallel{Group: look, Bucket: 2 << 20})
			if err != nil {
				b.Error(err)
				return
			}
			look.main = t.rt.Stream()
			batch := c.NewBatch()
			var within, all time.Duration
			for range b.N {
				look.buckets = nil
				if _, err := t.Step(batch...); err != nil {
					b.Error(err)
					return
				}
				over := look.buckets[len(look.buckets)-1].ready
				for _, k := range look.buckets {
					all += k.reduced.Sub(k.begun)
					within += max(0, min(k.reduced.Sub(k.begun), over.Sub(k.begun)))
				}
			}
			if g.Rank() == 0 {
				b.ReportMetric(100*within.Seconds()/all.Seconds(), "%overlapped")
				b.ReportMetric(all.Seconds()/float64(b.N)*1e3, "reducing-ms/op")
				b.Log(timeline(look.buckets))
			}
			if err := t.Close(); err != nil {
				b.Error(err)
			}
			if err := dev.Close(); err != nil {
				b.Error(err)
			}
			if err := g.Close(); err != nil {
				b.Error(err)
			}
		})
	}
	ended.Wait()
}

// timeline shows when each bucket was reduced, from the moment when the first was
// ready until backward was over.
func timeline(buckets []*bucketTrace) string {
	var text strings.Builder
	start := buckets[0].ready
	for i, k := range buckets {
		fmt.Fprintf(&text, "\nbucket %d, %7d bytes: complete at %5.1f ms, reduced from %5.1f to %5.1f ms", i, k.bytes,
			k.ready.Sub(start).Seconds()*1e3, k.begun.Sub(start).Seconds()*1e3, k.reduced.Sub(start).Seconds()*1e3)
	}
	return text.String()
}
