package nn_test

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/headroom-go/headroom/internal/golden"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// tinyBERT is the configuration of testdata/bert.py.
var tinyBERT = nn.BERTConfig{Vocab: 61, Width: 32, Layers: 2, Heads: 4, Hidden: 64, Context: 16, Types: 2, Eps: 1e-12}

// bertBatch is one of the two batches of the reference.
type bertBatch struct {
	nn.BERTInput
	labels, classes *tensor.Tensor
}

func openBatch(rt *tensor.Runtime, values golden.Values, i int) bertBatch {
	field := func(name string) *tensor.Tensor {
		name = fmt.Sprintf("input.%d.%s", i, name)
		return rt.FromInt32s(trace.Input, values.Int32s(name), values.Shape(name)...)
	}
	return bertBatch{nn.BERTInput{Tokens: field("input_ids"), Types: field("token_type_ids"), Mask: field("attention_mask")},
		field("labels"), field("classes")}
}

func (b bertBatch) release() {
	for _, t := range []*tensor.Tensor{b.Tokens, b.Types, b.Mask, b.labels, b.classes} {
		t.Release()
	}
}

// TestGoldenMaskedLM trains on masked tokens as PyTorch did, with and without
// recompute.
func TestGoldenMaskedLM(t *testing.T) {
	for _, around := range []nn.Around{nil, recompute} {
		rt := runtime(t)
		model := nn.NewMaskedLM(rt, tinyBERT, 1)
		model.Around = around
		followBERT(t, rt, "masked", model, func(b bertBatch) *tensor.Tensor { return model.Loss(b.BERTInput, b.labels) })
	}
}

// TestGoldenClassifier trains on classes of sequences as PyTorch did.
func TestGoldenClassifier(t *testing.T) {
	rt := runtime(t)
	model := nn.NewClassifier(rt, tinyBERT, 3, 1)
	followBERT(t, rt, "class", model, func(b bertBatch) *tensor.Tensor { return model.Loss(b.BERTInput, b.classes) })
}

func followBERT(t *testing.T, rt *tensor.Runtime, name string, model nn.Module, loss func(bertBatch) *tensor.Tensor) {
	values := golden.Open(t, "testdata/bert_tiny.safetensors")
	batches := []bertBatch{openBatch(rt, values, 0), openBatch(rt, values, 1)}
	opt := nn.NewAdamW(model.Parameters(), nn.AdamWOptions{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01})
	defer func() {
		nn.Release(model)
		opt.Release()
		batches[0].release()
		batches[1].release()
	}()
	train(t, values, steps{losses: wide(values.Float32s(name + ".losses")), norms: wide(values.Float32s(name + ".grad_norms")), grads: name + ".grad."},
		model, opt, 2e-3, func(step int) *tensor.Tensor { return loss(batches[step%2]) })
}

func wide(v []float32) []float64 {
	w := make([]float64, len(v))
	for i, x := range v {
		w[i] = float64(x)
	}
	return w
}

// TestBERTDropout checks that training drops, differently from seed to seed
// and alike for the same seed, under recompute too, and that evaluation does not.
func TestBERTDropout(t *testing.T) {
	rt := runtime(t)
	values := golden.Open(t, "testdata/bert_tiny.safetensors")
	b := openBatch(rt, values, 0)
	defer b.release()
	c := tinyBERT
	c.Dropout, c.AttentionDropout = 0.2, 0.1
	model := nn.NewMaskedLM(rt, c, 1)
	defer nn.Release(model)
	step := func(seed uint64) (float64, []float32) {
		defer nn.ZeroGrad(model)
		rt.SetSeed(seed)
		l := model.Loss(b.BERTInput, b.labels)
		l.Backward(1)
		return value(l), model.Words.Grad().Float32s()
	}
	first, grad := step(1)
	model.Around = recompute
	if again, g := step(1); again != first || !slices.Equal(g, grad) {
		t.Error("the same seed gives another result under recompute")
	}
	model.Around = nil
	if other, _ := step(2); other == first {
		t.Error("another seed gives the same loss")
	}
	model.Mode.Training = false
	one, _ := step(1)
	if two, _ := step(2); one != two || one == first {
		t.Errorf("evaluation gives %v and %v, training gave %v", one, two, first)
	}
}

// TestBERTAttentionDropout checks that attention has a dropout of its own.
func TestBERTAttentionDropout(t *testing.T) {
	rt := runtime(t)
	c := tinyBERT
	c.AttentionDropout = 0.5
	model := nn.NewMaskedLM(rt, c, 1)
	defer nn.Release(model)
	tokens := []int32{5, 6, 7, 8}
	training := maskedLoss(rt, model, tokens, tokens, nil)
	model.Mode.Training = false
	if maskedLoss(rt, model, tokens, tokens, nil) == training {
		t.Error("training drops nothing")
	}
}

// TestBERTMask checks that what is masked changes nothing for the others: a
// sequence with padding has the loss that it has alone.
func TestBERTMask(t *testing.T) {
	rt := runtime(t)
	model := nn.NewMaskedLM(rt, tinyBERT, 1)
	defer nn.Release(model)
	tokens, labels := []int32{5, 6, 7, 8}, []int32{1, -100, 2, 3}
	alone := maskedLoss(rt, model, tokens, labels, nil)
	padded := maskedLoss(rt, model, append(tokens, 9, 9), append(labels, -100, -100), []int32{1, 1, 1, 1, 0, 0})
	if math.Abs(alone-padded) > 1e-6 {
		t.Errorf("loss %v with padding, %v alone", padded, alone)
	}
	if seen := maskedLoss(rt, model, append(tokens, 9, 9), append(labels, -100, -100), nil); math.Abs(alone-seen) < 1e-6 {
		t.Errorf("loss %v without a mask: padding is not seen", seen)
	}
}

// maskedLoss is the loss of one sequence.
func maskedLoss(rt *tensor.Runtime, m *nn.MaskedLM, tokens, labels, mask []int32) float64 {
	x, y := rt.FromInt32s(trace.Input, tokens, 1, len(tokens)), rt.FromInt32s(trace.Input, labels, 1, len(labels))
	defer x.Release()
	defer y.Release()
	in := nn.BERTInput{Tokens: x}
	if mask != nil {
		in.Mask = rt.FromInt32s(trace.Input, mask, 1, len(mask))
		defer in.Mask.Release()
	}
	return value(m.Loss(in, y))
}

// TestBERTParameters compares with the counts of the published models, whose
// tied output layer counts once.
func TestBERTParameters(t *testing.T) {
	for name, want := range map[string]int{"bert-base": 109514298, "bert-large": 335174458} {
		c, err := nn.LookupBERT(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Validate(); err != nil {
			t.Error(err)
		}
		model := nn.NewMaskedLM(nullRuntime(t), c, 1)
		if got := nn.Count(model); got != want {
			t.Errorf("%s has %d parameters, want %d", name, got, want)
		}
		nn.Release(model)
	}
}

// TestMaskedLossAt checks that the loss of the labelled places alone, one of
// them left out, is that of all places, and its gradients too.
func TestMaskedLossAt(t *testing.T) {
	rt := runtime(t)
	values := golden.Open(t, "testdata/bert_tiny.safetensors")
	b := openBatch(rt, values, 0)
	defer b.release()
	model := nn.NewMaskedLM(rt, tinyBERT, 1)
	defer nn.Release(model)
	var places, labels []int32
	for i, label := range values.Int32s("input.0.labels") {
		if label != nn.IgnoreTarget || i == 0 {
			places, labels = append(places, int32(i)), append(labels, label)
		}
	}
	at, of := rt.FromInt32s(trace.Input, places, len(places)), rt.FromInt32s(trace.Input, labels, len(labels))
	defer at.Release()
	defer of.Release()
	run := func(l *tensor.Tensor) (float64, []float32) {
		defer nn.ZeroGrad(model)
		l.Backward(1)
		return value(l), model.Blocks[0].Query.Weight.Grad().Float32s()
	}
	want, wantGrad := run(model.Loss(b.BERTInput, b.labels))
	got, grad := run(model.LossAt(b.BERTInput, at, of))
	near(t, "loss", got, want, 1e-6)
	golden.Near(t, "gradient", grad, wantGrad, 1e-5)
}

// TestBERTDropoutGradients checks gradients under dropout numerically, with
// the same choices in every run.
func TestBERTDropoutGradients(t *testing.T) {
	rt := runtime(t)
	values := golden.Open(t, "testdata/bert_tiny.safetensors")
	b := openBatch(rt, values, 1)
	defer b.release()
	c := tinyBERT
	c.Dropout, c.AttentionDropout = 0.3, 0.3
	model := nn.NewClassifier(rt, c, 3, 1)
	defer nn.Release(model)
	if err := nn.LoadState(values.File(), model.Parameters()); err != nil {
		t.Fatal(err)
	}
	checkNumerically(t, model, func() *tensor.Tensor {
		rt.SetSeed(11)
		return model.Loss(b.BERTInput, b.classes)
	})
}

// TestBERTConfig reads a published config.json.
func TestBERTConfig(t *testing.T) {
	const text = `{"architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1, "gradient_checkpointing": false,
		"hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
		"layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert", "num_attention_heads": 12,
		"num_hidden_layers": 12, "pad_token_id": 0, "type_vocab_size": 2, "vocab_size": 30522}`
	var got nn.BERTConfig
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	if want, _ := nn.LookupBERT("bert-base"); got != want {
		t.Errorf("read %+v, want %+v", got, want)
	}
	for name, change := range map[string]func(c *nn.BERTConfig){
		"heads":   func(c *nn.BERTConfig) { c.Heads = 7 },
		"dropout": func(c *nn.BERTConfig) { c.Dropout = 1 },
		"eps":     func(c *nn.BERTConfig) { c.Eps = math.NaN() },
		"types":   func(c *nn.BERTConfig) { c.Types = 0 },
	} {
		c := got
		change(&c)
		if c.Validate() == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
