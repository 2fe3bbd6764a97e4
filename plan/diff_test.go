package plan_test

import (
	"slices"
	"testing"

	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/train"
)

// TestDiff counts values that wait in another way, and only where operations have the
// same numbers.
func TestDiff(t *testing.T) {
	of := func(micro int, waits ...tensor.Wait) *plan.Plan {
		return &plan.Plan{Step: "a step", Chosen: plan.Trial{Strategy: train.Strategy{MicroBatch: micro, Values: &tensor.Schedule{Waits: waits}}}}
	}
	kept := func(op string) tensor.Wait { return tensor.Wait{Op: op, Reads: []int{2}} }
	again := func(op string) tensor.Wait { return tensor.Wait{Op: op, Reads: []int{1, 1}} }
	away := func(op string) tensor.Wait { return tensor.Wait{Op: op, Reads: []int{0, 2}, Away: true} }
	held := of(4, kept("linear"), tensor.Wait{Op: "gelu", Held: true})
	plain := of(4)
	plain.Chosen.Strategy.Values = nil
	before := of(4, kept("linear"), again("gelu"), again("add"), again("add"))
	after := of(4, away("linear"), again("gelu"), kept("add"), kept("add"))
	other := of(2, away("linear"))
	blocks := of(4)
	blocks.Chosen.Strategy = train.Strategy{MicroBatch: 4, Recompute: 3}
	for _, c := range []struct {
		before, after *plan.Plan
		want          []plan.ValueChange
	}{
		{before, before, nil},
		{before, after, []plan.ValueChange{{Op: "add", Old: "made again", New: "kept", Count: 2}, {Op: "linear", Old: "kept", New: "moved away", Count: 1}}},
		{plain, before, []plan.ValueChange{{Op: "add", Old: "kept", New: "made again", Count: 2}, {Op: "gelu", Old: "kept", New: "made again", Count: 1}}},
		{after, plain, []plan.ValueChange{{Op: "gelu", Old: "made again", New: "kept", Count: 1}, {Op: "linear", Old: "moved away", New: "kept", Count: 1}}},
		{plain, held, []plan.ValueChange{{Op: "gelu", Old: "made again", New: "held", Count: 1}}},
		{held, plain, []plan.ValueChange{{Op: "gelu", Old: "held", New: "made again", Count: 1}}},
		{before, other, nil},
		{before, blocks, nil},
		{blocks, before, nil},
	} {
		if got := plan.Diff(c.before, c.after).Values; !slices.Equal(got, c.want) {
			t.Errorf("got %v, want %v", got, c.want)
		}
	}
}
