package data

import (
	"fmt"

	"github.com/headroom-go/headroom/internal/safetensors"
)

// safetensorsTypes are the types of the format that sources know, too.
var safetensorsTypes = map[safetensors.DType]DType{
	"BOOL": Bool, "U8": Uint8, "U16": Uint16, "U32": Uint32, "U64": Uint64,
	"I8": Int8, "I16": Int16, safetensors.I32: Int32, safetensors.I64: Int64,
	safetensors.F16: Float16, safetensors.BF16: BFloat16, safetensors.F32: Float32, safetensors.F64: Float64,
}

// parseSafetensors finds a tensor; its first dimension counts the samples.
func parseSafetensors(f *file, name string) (*Array, error) {
	s, err := safetensors.NewFile(f, f.size)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, t := range s.Tensors() {
		names = append(names, t.Name)
	}
	i, err := pick(name, names)
	if err != nil {
		return nil, err
	}
	r, err := s.Reader(names[i])
	if err != nil {
		return nil, err
	}
	t := s.Tensors()[i]
	a, err := newArray(r, r.Size(), 0, safetensorsTypes[t.DType], t.Shape)
	if err != nil {
		return nil, fmt.Errorf("tensor %q of type %s: %w", t.Name, t.DType, err)
	}
	return a, nil
}
