package safetensors

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"
)

// slowFloat16 is the definition of IEEE 754 binary16.
func slowFloat16(h uint16) float64 {
	sign := 1 - 2*float64(h>>15)
	exponent, fraction := int(h>>10)&31, float64(h&1023)
	switch {
	case exponent == 31 && fraction == 0:
		return sign * math.Inf(1)
	case exponent == 31:
		return math.NaN()
	case exponent == 0:
		return sign * math.Ldexp(fraction/1024, -14)
	}
	return sign * math.Ldexp(1+fraction/1024, exponent-15)
}

func TestFloat16(t *testing.T) {
	for h := range 1 << 16 {
		got, want := float16(uint16(h)), slowFloat16(uint16(h))
		bothNaN := got != got && math.IsNaN(want)
		if !bothNaN && (float64(got) != want || math.Signbit(float64(got)) != math.Signbit(want)) {
			t.Fatalf("%#04x is %v, want %v", h, got, want)
		}
	}
}

// TestConvertLong reads tensors longer than the buffer, with the values 0, 1, ...
func TestConvertLong(t *testing.T) {
	const n = 3*chunk/4 + 5
	little := binary.LittleEndian
	encode := map[DType]func(b []byte, i int) []byte{
		BF16: func(b []byte, i int) []byte {
			return little.AppendUint16(b, uint16(math.Float32bits(float32(i%128))>>16))
		},
		F32: func(b []byte, i int) []byte { return little.AppendUint32(b, math.Float32bits(float32(i%128))) },
		F64: func(b []byte, i int) []byte { return little.AppendUint64(b, math.Float64bits(float64(i%128))) },
		I32: func(b []byte, i int) []byte { return little.AppendUint32(b, uint32(-i)) },
		I64: func(b []byte, i int) []byte { return little.AppendUint64(b, uint64(-i)) },
	}
	for d, appendTo := range encode {
		var data []byte
		for i := range n {
			data = appendTo(data, i)
		}
		var w bytes.Buffer
		if err := Write(&w, nil, []Entry{{"x", d, []int{n}, Bytes(data)}}); err != nil {
			t.Fatal(err)
		}
		f := mustOpen(t, w.Bytes())
		if d == I32 || d == I64 {
			got := make([]int64, n)
			if err := f.ReadInt64("x", got); err != nil {
				t.Fatal(err)
			}
			for i, v := range got {
				if v != int64(-i) {
					t.Fatalf("%s: element %d is %d", d, i, v)
				}
			}
			continue
		}
		got := make([]float32, n)
		if err := f.ReadFloat32("x", got); err != nil {
			t.Fatal(err)
		}
		for i, v := range got {
			if v != float32(i%128) {
				t.Fatalf("%s: element %d is %v", d, i, v)
			}
		}
	}
}
