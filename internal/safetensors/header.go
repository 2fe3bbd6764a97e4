package safetensors

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"unicode/utf8"
)

// parseHeader reads the JSON of a header whose file has dataSize bytes after
// it. The tensors come in the order of their data.
func parseHeader(raw []byte, dataSize int64) ([]Tensor, map[string]string, error) {
	if len(raw) == 0 || raw[0] != '{' {
		return nil, nil, fmt.Errorf("the header is %.20q..., not a JSON object", raw)
	}
	if !utf8.Valid(raw) {
		return nil, nil, errors.New("the header is not valid UTF-8")
	}
	p := newParser(raw)
	var tensors []Tensor
	metadata := map[string]string{}
	err := p.object(func(name string) error {
		if name == metadataKey {
			return p.metadata(metadata)
		}
		t, err := p.tensor(name)
		tensors = append(tensors, t)
		return err
	})
	if err == nil {
		err = p.end()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("header: %w", err)
	}
	return tensors, metadata, checkTiling(tensors, dataSize)
}

// checkTiling sorts the tensors by offset and checks that they tile the data.
func checkTiling(tensors []Tensor, dataSize int64) error {
	slices.SortStableFunc(tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.size, b.size))
	})
	var end int64
	last := "the start"
	for _, t := range tensors {
		switch {
		case t.begin < end:
			return fmt.Errorf("tensor %q at offset %d overlaps %s, which ends at %d", t.Name, t.begin, last, end)
		case t.begin > end:
			return fmt.Errorf("a hole of %d bytes before tensor %q at offset %d (%s ends at %d)", t.begin-end, t.Name, t.begin, last, end)
		case t.size > dataSize-t.begin:
			return fmt.Errorf("tensor %q has bytes [%d, %d), but the file has %d bytes of data: is it truncated?", t.Name, t.begin, t.begin+t.size, dataSize)
		}
		end, last = t.begin+t.size, strconv.Quote(t.Name)
	}
	if end != dataSize {
		return fmt.Errorf("the tensors end at offset %d, but the file has %d bytes of data", end, dataSize)
	}
	return nil
}

// parser reads a header token by token, because decoding into structures would
// let duplicate keys, nulls and other spellings of a key pass.
type parser struct{ *json.Decoder }

func newParser(raw []byte) parser {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return parser{d}
}

// object reads an object; field reads the value of each key.
func (p parser) object(field func(key string) error) error {
	if err := p.delim('{'); err != nil {
		return err
	}
	seen := map[string]bool{}
	for p.More() {
		key, err := p.text()
		if err != nil {
			return err
		}
		if seen[key] {
			return fmt.Errorf("%q appears twice in one object", key)
		}
		seen[key] = true
		if err := field(key); err != nil {
			return err
		}
	}
	return p.delim('}')
}

func (p parser) metadata(into map[string]string) error {
	return p.object(func(key string) (err error) {
		into[key], err = p.text()
		if err != nil {
			return fmt.Errorf("%s, key %q: %w", metadataKey, key, err)
		}
		return nil
	})
}

// tensor reads the value of one tensor's key. Keys that it does not know are
// skipped, as the reference implementation does.
func (p parser) tensor(name string) (Tensor, error) {
	var dtype string
	var shape, offsets []int64
	err := p.object(func(key string) (err error) {
		switch key {
		case "dtype":
			dtype, err = p.text()
		case "shape":
			shape, err = p.integers(maxDims)
		case "data_offsets":
			offsets, err = p.integers(2)
		default:
			err = p.Decode(new(json.RawMessage))
		}
		if err != nil {
			return fmt.Errorf("key %q: %w", key, err)
		}
		return nil
	})
	switch {
	case err != nil:
		return Tensor{}, fmt.Errorf("tensor %q: %w", name, err)
	case dtype == "" || shape == nil || len(offsets) != 2:
		return Tensor{}, fmt.Errorf("tensor %q: needs dtype, shape and two data_offsets; has %q, %v, %v", name, dtype, shape, offsets)
	}
	return placedTensor(name, DType(dtype), shape, offsets[0], offsets[1])
}

func placedTensor(name string, dtype DType, shape []int64, begin, end int64) (Tensor, error) {
	dims := make([]int, len(shape))
	for i, n := range shape {
		if dims[i] = int(n); int64(dims[i]) != n {
			return Tensor{}, fmt.Errorf("tensor %q: dimension %d is too large for this platform", name, n)
		}
	}
	t, err := newTensor(name, dtype, dims)
	if err != nil {
		return Tensor{}, err
	}
	if end < begin || end-begin != t.size {
		return Tensor{}, fmt.Errorf("tensor %q: shape %v in %s has %d bytes, but data_offsets are [%d, %d]", name, shape, dtype, t.size, begin, end)
	}
	t.begin = begin
	return t, nil
}

// integers reads an array of at most limit integers, none of them negative.
// The result is not nil.
func (p parser) integers(limit int) ([]int64, error) {
	if err := p.delim('['); err != nil {
		return nil, err
	}
	list := []int64{}
	for p.More() {
		if len(list) == limit {
			return nil, fmt.Errorf("more than %d numbers", limit)
		}
		token, err := p.Token()
		if err != nil {
			return nil, err
		}
		number, ok := token.(json.Number)
		n, err := strconv.ParseInt(number.String(), 10, 64)
		if !ok || err != nil || n < 0 {
			return nil, fmt.Errorf("%v is not an integer from 0 to 2^63-1", token)
		}
		list = append(list, n)
	}
	return list, p.delim(']')
}

func (p parser) text() (string, error) {
	token, err := p.Token()
	if err != nil {
		return "", err
	}
	s, ok := token.(string)
	if !ok {
		return "", fmt.Errorf("found %v, not a string", token)
	}
	return s, nil
}

func (p parser) delim(want json.Delim) error {
	token, err := p.Token()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	if token != want {
		return fmt.Errorf("found %v, not %v", token, want)
	}
	return nil
}

func (p parser) end() error {
	if token, err := p.Token(); err != io.EOF {
		return fmt.Errorf("after the JSON object come more than spaces: %v", cmp.Or[any](err, token))
	}
	return nil
}
