package nn

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/headroom-go/headroom/internal/safetensors"
)

// SaveState writes parameters to a safetensors file, one at a time through
// host memory and one with two names under its first, all or nothing: on an
// error the file that was there before is still there.
func SaveState(path string, metadata map[string]string, params []*Parameter) error {
	var entries []safetensors.Entry
	for _, p := range Unique(params) {
		entries = append(entries, entry(p, func(*Parameter) (data []float32, err error) {
			err = p.Runtime().Try(func() { data = p.Float32s() })
			return data, err
		}))
	}
	return safetensors.WriteFile(path, metadata, entries)
}

// entry is a whole parameter in a file; read gives its elements.
func entry(p *Parameter, read func(p *Parameter) ([]float32, error)) safetensors.Entry {
	return safetensors.Entry{Name: p.Name, DType: safetensors.F32, Shape: p.Shape(), Data: func(w io.Writer) error {
		data, err := read(p)
		if err != nil {
			return err
		}
		return safetensors.Float32s(data)(w)
	}}
}

// Export writes the state of a module for other programs; read gives the elements
// of its parameters, which the module itself need not have. Beside the running
// statistics of each normalisation it puts num_batches_tracked, the steps that
// made them, as torchvision's files have it; LoadState passes over it.
func Export(path string, m Module, steps int, read func(p *Parameter) ([]float32, error)) error {
	var entries []safetensors.Entry
	for _, p := range Unique(State(m)) {
		entries = append(entries, entry(p, read))
		if layer, ok := strings.CutSuffix(p.Name, ".running_var"); ok {
			entries = append(entries, safetensors.Entry{Name: layer + ".num_batches_tracked", DType: safetensors.I64, Shape: []int{},
				Data: safetensors.Bytes(binary.LittleEndian.AppendUint64(nil, uint64(steps)))})
		}
	}
	return safetensors.WriteFile(path, map[string]string{"format": "pt"}, entries)
}

// LoadState fills parameters from a safetensors file of any floating-point
// type, from the whole arrays what each parameter is of them. Names may lack their prefix "transformer." or "bert." and have BERT's
// older forms, as in some published files; what else the file holds is left
// alone. On an error no parameter has changed, unless the file itself could
// not be read.
func LoadState(f *safetensors.File, params []*Parameter) error {
	names := make([]string, len(params))
	for i, p := range params {
		t, ok := lookup(f, p.Name)
		if !ok {
			return fmt.Errorf("the file has no tensor %s: it is of another model, or not of a model", p.Name)
		}
		if !slices.Equal(t.Shape, p.Array()) {
			return fmt.Errorf("tensor %s has shape %v, the model needs %v: the file is of another model", t.Name, t.Shape, p.Array())
		}
		names[i] = t.Name
	}
	for i, p := range params {
		data := make([]float32, p.Len())
		piece := p.Piece()
		err := safetensors.Overlap(safetensors.Box(piece.Whole, nil, piece.Whole), piece, func(from, to, n int) error {
			return f.ReadFloat32At(names[i], from, data[to:to+n])
		})
		if err != nil {
			return err
		}
		p.Set(data)
	}
	return nil
}

// lookup finds a tensor by its name or by another that published files use for it.
func lookup(f *safetensors.File, name string) (safetensors.Tensor, bool) {
	names := []string{name}
	for _, prefix := range []string{"transformer.", "bert."} {
		if short, ok := strings.CutPrefix(name, prefix); ok {
			names = append(names, short)
		}
	}
	for _, n := range names {
		for _, alias := range []string{n, oldNorm.Replace(n), strings.Replace(n, "predictions.bias", "predictions.decoder.bias", 1)} {
			if t, ok := f.Lookup(alias); ok {
				return t, true
			}
		}
	}
	return safetensors.Tensor{}, false
}

// oldNorm gives the names that BERT's normalisations had in TensorFlow.
var oldNorm = strings.NewReplacer("LayerNorm.weight", "LayerNorm.gamma", "LayerNorm.bias", "LayerNorm.beta")
