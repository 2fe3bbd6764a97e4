package train

import (
	"fmt"
	"math"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/nn"
)

// Score is what a model came to on a set that it does not learn from.
type Score struct {
	Samples  int     `json:"samples"`
	Loss     float64 `json:"loss"`               // the mean
	Accuracy float64 `json:"accuracy,omitempty"` // the fraction of samples whose class was the most probable; of other tasks 0
}

// Evaluate runs the model over all of a set, as many samples at a time as a
// micro-batch has, without gradients and without dropout. The model stays as it
// is. Of several ranks each takes a part of the set, and all have the whole's score.
func (t *Trainer) Evaluate(set Set) (Score, error) {
	if set.Len() == 0 {
		return Score{}, fmt.Errorf("there are no samples to evaluate on")
	}
	mine, err := t.evaluate(t.par.share(set), t.par.most(set.Len()))
	if err = t.par.failure(err); err != nil {
		return mine, err
	}
	return t.par.whole(mine, set.Len())
}

// evaluate runs the model on a set, as often as a rank that has most samples, since
// ranks may compute together.
func (t *Trainer) evaluate(set Set, most int) (Score, error) {
	n, total := t.Strategy.MicroBatch, Score{Samples: set.Len()}
	arrays := newArrays(t.fields, n)
	for at := 0; at < most; at += n {
		rows := max(0, min(n, total.Samples-at))
		if err := t.fill(arrays, set, at, rows); err != nil {
			return total, err
		}
		loss, right, err := t.judge(arrays, rows)
		if err != nil {
			return total, err
		}
		if rows == 0 {
			continue
		}
		total.Loss += loss / float64(total.Samples)
		total.Accuracy += float64(right) / float64(total.Samples)
	}
	return total, nil
}

// fill reads rows samples; the rest of the arrays is not to count.
func (t *Trainer) fill(arrays []any, set Set, at, rows int) error {
	for row := range t.Strategy.MicroBatch {
		sample := make([]any, len(t.fields))
		for k, f := range t.fields {
			sample[k] = part(arrays[k], row*f.len(), (row+1)*f.len())
			if f.target && row >= rows {
				fillWith(sample[k].([]int32), nn.IgnoreTarget)
			}
		}
		if row >= rows {
			continue
		}
		if err := set.Sample(at+row, sample...); err != nil {
			return err
		}
	}
	for k, f := range t.fields {
		if err := f.check(arrays[k]); err != nil {
			return err
		}
	}
	return nil
}

func fillWith(a []int32, v int32) {
	for i := range a {
		a[i] = v
	}
}

func part(array any, from, to int) any {
	if a, ok := array.([]float32); ok {
		return a[from:to]
	}
	return array.([]int32)[from:to]
}

// judge gives the sum of the losses of the first rows samples, and how many
// were sorted right.
func (t *Trainer) judge(arrays []any, rows int) (loss float64, right int, err error) {
	labels := arrays[len(arrays)-1].([]int32)
	var out []float32
	err = t.rt.Try(func() {
		t.evaluating(func() {
			defer t.par.join()
			y := t.rate(arrays)
			if y == nil {
				return
			}
			defer y.Release()
			out = make([]float32, y.Len())
			y.Download(device.BytesOf(out))
		})
	})
	if err == nil {
		err = t.rt.Sync()
	}
	if err != nil || len(out) == 0 {
		return 0, 0, err
	}
	if len(out) == 1 { // no logits, but the mean loss: classes are two at least
		return float64(out[0]) * float64(rows), 0, nil
	}
	classes := len(out) / len(labels)
	for row := range rows {
		l, best := crossEntropy(out[row*classes:(row+1)*classes], int(labels[row]))
		if loss += l; best == int(labels[row]) {
			right++
		}
	}
	return loss, right, nil
}

// evaluating runs f without gradients, the model out of training.
func (t *Trainer) evaluating(f func()) {
	if m := t.model.mode; m != nil {
		m.Training = false
		defer func() { m.Training = true }()
	}
	t.par.reading("evaluation", func() { t.rt.NoGrad(f) })
}

// crossEntropy is that of a label under logits, with the most probable class.
func crossEntropy(logits []float32, label int) (loss float64, best int) {
	for c, v := range logits {
		if v > logits[best] {
			best = c
		}
	}
	sum := 0.0
	for _, v := range logits {
		sum += math.Exp(float64(v - logits[best]))
	}
	if label < 0 {
		return 0, best
	}
	return math.Log(sum) + float64(logits[best]-logits[label]), best
}
