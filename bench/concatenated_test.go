package bench

import (
	"slices"

	"github.com/headroom-go/headroom/generate"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

// padded is a batch of texts that are continued together with a cache that grows
// by concatenation. They are padded in front, so that all get their next token
// at the same place.
type padded struct {
	rt         *tensor.Runtime
	model      generate.Model
	keys       []*tensor.Tensor // of each layer, [texts, heads, width of the batch, D]
	values     []*tensor.Tensor
	pads       []int     // of each text
	width      int       // tokens of a text in the cache, padding included
	next       [][]int32 // tokens to run
	mask       *tensor.Tensor
	tokenBytes uint64 // of a token's keys and values
	bytes      uint64 // of the cache now
}

// concatenated answers requests in batches, one after the other.
func concatenated(rt *tensor.Runtime, m *nn.GPT2, requests []generate.Request, batch int) (f figures) {
	for part := range slices.Chunk(requests, batch) {
		f.most = max(f.most, len(part))
		rt.NoGrad(func() { newPadded(rt, m, part).run(part, &f) })
	}
	f.mean /= float64(f.steps)
	return f
}

func newPadded(rt *tensor.Runtime, m *nn.GPT2, part []generate.Request) *padded {
	c := m.Config
	b := &padded{rt: rt, model: generate.GPT2(m), keys: make([]*tensor.Tensor, c.Layers), values: make([]*tensor.Tensor, c.Layers),
		tokenBytes: uint64(8 * c.Layers * c.Width)}
	longest := 0
	for _, r := range part {
		longest = max(longest, len(r.Prompt))
	}
	for _, r := range part {
		pad := longest - len(r.Prompt)
		b.pads, b.next = append(b.pads, pad), append(b.next, slices.Concat(make([]int32, pad), r.Prompt))
	}
	return b
}

// run takes steps until the last text has ended.
func (b *padded) run(part []generate.Request, f *figures) {
	going := len(part)
	for came := 1; going > 0; came++ {
		tokens := b.step(f)
		going = 0
		real := uint64(0)
		for i, r := range part {
			b.next[i] = tokens[i : i+1]
			if came < r.MaxTokens {
				going++
				real += uint64(len(r.Prompt)+came) * b.tokenBytes
			}
		}
		f.steps++
		f.mean += float64(going)
		if b.bytes >= f.cache && going > 0 {
			f.cache, f.waste = b.bytes, 1-float64(real)/float64(b.bytes)
		}
	}
	for l := range b.keys {
		b.keys[l].Release()
		b.values[l].Release()
	}
}

// step runs the next tokens and gives those that come.
func (b *padded) step(f *figures) []int32 {
	var tokens, positions, last, mask []int32
	from := b.width
	b.width += len(b.next[0])
	for i, next := range b.next {
		for at := range b.width {
			seen := int32(0)
			if at >= b.pads[i] {
				seen = 1
			}
			mask = append(mask, seen)
		}
		for j, token := range next {
			tokens, positions = append(tokens, token), append(positions, int32(max(0, from+j-b.pads[i])))
		}
		last = append(last, int32(len(tokens)-1))
	}
	f.computed += len(tokens)
	b.bytes = uint64(len(b.next)*b.width) * b.tokenBytes
	b.mask = b.rt.FromInt32s(trace.Input, mask, len(b.next), b.width)
	defer b.mask.Release()
	var in [3]*tensor.Tensor
	for i, v := range [][]int32{tokens, positions, last} {
		in[i] = b.rt.FromInt32s(trace.Input, v, len(v))
		defer in[i].Release()
	}
	y := b.model.Logits(in[0], in[1], in[2], b.attend)
	defer y.Release()
	return greatest(y.Float32s(), len(b.next))
}

// attend joins the keys and values of a layer with the new ones.
func (b *padded) attend(layer int, qkv *tensor.Tensor) *tensor.Tensor {
	s := b.model.Shape()
	n, t := len(b.next), len(b.next[0])
	all := tensor.Reshape(qkv, n, t, 3, s.Heads, s.D)
	defer all.Release()
	part := func(i int) *tensor.Tensor { // [texts, heads, tokens, D]
		one := tensor.Slice(all, 2, i, i+1, 1)
		defer one.Release()
		flat := tensor.Reshape(one, n, t, s.Heads, s.D)
		defer flat.Release()
		return tensor.Permute(flat, 0, 2, 1, 3)
	}
	q := part(0)
	defer q.Release()
	for i, kept := range []*[]*tensor.Tensor{&b.keys, &b.values} {
		p := part(i + 1)
		old := (*kept)[layer]
		if old == nil {
			(*kept)[layer] = tensor.Concat(2, p)
		} else {
			(*kept)[layer] = tensor.Concat(2, old, p)
			old.Release()
		}
		p.Release()
	}
	y := tensor.AttentionWith(q, b.keys[layer], b.values[layer], tensor.AttentionOptions{Causal: true, KeyMask: b.mask})
	defer y.Release()
	back := tensor.Permute(y, 0, 2, 1, 3)
	defer back.Release()
	return tensor.Reshape(back, n*t, s.Heads*s.D)
}

// greatest gives the most probable token of each row.
func greatest(logits []float32, rows int) (tokens []int32) {
	for row := range slices.Chunk(logits, len(logits)/rows) {
		best := 0
		for i, x := range row {
			if x > row[best] {
				best = i
			}
		}
		tokens = append(tokens, int32(best))
	}
	return tokens
}
