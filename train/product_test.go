package train_test

import (
	"bytes"
	"testing"

	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/train"
)

// product is a family whose layers can be cut along all axes at once.
func product(name string) train.Config {
	c := deep()[name]
	c.GPT2.Heads, c.BERT.Heads, c.MoE.Heads = 4*min(c.GPT2.Heads, 1), 4*min(c.BERT.Heads, 1), 4*min(c.MoE.Heads, 1)
	if c.Schedule.Steps = 12; invariant.Slow {
		c.Schedule.Steps = 1
	}
	return c
}

// products are meshes of more than one axis beside data, and such with sharded
// parameters.
var products = []struct {
	name     string
	ranks    int
	mesh     train.Mesh
	shard    train.Shard
	micro    int
	blocks   int // that are recomputed
	schedule train.Schedule
}{
	{"gpt2", 4, train.Mesh{Pipeline: 2, Tensor: 2}, train.ShardState, 2, 1, train.OneFOneB},
	{"masked", 4, train.Mesh{Pipeline: 2, Tensor: 2}, train.ShardGradients, 4, 0, train.ZeroBubble},
	{"masked", 4, train.Mesh{Tensor: 2}, train.ShardParameters, 2, 2, train.OneFOneB},
	{"gpt2", 4, train.Mesh{Pipeline: 2}, train.ShardParameters, 2, 0, train.OneFOneB},
	{"moe", 4, train.Mesh{Pipeline: 2, Tensor: 2}, train.ShardNothing, 2, 0, train.OneFOneB},
	{"moe", 4, train.Mesh{Pipeline: 2, Expert: 2}, train.ShardState, 2, 2, train.ZeroBubble},
	{"moe", 4, train.Mesh{Expert: 2, Tensor: 2}, train.ShardState, 4, 1, train.OneFOneB},
	{"moe", 4, train.Mesh{Pipeline: 2, Tensor: 2}, train.ShardParameters, 2, 0, train.ZeroBubble},
	{"moe", 8, train.Mesh{Pipeline: 2, Expert: 2, Tensor: 2}, train.ShardState, 1, 1, train.OneFOneB},
}

// TestProductsChangeNothing: ranks on several axes at once have the losses of one
// device.
func TestProductsChangeNothing(t *testing.T) {
	want := map[string][]float64{}
	for _, v := range products {
		c := product(v.name)
		if want[v.name] == nil {
			want[v.name] = losses(t, noisy(t, t.TempDir(), c, c.Plain()))
		}
		got := trained(t, v.ranks, c, train.Strategy{MicroBatch: v.micro, Recompute: v.blocks}, train.Parallel{Mesh: v.mesh, Shard: v.shard, Schedule: v.schedule}, t.TempDir())
		if d := apart(got, want[v.name]); d > 1e-5 {
			t.Errorf("%+v: losses %v, want %v: %.1e apart", v, got, want[v.name], d)
		}
	}
}

// TestProductSaves: what ranks on three axes saved is, to the last bit, what others
// that go on from it save again.
func TestProductSaves(t *testing.T) {
	c := product("moe")
	c.Schedule.Steps = 3
	dir := t.TempDir()
	cutRanks(t, 8, c, train.Strategy{MicroBatch: 2}, train.Parallel{Mesh: train.Mesh{Pipeline: 2, Expert: 2, Tensor: 2}, Shard: train.ShardState}, dir, 2)
	saved := alone(t, dir, c)
	for _, v := range []struct {
		ranks int
		p     train.Parallel
	}{
		{1, train.Parallel{}},
		{2, train.Parallel{Shard: train.ShardParameters}},
		{4, train.Parallel{Mesh: train.Mesh{Expert: 2, Tensor: 2}, Shard: train.ShardGradients}},
	} {
		goesOn(t, v.ranks, c, train.Strategy{MicroBatch: 2}, v.p, dir, func(again string) {
			if !bytes.Equal(alone(t, again, c), saved) {
				t.Errorf("%+v: the arrays differ", v)
			}
		})
	}
}
