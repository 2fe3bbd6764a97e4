// Package golden reads reference values written by PyTorch, for tests.
package golden

import (
	"math"
	"testing"

	"github.com/headroom-go/headroom/internal/safetensors"
)

// Values is a file of reference values.
type Values struct {
	t    testing.TB
	file *safetensors.File
}

// Open opens a safetensors file for the duration of the test.
func Open(t testing.TB, path string) Values {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return Values{t, f}
}

// Has says whether the file has a tensor of that name.
func (v Values) Has(name string) bool {
	_, ok := v.file.Lookup(name)
	return ok
}

// Shape is the shape of a tensor.
func (v Values) Shape(name string) []int {
	v.t.Helper()
	t, ok := v.file.Lookup(name)
	if !ok {
		v.t.Fatalf("no reference value %s", name)
	}
	return t.Shape
}

// Float32s is a float32 tensor.
func (v Values) Float32s(name string) []float32 {
	v.t.Helper()
	t, _ := v.file.Lookup(name)
	out := make([]float32, t.Elements())
	if err := v.file.ReadFloat32(name, out); err != nil {
		v.t.Fatal(err)
	}
	return out
}

// Int32s is an int64 tensor, narrowed.
func (v Values) Int32s(name string) []int32 {
	v.t.Helper()
	t, _ := v.file.Lookup(name)
	wide, out := make([]int64, t.Elements()), make([]int32, t.Elements())
	if err := v.file.ReadInt64(name, wide); err != nil {
		v.t.Fatal(err)
	}
	for i, x := range wide {
		out[i] = int32(x)
	}
	return out
}

// File is the file itself.
func (v Values) File() *safetensors.File { return v.file }

// Difference is the greatest |got − want|, relative to the greatest |want|.
// Values of different lengths, and NaN, are infinitely far apart.
func Difference(got, want []float32) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	var diff, most float64
	for i := range want {
		d := math.Abs(float64(got[i]) - float64(want[i]))
		if math.IsNaN(d) {
			return math.Inf(1)
		}
		diff, most = max(diff, d), max(most, math.Abs(float64(want[i])))
	}
	if most == 0 {
		return diff
	}
	return diff / most
}

// Near fails the test if got is further than tolerance from want, by Difference.
func Near(t testing.TB, what string, got, want []float32, tolerance float64) {
	t.Helper()
	if d := Difference(got, want); d > tolerance {
		t.Errorf("%s: off by %.3g of the largest value, want at most %.3g", what, d, tolerance)
	}
}
