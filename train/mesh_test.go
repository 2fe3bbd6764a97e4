package train

import (
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/internal/safetensors"
	"github.com/headroom-go/headroom/nn"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/trace"
)

func TestMeshPlaces(t *testing.T) {
	for _, c := range []struct {
		mesh          Mesh
		ranks, places int // 0: an error
	}{{Mesh{}, 1, 1}, {Mesh{}, 6, 6}, {Mesh{Tensor: 2}, 6, 3}, {Mesh{2, 2, 2}, 16, 4}, {Mesh{Expert: 4}, 4, 4},
		{Mesh{Tensor: 4}, 6, 0}, {Mesh{Pipeline: -1}, 4, 0}, {Mesh{1 << 40, 1 << 40, 1}, 4, 0}, {Mesh{Tensor: 2}, 1, 0}} {
		if got, err := c.mesh.Places(c.ranks); got != c.places || (err == nil) != (c.places > 0) {
			t.Errorf("%+v on %d ranks: %d places, error %v", c.mesh, c.ranks, got, err)
		}
	}
	c := Config{Model: "x", GPT2: nn.GPT2Config{Vocab: 1}}
	if err := c.Splits(Mesh{Expert: 2}); err == nil || !strings.Contains(err.Error(), "model x can't be split along the axis expert yet") {
		t.Errorf("error %v", err)
	}
	c.GPT2, c.Seq = nn.GPT2Config{Vocab: 3, Heads: 8}, 12
	for ranks, want := range map[int]string{2: "", 3: "the 8 heads of model x can't be shared out among 3 ranks", 4: "has 3 words, too few for 4 ranks",
		8: "sequences of 12 tokens can't be shared out among 8 ranks along the axis tensor"} {
		if err := c.Splits(Mesh{Tensor: ranks}); (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%d ranks: error %v", ranks, err)
		}
	}
	c = Config{Model: "x", BERT: nn.BERTConfig{Vocab: 9, Heads: 3, Hidden: 3, Width: 9}, Seq: 12, Task: Hidden}
	if err := c.Splits(Mesh{Tensor: 3}); err == nil || !strings.Contains(err.Error(), "odd width, 9") {
		t.Errorf("error %v", err)
	}
}

// three is a model with a parameter that all ranks have, one of which ranks along
// tensor have columns, and one that ranks along expert have another of.
type three struct{ all, columns, expert *nn.Parameter }

func (m three) Parameters() []*nn.Parameter { return []*nn.Parameter{m.all, m.columns, m.expert} }

// The columns are [rows, wide] in all; there are so many experts of so many each.
const (
	rows, wide, experts = 5, 40, 2
	each                = 150
)

// onMesh runs f on every rank of a mesh with the three, whose elements count up from
// 1, 1000 and, of all experts, 5000.
func onMesh(t *testing.T, ranks int, mesh Mesh, shard Shard, f func(tr *Trainer, m three)) {
	t.Helper()
	var ended sync.WaitGroup
	for _, g := range dist.Local(ranks, dist.Options{}) {
		ended.Go(func() {
			dev, err := device.OpenHost(device.HostOptions{Capacity: 32 << 20, Workers: 1})
			if err != nil {
				t.Error(err)
				return
			}
			mem, err := alloc.New(dev, alloc.Options{})
			if err != nil {
				t.Error(err)
				return
			}
			stream, err := dev.NewStream()
			if err != nil {
				t.Error(err)
				return
			}
			rt := tensor.New(mem, stream)
			l, err := newParallel(dev, Parallel{Group: g, Mesh: mesh, Shard: shard, Bucket: 1})
			if err != nil {
				t.Error(err)
				return
			}
			err = rt.Try(func() {
				m := newThree(rt, l.at)
				l.take(rt, []model{{Module: m}}, false)
				tr := &Trainer{rt: rt, mem: mem, model: model{Module: m}, par: l, opt: nn.NewOptimizer(l.updated(m.Parameters()), nn.SGDOptions{Momentum: 0.5})}
				f(tr, m)
				err = tr.Close()
			})
			if err := errors.Join(err, g.Close(), dev.Close()); err != nil {
				t.Errorf("rank %d: %v", g.Rank(), err)
			}
		})
	}
	ended.Wait()
}

// newThree makes a rank's part of the three.
func newThree(rt *tensor.Runtime, at place) three {
	tensors, tensorAt, expertAt := 1, 0, 0
	if at.tensor != nil {
		tensors, tensorAt = at.tensor.Size(), at.tensor.Rank()
	}
	if at.expert != nil {
		expertAt = at.expert.Rank()
	}
	n := wide / tensors
	m := three{
		&nn.Parameter{Name: "all", Tensor: rt.Parameter(7, 100)},
		&nn.Parameter{Name: "columns", Tensor: rt.Parameter(rows, n), Whole: []int{rows, wide}, At: []int{0, tensorAt * n}},
		&nn.Parameter{Name: "expert" + string(rune('0'+expertAt)), Tensor: rt.Parameter(each), Expert: true},
	}
	m.all.Set(counting(1, m.all.Len(), 0, m.all.Len(), 0))
	m.columns.Set(counting(1000, n*rows, tensorAt*n, n, wide))
	m.expert.Set(counting(5000+float32(expertAt*each), each, 0, each, 0))
	return m
}

// counting is rows of numbers that count up from base + at, a stride apart.
func counting(base float32, len, at, row, stride int) []float32 {
	x := make([]float32, len)
	for i := range x {
		x[i] = base + float32(at+i%row+i/row*stride)
	}
	return x
}

// TestMeshGradients: gradients are the mean over the places, those of an expert the
// sum over its replicas divided by the number of places; the norm has every element
// of the whole model once, and all ranks have what any of its replicas updated.
func TestMeshGradients(t *testing.T) {
	for shard := ShardNothing; shard <= ShardGradients; shard++ {
		onMesh(t, 8, Mesh{Expert: 2, Tensor: 2}, shard, func(tr *Trainer, m three) {
			l := tr.par
			place, expert, data := float32(l.at.replicas.Rank()), float32(l.at.expert.Rank()), float32(l.at.data.Rank())
			if l.Group.Rank() != int(place)*2+l.at.tensor.Rank() || place != 2*data+expert || l.seed() != uint64(place)<<32 {
				t.Errorf("rank %d is at place %v, expert %v, data %v", l.Group.Rank(), place, expert, data)
			}
			l.expect()
			l.begin(0, true)
			want := map[*nn.Parameter]float32{m.all: 2.5, m.columns: 25, m.expert: (100 + 200 + 20*expert) / 4}
			for p, g := range map[*nn.Parameter]float32{m.all: 1 + place, m.columns: 10 * (1 + place), m.expert: 100*(1+data) + 10*expert} {
				grad := tr.rt.Empty(tensor.Float32, trace.Gradient, p.Shape()...)
				grad.Set(slices.Repeat([]float32{g}, p.Len()))
				p.SetGrad(grad)
			}
			l.end(0)
			l.ready()
			scale, norm := l.clip(m.Parameters(), 0)
			sum := 0.0
			for e := range experts {
				sum += each * math.Pow((300+20*float64(e))/4, 2)
			}
			sum = math.Sqrt(sum + 700*2.5*2.5 + rows*wide*25*25)
			if got := float64(norm.Float32s()[0]); math.Abs(got-sum) > 1e-5*sum {
				t.Errorf("shard %d: the norm is %v, want %v", shard, got, sum)
			}
			before := map[*nn.Parameter][]float32{}
			for p := range want {
				before[p] = p.Float32s()
			}
			tr.opt.Step(1, scale)
			l.gather()
			for p, g := range want {
				for i, v := range p.Float32s() {
					if v != before[p][i]-g {
						t.Errorf("shard %d, rank %d: %s went from %v to %v, by %v", shard, l.Group.Rank(), p.Name, before[p][i], v, g)
						break
					}
				}
			}
			scale.Release()
			norm.Release()
			nn.ZeroGrad(m)
			l.zeroGrad()
		})
	}
}

// TestMeshFiles saves on meshes and loads on others, with other shards: every rank
// has its boxes and its part of the state again.
func TestMeshFiles(t *testing.T) {
	type layout struct {
		ranks int
		mesh  Mesh
		shard Shard
	}
	layouts := []layout{{8, Mesh{Expert: 2, Tensor: 2}, ShardState}, {4, Mesh{Expert: 2}, ShardNothing}, {4, Mesh{Expert: 2, Tensor: 2}, ShardGradients}, {8, Mesh{Expert: 2, Tensor: 4}, ShardState}}
	if invariant.Slow {
		layouts = layouts[:2]
	}
	for _, from := range layouts {
		dir := t.TempDir()
		onMesh(t, from.ranks, from.mesh, from.shard, func(tr *Trainer, m three) {
			for _, s := range tr.arrays()[3:] { // the state is 10 times the weights
				_, name, _ := strings.Cut(s.name, "momentum_buffer.")
				for _, p := range m.Parameters() {
					if p.Name == name {
						s.Set(tenfold(p.Float32s()[s.Piece.From:s.Piece.To]))
					}
				}
			}
			if err := tr.saveFiles(dir, "{}"); err != nil {
				t.Error(err)
			}
		})
		f, err := safetensors.Open(filepath.Join(dir, CheckpointFile))
		if err != nil {
			t.Fatal(err)
		}
		c := &Checkpoint{files: []checkpointFile{{filepath.Join(dir, CheckpointFile), f}}}
		if err := errors.Join(c.openParts(dir), c.index()); err != nil {
			t.Fatalf("%+v: %v", from, err)
		}
		for _, to := range layouts {
			onMesh(t, to.ranks, to.mesh, to.shard, func(tr *Trainer, m three) {
				want := map[string][]float32{}
				for _, p := range m.Parameters() {
					want[p.Name] = p.Float32s()
				}
				for _, a := range tr.arrays() {
					a.Set(make([]float32, a.Tensor.Len()))
				}
				if err := errors.Join(tr.par.verify(c), tr.load(c)); err != nil {
					t.Errorf("%+v to %+v: %v", from, to, err)
				}
				for i, a := range tr.arrays() {
					w := want[a.name]
					if _, name, ok := strings.Cut(a.name, "momentum_buffer."); ok {
						w = tenfold(want[name][a.Piece.From:a.Piece.To])
					}
					if len(w) == 0 || !slices.Equal(a.Float32s(), w) {
						t.Errorf("%+v to %+v: array %d, %s, is not what was saved", from, to, i, a.name)
					}
				}
			})
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

func tenfold(x []float32) []float32 {
	x = slices.Clone(x)
	for i := range x {
		x[i] *= 10
	}
	return x
}

// TestComplete: pieces that overlap, leave something out or are of other arrays are
// no array.
func TestComplete(t *testing.T) {
	piece := func(column, columns, from, to int) stored {
		p := safetensors.Box([]int{4, 10}, []int{0, column}, []int{4, columns})
		p.From, p.To = from, to
		return stored{Piece: p}
	}
	other := stored{Piece: safetensors.Box([]int{10, 4}, nil, []int{10, 2})}
	for _, c := range []struct {
		want string
		list []stored
	}{
		{"", []stored{piece(0, 10, 0, 40)}},
		{"", []stored{piece(0, 6, 0, 24), piece(6, 4, 0, 7), piece(6, 4, 7, 16)}},
		{"both have 2 elements", []stored{piece(0, 6, 0, 24), piece(4, 6, 0, 16)}},
		{"both have 1 elements", []stored{piece(0, 10, 0, 20), piece(0, 10, 19, 39)}},
		{"1 of its elements are in none", []stored{piece(0, 10, 0, 20), piece(0, 10, 21, 40)}},
		{"arrays of the shapes", []stored{piece(0, 5, 0, 20), other}},
	} {
		if err := complete(c.list); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: error %v, want %q", c.list, err, c.want)
		}
	}
}
