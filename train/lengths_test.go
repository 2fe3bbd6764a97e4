package train_test

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/headroom-go/headroom/data"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/train"
)

// lines are sequences of 2 to most tokens below 256.
func lines(n, most int) data.Lists {
	r := rand.New(rand.NewPCG(1, 2))
	var lists data.Lists
	for range n {
		line := make([]int32, 2+r.IntN(most-1))
		for i := range line {
			line[i] = r.Int32N(256)
		}
		lists = append(lists, line)
	}
	return lists
}

// batch pads lists to a width, with their targets.
func batch(lists data.Lists, width int) (tokens, targets []int32) {
	for _, l := range lists {
		for i := range width {
			token, target := int32(0), int32(nn.IgnoreTarget)
			if i < len(l) {
				token = l[i]
			}
			if i+1 < len(l) {
				target = l[i+1]
			}
			tokens, targets = append(tokens, token), append(targets, target)
		}
	}
	return tokens, targets
}

// stepsOf trains on batches in turn and gives the losses.
func stepsOf(t *testing.T, c train.Config, s train.Strategy, seqs []int, lists data.Lists) (losses []float64) {
	t.Helper()
	tr, err := train.New(host(t), c, s)
	if err != nil {
		t.Fatal(err)
	}
	for _, seq := range seqs {
		if err := tr.At(seq, s); err != nil {
			t.Fatal(err)
		}
		tokens, targets := batch(lists, seq)
		r, err := tr.Step(tokens, targets)
		if err != nil {
			t.Fatal(err)
		}
		losses = append(losses, r.Loss)
	}
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
	return losses
}

func near(a, b []float64) bool {
	for i := range b {
		if len(a) != len(b) || math.Abs(a[i]-b[i]) > 1e-5*math.Abs(b[i]) {
			return false
		}
	}
	return true
}

// TestPaddingCountsForNothing: losses are those of the whole batch, however it is
// divided and however far it is padded. Its sequences have 15, 2, 9 and 3 tokens, so
// that the mean of micro-batches' means is another.
func TestPaddingCountsForNothing(t *testing.T) {
	c := config()
	c.GPT2.Context, c.Seq = 24, 24
	var lists data.Lists
	for i, n := range []int{15, 2, 9, 3} {
		lists = append(lists, nil)
		for k := range n {
			lists[i] = append(lists[i], int32((k*k*7+i*31)%256))
		}
	}
	want := stepsOf(t, c, c.Plain(), []int{24, 24, 24, 24}, lists)
	if !(want[3] < want[0]) {
		t.Fatalf("losses %v do not fall", want)
	}
	for _, micro := range []int{4, 2, 1} {
		if got := stepsOf(t, c, train.Strategy{MicroBatch: micro}, []int{24, 16, 15, 19}, lists); !near(got, want) {
			t.Errorf("micro-batches of %d, padded to 24, 16, 15 and 19: losses %v, want %v", micro, got, want)
		}
	}
}

// TestByLengthFeeds: a run takes each batch as it is, with its own strategy, and
// counts tokens without padding.
func TestByLengthFeeds(t *testing.T) {
	c := config()
	c.Lengths, c.Schedule.Steps = 2, 8
	lists := append(lines(30, 16), []int32{5}, nil) // nothing follows in the last two
	feed, err := train.NewByLength(lists, nil, c, 0)
	if err != nil {
		t.Fatal(err)
	}
	lengths := feed.Lengths()
	if len(lengths) != 2 || lengths[0] != 8 || lengths[1] != 16 {
		t.Fatalf("lengths %v", lengths)
	}
	r := newRun(t, c, c.Plain())
	r.Feed = feed
	if _, err := r.Do(context.Background()); err == nil {
		t.Error("no strategies, and the run began")
	}
	r.Shapes = []train.Shape{
		{Seq: 8, Choices: []train.Choice{{Strategy: c.Plain(), Seconds: 1}}},
		{Seq: 16, Choices: []train.Choice{{Strategy: train.Strategy{MicroBatch: 2}, Seconds: 2}, {Strategy: train.Strategy{MicroBatch: 4, Recompute: 3}, Seconds: 2.1}}}}
	steps := map[int]int{}
	r.OnStep = func(p train.Progress) {
		steps[p.Seq]++
		if tokens := p.TokensPerSecond * p.Seconds; tokens > float64(c.Batch*p.Seq) || tokens < float64(2*c.Batch) {
			t.Errorf("step %d: %v tokens in a batch of %d×%d", p.Step, tokens, c.Batch, p.Seq)
		}
	}
	out, err := r.Do(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if out.Steps != 8 || len(out.Lengths) != 2 || steps[8] != out.Lengths[0].Steps || steps[16] != out.Lengths[1].Steps || steps[8]*steps[16] == 0 {
		t.Errorf("steps by length %v; %+v", steps, out)
	}
	if err := r.Trainer.At(17, c.Plain()); err == nil {
		t.Error("a sequence longer than the context was taken")
	}
}

// TestClassesByLength: tokens, mask and labels are those of the texts.
func TestClassesByLength(t *testing.T) {
	c := families()["classes"]
	c.Lengths, c.Batch = 3, 2
	lists, labels := lines(10, c.Seq), make(labelsOf, 10)
	for i := range labels {
		labels[i] = byte(len(lists[i]) % 2)
	}
	feed, err := train.NewByLength(lists, labels, c, 9)
	if err != nil {
		t.Fatal(err)
	}
	for range 12 {
		seq, err := feed.Seq()
		if err != nil {
			t.Fatal(err)
		}
		tokens, mask, classes := make([]int32, 2*seq), make([]int32, 2*seq), make([]int32, 2)
		if err := feed.Next(tokens, mask, classes); err != nil {
			t.Fatal(err)
		}
		for row := range 2 {
			n := 0
			for i := range seq {
				if mask[row*seq+i] == 1 {
					n++
				} else if tokens[row*seq+i] != 9 {
					t.Fatalf("token %d behind the end", tokens[row*seq+i])
				}
			}
			if int(classes[row]) != n%2 || n < 2 {
				t.Errorf("a text of %d tokens has class %d", n, classes[row])
			}
		}
	}
}

// labelsOf is a data.Source of labels.
type labelsOf []byte

func (l labelsOf) Len() int          { return len(l) }
func (l labelsOf) Shape() []int      { return nil }
func (l labelsOf) DType() data.DType { return data.Int32 }
func (l labelsOf) Read(i int, dst []byte) error {
	copy(dst, []byte{l[i], 0, 0, 0})
	return nil
}
