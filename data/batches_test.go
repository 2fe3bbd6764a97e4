package data

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// numbers is a tokenizer of 50000 tokens for corpora made in place; its methods
// are not called.
type numbers struct{ Bytes }

func (numbers) Name() string   { return "numbers" }
func (numbers) VocabSize() int { return 50000 }

// counting makes a corpus of the tokens 0 ... n-1, so that a token tells where
// it stands.
func counting(t testing.TB, n int) *Corpus {
	t.Helper()
	c, err := newCorpus(numbers{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		c.append(int32(i))
	}
	return c
}

func newBatches(t testing.TB, c *Corpus, batch, seq int, seed uint64) *Batches {
	t.Helper()
	b, err := NewBatches(c, batch, seq, seed)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// take draws n samples through batches of size b.batch and returns the first
// input token of each, after checking that each is a window.
func take(t testing.TB, b *Batches, batches int) []int32 {
	t.Helper()
	var starts []int32
	inputs, targets := make([]int32, b.batch*b.seq), make([]int32, b.batch*b.seq)
	for range batches {
		b.Next(inputs, targets)
		for row := range b.batch {
			first := inputs[row*b.seq]
			starts = append(starts, first)
			for i := range b.seq {
				if in, out := inputs[row*b.seq+i], targets[row*b.seq+i]; in != first+int32(i) || out != in+1 {
					t.Fatalf("place %d of a sample that starts with %d: input %d, target %d", i, first, in, out)
				}
			}
		}
	}
	return starts
}

// TestEpochVisitsEachWindowOnce goes through epochs of many shapes with batches
// of one: the windows tile the corpus from an offset below seq to a rest below
// seq.
func TestEpochVisitsEachWindowOnce(t *testing.T) {
	for seq := 1; seq <= 7; seq++ {
		for tokens := seq + 1; tokens < 60; tokens++ {
			b := newBatches(t, counting(t, tokens), 1, seq, uint64(tokens))
			for range 3 {
				starts := take(t, b, 1) // the first one makes the epoch current
				starts = append(starts, take(t, b, b.Windows()-1)...)
				slices.Sort(starts)
				for i, s := range starts {
					if int(s) != int(starts[0])+i*seq {
						t.Fatalf("%d tokens, seq %d: windows at %v", tokens, seq, starts)
					}
				}
				rest := tokens - 1 - (int(starts[len(starts)-1]) + seq)
				if int(starts[0]) >= seq || rest >= seq || rest < 0 {
					t.Fatalf("%d tokens, seq %d: windows at %v leave a rest of %d", tokens, seq, starts, rest)
				}
			}
		}
	}
}

// TestRaggedBatch: batches that do not divide the epoch give the same samples
// as batches of one.
func TestRaggedBatch(t *testing.T) {
	c := counting(t, 101)
	want := take(t, newBatches(t, c, 1, 10, 7), 210)
	for _, batch := range []int{2, 3, 7, 30} {
		if got := take(t, newBatches(t, c, batch, 10, 7), 210/batch); !slices.Equal(got, want) {
			t.Errorf("batch %d: %v, want %v", batch, got, want)
		}
	}
}

func TestOffsetsAndOrdersDiffer(t *testing.T) {
	c := counting(t, 1000)
	b := newBatches(t, c, 1, 10, 1)
	offsets := map[int]bool{}
	orders := map[string]bool{}
	for range 50 {
		take(t, b, 1)
		offsets[b.epoch.offset] = true
		starts := take(t, b, b.Windows()-1)
		orders[fmt.Sprint(starts)] = true
	}
	if len(offsets) != 10 || len(orders) != 50 {
		t.Errorf("50 epochs have %d offsets of 10 and %d orders", len(offsets), len(orders))
	}
	seeds := map[string]bool{}
	for seed := range uint64(50) {
		seeds[fmt.Sprint(take(t, newBatches(t, c, 1, 10, seed), 20))] = true
	}
	if len(seeds) != 50 {
		t.Errorf("50 seeds give %d sequences", len(seeds))
	}
}

// TestOrderGolden pins the order for a seed, on every platform.
func TestOrderGolden(t *testing.T) {
	got := take(t, newBatches(t, counting(t, 50), 2, 5, 42), 6)
	want := []int32{0, 40, 25, 5, 15, 35, 20, 10, 30, 6, 21, 16}
	if !slices.Equal(got, want) {
		t.Errorf("the order for seed 42 is %v, was %v", got, want)
	}
}

// TestResume stops after every number of batches, goes through JSON, and
// continues as if nothing had been.
func TestResume(t *testing.T) {
	c := counting(t, 101)
	const total = 20
	whole := take(t, newBatches(t, c, 3, 10, 5), total)
	for stop := range total + 1 {
		b := newBatches(t, c, 3, 10, 5)
		take(t, b, stop)
		stored, err := json.Marshal(b.State())
		if err != nil {
			t.Fatal(err)
		}
		var state State
		if err := json.Unmarshal(stored, &state); err != nil {
			t.Fatal(err)
		}
		resumed := newBatches(t, c, 3, 10, 999) // the state's seed counts
		if err := resumed.Restore(state); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(resumed.State(), b.State()) {
			t.Fatalf("after %d batches: state %+v, want %+v", stop, resumed.State(), b.State())
		}
		if got := take(t, resumed, total-stop); !slices.Equal(got, whole[3*stop:]) {
			t.Fatalf("resumed after %d batches: %v, want %v", stop, got, whole[3*stop:])
		}
	}
}

func TestRestoreRefuses(t *testing.T) {
	c := counting(t, 100)
	b := newBatches(t, c, 2, 10, 5)
	take(t, b, 1)
	before := b.State()
	longer := newBatches(t, counting(t, 101), 2, 10, 5).State()
	other := before
	other.Corpus.SHA256 = strings.Repeat("0", 64)
	tokenizer := before
	tokenizer.Corpus.Tokenizer = "bytes"
	shorter := newBatches(t, c, 2, 9, 5).State()
	far, negative := before, before
	far.Position, negative.Position = 11, -1
	for _, test := range []struct {
		state State
		want  string
	}{
		{longer, "made for 101 tokens of numbers"},
		{other, "with hash 000000000000"},
		{tokenizer, "100 tokens of bytes"},
		{shorter, "sequences of 10 tokens: the state was made for 9"},
		{far, "position 11 in an epoch of"},
		{negative, "position -1"},
		{State{}, "other data"},
	} {
		err := b.Restore(test.state)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got %v, want an error with %q", err, test.want)
		}
		if b.State() != before {
			t.Fatalf("a refused state changed the place to %+v", b.State())
		}
	}
}

func TestNewBatchesRefuses(t *testing.T) {
	c := counting(t, 10)
	for _, test := range []struct {
		batch, seq int
		want       string
	}{
		{1, 10, "has 10 tokens, but a sequence of 10 needs at least 11"},
		{1, math.MaxInt, fmt.Sprint("needs at least ", uint(math.MaxInt)+1)},
		{0, 1, "batches of 0 sequences"},
		{1, 0, "sequences of 0 tokens"},
		{-1, -1, "must be positive"},
		{math.MaxInt/9 + 1, 9, "their product an int"},
	} {
		_, err := NewBatches(c, test.batch, test.seq, 0)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got %v, want an error with %q", err, test.want)
		}
	}
	if _, err := NewBatches(c, 1, 9, 0); err != nil {
		t.Errorf("one window that fits: %v", err)
	}
}

func TestNextPanics(t *testing.T) {
	b := newBatches(t, counting(t, 10), 2, 3, 0)
	defer func() {
		if r := fmt.Sprint(recover()); !strings.Contains(r, "6 inputs and 5 targets for a batch of 2×3") {
			t.Errorf("panic: %s", r)
		}
	}()
	b.Next(make([]int32, 6), make([]int32, 5))
}

func BenchmarkNext(b *testing.B) {
	batches := newBatches(b, counting(b, 50000), 8, 1024, 0)
	inputs, targets := make([]int32, 8*1024), make([]int32, 8*1024)
	b.SetBytes(8 * 1024 * 4 * 2)
	b.ReportAllocs()
	for b.Loop() {
		batches.Next(inputs, targets)
	}
}
