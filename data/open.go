// Files as sources. Open tells formats apart by their first bytes:
//
//	npy           one array
//	npz           arrays in a zip archive, stored without compression
//	safetensors   tensors by name
//	IDX           the format of MNIST; with gzip it is unpacked into memory
//	Arrow IPC     a column of numbers or of lists of one length (arrow.go)
//
// All but a gzip file stay where they are, and samples are read in place, small
// files through a mapping (file.go), so a set may be larger than memory. OpenTokens takes files of bare numbers. Formats that must be unpacked to get
// at one sample (Parquet, compressed npz and Arrow) are refused with advice,
// since a random order would unpack a block for each sample.
//
// Files are untrusted. Sizes that a file claims are checked against the size of
// the file before memory is taken or an array is given out, so that reading a
// sample that exists cannot leave the file.

package data

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
)

// Open opens the array called name in the file at path: the key in an npz file,
// the tensor in a safetensors file, the column in an Arrow file. Where the file
// has just one array, name may be empty; npy and IDX files have no names.
func Open(path, name string) (*Array, error) {
	return opened(path, func(f *file) (*Array, error) { return parse(f, name) })
}

// OpenTokens opens a file of bare little-endian numbers, such as Uint16 or
// Uint32 tokens, as samples of one number each; see Array.Windows.
func OpenTokens(path string, dtype DType) (*Array, error) {
	return opened(path, func(f *file) (*Array, error) { return parseTokens(f, dtype) })
}

// opened opens a file, and closes it again if parse fails.
func opened(path string, parse func(*file) (*Array, error)) (*Array, error) {
	f, err := openFile(path)
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	a, err := parse(f)
	if err != nil {
		return nil, fmt.Errorf("data: %s: %w", path, errors.Join(err, f.Close()))
	}
	a.closer = f
	return a, nil
}

func parseTokens(f *file, dtype DType) (*Array, error) {
	width := int64(dtype.Size())
	if width == 0 || f.size%width != 0 {
		return nil, fmt.Errorf("%d bytes are no whole number of elements of %s", f.size, dtype)
	}
	if f.size/width > math.MaxInt {
		return nil, fmt.Errorf("%d elements are too many for this platform", f.size/width)
	}
	return newArray(f, f.size, 0, dtype, []int{int(f.size / width)})
}

func parse(f *file, name string) (*Array, error) {
	head, err := f.head(9)
	if err != nil {
		return nil, err
	}
	format, named := formatOf(head)
	if !named && name != "" {
		return nil, fmt.Errorf("the file holds one array without a name; %q was asked for", name)
	}
	return format(f, name)
}

// formatOf gives the reader of the format that a file begins like, and whether
// it has names.
func formatOf(head []byte) (format func(f *file, name string) (*Array, error), named bool) {
	starts := func(magic string) bool { return bytes.HasPrefix(head, []byte(magic)) }
	switch {
	case len(head) == 9 && head[8] == '{':
		return parseSafetensors, true
	case starts(npyMagic):
		return func(f *file, _ string) (*Array, error) { return parseNPY(f, f.size) }, false
	case starts("PK"):
		return parseNPZ, true
	case starts("\x1f\x8b"):
		return func(f *file, _ string) (*Array, error) { return parseGzipIDX(f) }, false
	case starts("\x00\x00"):
		return func(f *file, _ string) (*Array, error) { return parseIDX(f, f.size) }, false
	case starts(arrowMagic):
		return parseArrow, true
	case starts("PAR1"):
		return refuse("Parquet packs columns in blocks that must be unpacked as a whole, so it cannot be read in a random order: convert it to Arrow IPC without compression, or to npy"), true
	}
	return refuse(fmt.Sprintf("unknown format (the file begins with %q): there are npy, npz, safetensors, IDX (also with gzip) and Arrow IPC files", head)), true
}

func refuse(why string) func(*file, string) (*Array, error) {
	return func(*file, string) (*Array, error) { return nil, errors.New(why) }
}

// pick chooses one of the names in a file.
func pick(name string, names []string) (int, error) {
	if name == "" && len(names) == 1 {
		return 0, nil
	}
	for i, n := range names {
		if n == name {
			return i, nil
		}
	}
	const most = 20
	list := fmt.Sprintf("%q", names[:min(len(names), most)])
	if len(names) > most {
		list += fmt.Sprintf(" and %d more", len(names)-most)
	}
	return 0, fmt.Errorf("no array %q in the file; there are %s", cmp.Or(name, "(no name given)"), list)
}
