package train

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
)

// watched is a group that notes when each message of a pipeline begins and ends on the
// messages' stream, and as an Observer when each pass is computed on the main one.
type watched struct {
	dist.Group
	t        *Trainer
	messages []*moments // in the order of the program
	passes   []*moments // likewise
	open     []*moments // ranges; nil for those that are no pass
}

// moments are those of a message or of a pass.
type moments struct {
	action
	bytes      int
	begin, end time.Time
}

func (w *watched) Exchange(s device.Stream, send, receive []dist.Message) {
	m := &moments{}
	for _, x := range slices.Concat(send, receive) {
		m.bytes += x.Bytes()
	}
	w.messages = append(w.messages, m)
	stamp(s, &m.begin)
	w.Group.Exchange(s, send, receive)
	stamp(s, &m.end)
}

func (w *watched) Begin(r tensor.Range) {
	var m *moments
	if r.Kind == tensor.BackwardPass || r.Kind == tensor.Named && r.Name == "forward" {
		m = &moments{}
		w.passes = append(w.passes, m)
		stamp(w.t.rt.Stream(), &m.begin)
	}
	w.open = append(w.open, m)
}

func (w *watched) End() {
	last := len(w.open) - 1
	if m := w.open[last]; m != nil {
		stamp(w.t.rt.Stream(), &m.end)
	}
	w.open = w.open[:last]
}

// name tells what each message and pass was, once a step is over.
func (w *watched) name() {
	p := w.t.par.pipe
	messages, passes := w.messages, w.passes
	for _, a := range p.program(p.group.Rank()) {
		list := &messages
		if a.do == compute {
			list = &passes
		}
		(*list)[0].action, *list = a, (*list)[1:]
	}
}

// pass is that of a computation.
func (w *watched) pass(of phase, micro int) *moments {
	return w.passes[slices.IndexFunc(w.passes, func(m *moments) bool { return m.phase == of && m.micro == micro })]
}

// message is the sending of a result or gradient, or the receiving.
func (w *watched) message(do verb, of phase, micro int) *moments {
	return w.messages[slices.IndexFunc(w.messages, func(m *moments) bool { return m.do == do && m.phase == of && m.micro == micro })]
}

// meanwhile is how long a rank computes between two moments, and what.
func (w *watched) meanwhile(from, to time.Time) (busy time.Duration, what []string) {
	for _, p := range w.passes {
		begin, end := p.begin, p.end
		if from.After(begin) {
			begin = from
		}
		if to.Before(end) {
			end = to
		}
		if d := end.Sub(begin); d > 0 {
			busy, what = busy+d, append(what, p.String())
		}
	}
	return busy, what
}

func (m *moments) String() string {
	return fmt.Sprint([]string{forward: "forward ", backward: "backward ", weights: "weights "}[m.phase], m.micro)
}

// BenchmarkPipelineOverlap trains two stages in this process and tells how much of the
// time in which messages are on their way, from when what they carry is computed until
// it has arrived, the rank that gets them computes something else. With -v it shows the
// last step's messages.
func BenchmarkPipelineOverlap(b *testing.B) {
	c := Config{Model: "bench", GPT2: nn.GPT2Config{Vocab: 256, Context: 128, Width: 192, Layers: 8, Heads: 6}, Batch: 8, Seq: 128, Seed: 1,
		Schedule: nn.Cosine{Peak: 1e-3, Steps: 1 << 30}, Clip: 1, AdamW: nn.AdamWOptions{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}}
	var ended sync.WaitGroup
	ranks := make([]*watched, 2)
	step := make(chan struct{}) // both have done one
	var hidden, all time.Duration
	for rank, g := range dist.Local(2, dist.Options{}) {
		ended.Go(func() {
			dev, err := device.OpenShare("host:512MiB", 2)
			if err != nil {
				b.Error(err)
				return
			}
			w := &watched{Group: g}
			ranks[rank] = w
			if w.t, err = NewParallel(dev, c, Strategy{MicroBatch: 2}, Parallel{Group: w, Mesh: Mesh{Pipeline: 2}}); err != nil {
				b.Error(err)
				return
			}
			batch := c.NewBatch()
			for range b.N {
				w.messages, w.passes = nil, nil
				w.t.rt.Observe(w)
				if _, err := w.t.Step(batch...); err != nil {
					b.Error(err)
					return
				}
				w.t.rt.Observe(nil)
				if w.name(); rank == 1 {
					step <- struct{}{}
					<-step
					continue
				}
				<-step
				h, a, _ := messagesOf(ranks)
				hidden, all = hidden+h, all+a
				step <- struct{}{}
			}
			if rank == 0 {
				_, _, text := messagesOf(ranks)
				b.ReportMetric(100*hidden.Seconds()/all.Seconds(), "%hidden")
				b.ReportMetric(all.Seconds()/float64(b.N)*1e3, "on-the-way-ms/op")
				b.Log(text)
			}
			if err := w.t.Close(); err != nil {
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

// messagesOf sums up how long a step's messages between two ranks were on their way,
// and how much of that their receiver computed.
func messagesOf(ranks []*watched) (hidden, all time.Duration, text string) {
	var lines strings.Builder
	start := ranks[0].pass(forward, 0).begin
	at := func(t time.Time) float64 { return t.Sub(start).Seconds() * 1e3 }
	for _, m := range slices.Concat(ranks[0].messages, ranks[1].messages) {
		if m.do != send {
			continue
		}
		from, to := 0, 1
		if m.phase == backward {
			from, to = 1, 0
		}
		ready, come := ranks[from].pass(m.phase, m.micro).end, ranks[to].message(receive, m.phase, m.micro).end
		busy, what := ranks[to].meanwhile(ready, come)
		hidden, all = hidden+busy, all+come.Sub(ready)
		if len(what) == 0 {
			what = []string{"nothing"}
		}
		fmt.Fprintf(&lines, "\nrank %d to %d, of %-10v %d bytes: ready at %5.1f ms, sent from %5.1f, there at %5.1f ms, used at %5.1f; meanwhile rank %d computes %s", from, to, m.String()+",", m.bytes,
			at(ready), at(m.begin), at(come), at(ranks[to].pass(m.phase, m.micro).begin), to, strings.Join(what, ", "))
	}
	return hidden, all, lines.String()
}
