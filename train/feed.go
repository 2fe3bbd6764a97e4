package train

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/headroom-go/headroom/data"
)

// Feed gives the batches of a run, without end.
type Feed interface {
	// Next fills the arrays of a batch, which are as Config.NewBatch makes them.
	Next(fields ...any) error

	// State is the place behind the last batch.
	State() json.RawMessage

	// Restore goes to a place that State gave; the batches are those that
	// followed it. After an error the feed is where it was.
	Restore(json.RawMessage) error
}

// Set is samples to evaluate on. Sample fills the arrays of one.
type Set interface {
	Len() int
	Sample(i int, fields ...any) error
}

// Text feeds tokens and the tokens that follow them.
func Text(b *data.Batches) Feed { return text{b} }

type text struct{ *data.Batches }

func (f text) Next(fields ...any) error {
	return f.Batches.Next(fields[0].([]int32), fields[1].([]int32))
}

func (f text) State() json.RawMessage { return marshal(f.Batches.State()) }

func (f text) Restore(s json.RawMessage) error { return restore(s, f.Batches.Restore) }

// HiddenWords feeds tokens, places of hidden ones and what stood there.
func HiddenWords(m *data.Masked) Feed { return hidden{m} }

type hidden struct{ *data.Masked }

func (f hidden) Next(fields ...any) error {
	return f.Masked.Next(fields[0].([]int32), fields[1].([]int32), fields[2].([]int32))
}

func (f hidden) State() json.RawMessage { return marshal(f.Masked.State()) }

func (f hidden) Restore(s json.RawMessage) error { return restore(s, f.Masked.Restore) }

// marshal writes plain data, which always works.
func marshal(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("train: %T: %v", v, err))
	}
	return text
}

// restore reads a state and passes it on.
func restore[S any](text json.RawMessage, to func(S) error) error {
	var s S
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("the place in the data is broken: %w", err)
	}
	return to(s)
}

// TextSet are windows to evaluate next-token training on.
type TextSet struct{ data.Windows }

// Sample fills tokens and targets.
func (s TextSet) Sample(i int, fields ...any) error {
	return s.Read(i, fields[0].([]int32), fields[1].([]int32))
}

// HiddenSet are windows with hidden words to evaluate on.
type HiddenSet struct {
	data.Windows
	Mask data.Mask
}

// Sample fills tokens, places and labels.
func (s HiddenSet) Sample(i int, fields ...any) error {
	return s.ReadMasked(i, s.Mask, fields[0].([]int32), fields[1].([]int32), fields[2].([]int32))
}

// Samples are sources that belong together, such as images and their labels,
// of float32 and int32. One after the other, the numbers of a sample fill the
// fields of a batch one after the other. They are a Set.
type Samples []data.Source

// Len is the number of samples.
func (s Samples) Len() int { return s[0].Len() }

// Sample reads one.
func (s Samples) Sample(i int, fields ...any) error {
	raw := make([][]byte, len(s))
	for k, source := range s {
		raw[k] = make([]byte, data.SampleBytes(source))
		if err := source.Read(i, raw[k]); err != nil {
			return err
		}
	}
	return spread(1, raw, fields)
}

// Loaded feeds samples in a random order, prepared ahead by workers.
type Loaded struct {
	samples     Samples
	fingerprint string
	ctx         context.Context
	options     data.LoaderOptions // Start is the place
	loader      *data.Loader       // nil until the first batch is asked for
}

// loadedState is a place in Loaded.
type loadedState struct {
	data.Place
	Seed    uint64 `json:"seed"`
	Samples string `json:"samples"`
}

// NewLoaded starts at the first sample for the seed. The workers end with ctx
// or Close, which must be called.
func NewLoaded(ctx context.Context, s Samples, batch int, seed uint64) (*Loaded, error) {
	const ahead = 2
	fingerprint, err := s.fingerprint()
	if err != nil {
		return nil, err
	}
	return &Loaded{s, fingerprint, ctx, data.LoaderOptions{Batch: batch, Workers: ahead, Prefetch: ahead, Shuffle: true, Seed: seed}, nil}, nil
}

// fingerprint tells sets apart by their sizes and 64 of their samples.
func (s Samples) fingerprint() (string, error) {
	const looked = 64
	hash := sha256.New()
	for _, source := range s {
		fmt.Fprintln(hash, source.Len(), source.Shape(), source.DType())
		raw := make([]byte, data.SampleBytes(source))
		for k := range min(looked, source.Len()) {
			if err := source.Read(k*(source.Len()-1)/looked, raw); err != nil {
				return "", err
			}
			hash.Write(raw)
		}
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// Next waits for a batch.
func (f *Loaded) Next(fields ...any) error {
	if f.loader == nil {
		loader, err := data.NewLoader(f.ctx, f.samples, f.options)
		if err != nil {
			return err
		}
		f.loader = loader
	}
	b, err := f.loader.Next()
	if err != nil {
		return err
	}
	defer b.Release()
	f.options.Start = f.loader.State()
	return spread(b.Len, b.Fields, fields)
}

// State is the place behind the last batch.
func (f *Loaded) State() json.RawMessage {
	return marshal(loadedState{f.options.Start, f.options.Seed, f.fingerprint})
}

// Restore goes to a place; see Feed.
func (f *Loaded) Restore(text json.RawMessage) error {
	return restore(text, func(s loadedState) error {
		if s.Samples != f.fingerprint {
			return fmt.Errorf("cannot resume on other data: the state was made for samples with hash %.12s, here they have %.12s", s.Samples, f.fingerprint)
		}
		if n := f.samples.Len(); s.Position < 0 || s.Position > n {
			return fmt.Errorf("the place in the data is broken: position %d of %d samples", s.Position, n)
		}
		f.Close()
		f.options.Start, f.options.Seed = s.Place, s.Seed
		return nil
	})
}

// Close ends the workers; the next batch starts new ones.
func (f *Loaded) Close() {
	if f.loader != nil {
		f.loader.Close()
		f.loader = nil
	}
}

// spread decodes rows samples, the bytes of each source side by side, into
// fields.
func spread(rows int, sources [][]byte, fields []any) error {
	source, offset := 0, 0
	for _, f := range fields {
		n := 4 * arrayLen(f) / rows
		if source == len(sources) || offset+n > len(sources[source])/rows {
			return errors.New("the samples of the data have not the numbers that a batch has")
		}
		size := len(sources[source]) / rows
		for row := range rows {
			decode(f, row*n/4, sources[source][row*size+offset:][:n])
		}
		if offset += n; offset == size {
			source, offset = source+1, 0
		}
	}
	return nil
}

// decode puts little-endian numbers into array from element at on.
func decode(array any, at int, raw []byte) {
	switch a := array.(type) {
	case []float32:
		for i := range len(raw) / 4 {
			a[at+i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		}
	case []int32:
		for i := range len(raw) / 4 {
			a[at+i] = int32(binary.LittleEndian.Uint32(raw[4*i:]))
		}
	}
}

func arrayLen(array any) int {
	switch a := array.(type) {
	case []float32:
		return len(a)
	case []int32:
		return len(a)
	}
	return 0
}
