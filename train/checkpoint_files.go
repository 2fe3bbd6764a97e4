package train

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/internal/atomicfile"
	"github.com/headroom-go/headroom/internal/safetensors"
)

// The files of a checkpoint.
//
// Every rank writes, at the same time, the pieces that no rank before it has: the
// first one to CheckpointFile, each other one that has any to a file of its own
// with a name that was never used,
//
//	checkpoint.STEP-NUMBER.RANK.safetensors
//
// which CheckpointFile lists in its metadata. That one is renamed into place only
// when all others are on the disk, and what it replaced is removed after that. So
// there is a whole checkpoint at every moment, the old one or the new one; what
// a killed save left behind is removed by the next one.
//
// A file says in its metadata of which box of an array, or of which elements of
// it, an entry is a piece (safetensors.Piece); without a word it is the array. A
// checkpoint holds every element once, wherever that may be, and a rank reads what
// overlaps with what it has: so it doesn't matter on how many ranks a checkpoint
// was made, how they were laid out and what they sharded.
//
// The last entry of a file is the CRC-32C of all bytes before it.

const (
	partsKey  = "headroom.parts"  // names of the other files, of CheckpointFile
	partKey   = "headroom.part"   // the file's own name, of the others
	piecesKey = "headroom.pieces" // a Piece for each array that is one
	sumName   = "headroom.crc32c" // of the last entry
)

// partName is the form of the other files' names.
var partName = regexp.MustCompile(`^checkpoint\.\d+-[0-9a-f]{12}\.\d+\.safetensors$`)

// saveFiles writes the files of a checkpoint.
func (t *Trainer) saveFiles(dir, state string) error {
	arrays := slices.DeleteFunc(t.arrays(), func(a array) bool { return !a.first })
	parts, err := t.par.partNames(t.opt.Steps, len(arrays) > 0)
	if err != nil {
		return err
	}
	if t.par.writes() {
		err = t.saveFirst(dir, state, arrays, parts)
	} else {
		err = t.savePart(dir, parts[t.par.Group.Rank()], arrays)
	}
	if err != nil {
		return err
	}
	return t.par.meet() // it is in its place, as all know
}

// savePart writes a rank's own file, if it has a name.
func (t *Trainer) savePart(dir, name string, arrays []array) error {
	if name != "" {
		if err := writeFile(filepath.Join(dir, name), map[string]string{partKey: name}, arrays, func() error { return nil }); err != nil {
			return err
		}
	}
	return t.par.meet()
}

// saveFirst writes the file that lists the others.
func (t *Trainer) saveFirst(dir, state string, arrays []array, parts []string) error {
	parts = slices.DeleteFunc(parts, func(name string) bool { return name == "" })
	metadata := map[string]string{"format": "pt", stateKey: state}
	if len(parts) > 0 {
		list, err := json.Marshal(parts)
		if err != nil {
			return err
		}
		metadata[partsKey] = string(list)
	}
	err := writeFile(filepath.Join(dir, CheckpointFile), metadata, arrays, func() error {
		if err := t.par.meet(); err != nil {
			return err
		}
		return allThere(dir, parts)
	})
	if err != nil {
		return err
	}
	return removeParts(dir, parts)
}

// meet waits for all ranks; it fails where the job has.
func (l *parallel) meet() error { return l.agree(dist.Max, 0) }

// partNames gives the file of each rank, "" for one that writes none and for the
// first. writes says whether this one does.
func (l *parallel) partNames(step int, writes bool) ([]string, error) {
	if l == nil {
		return nil, nil
	}
	const words = 3
	x := make([]float32, words+l.Group.Size())
	if writes {
		x[words+l.Group.Rank()] = 1
	}
	if l.writes() {
		for i := range words {
			x[i] = float32(rand.Uint32N(1 << 16))
		}
	}
	err := l.agree(dist.Sum, x...)
	names := make([]string, l.Group.Size())
	for r := range names {
		if r > 0 && x[words+r] > 0 {
			names[r] = fmt.Sprintf("checkpoint.%d-%04x%04x%04x.%d.safetensors", step, int(x[0]), int(x[1]), int(x[2]), r)
		}
	}
	return names, err
}

// allThere says if the first rank does not see what the others have written.
func allThere(dir string, parts []string) error {
	for _, name := range parts {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("%s, which another rank wrote, is not seen here: the folder of results must be one that all ranks share (%w)", name, err)
		}
	}
	return nil
}

// removeParts removes the files of other checkpoints.
func removeParts(dir string, keep []string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if name := e.Name(); partName.MatchString(name) && !slices.Contains(keep, name) {
			err = errors.Join(err, os.Remove(filepath.Join(dir, name)))
		}
	}
	return err
}

// writeFile writes a file with arrays and their sum; last is called when all of
// it is written, before it is in its place.
func writeFile(path string, metadata map[string]string, arrays []array, last func() error) error {
	var entries []safetensors.Entry
	pieces := map[string]safetensors.Piece{}
	for _, a := range arrays {
		shape := a.Whole
		if !a.All() {
			pieces[a.name], shape = a.Piece, a.Tensor.Shape()
		}
		entries = append(entries, safetensors.Entry{Name: a.name, DType: safetensors.F32, Shape: shape, Data: a.writeTo})
	}
	if len(pieces) > 0 {
		text, err := json.Marshal(pieces)
		if err != nil {
			return err
		}
		metadata[piecesKey] = string(text)
	}
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	entries = append(entries, safetensors.Entry{Name: sumName, DType: safetensors.I32, Shape: []int{1}, Data: func(w io.Writer) error {
		return binary.Write(w, binary.LittleEndian, sum.Sum32())
	}})
	return atomicfile.Write(path, func(w io.Writer) error {
		buffered := bufio.NewWriterSize(w, 1<<20)
		if err := safetensors.Write(io.MultiWriter(buffered, sum), metadata, entries); err != nil {
			return err
		}
		if err := buffered.Flush(); err != nil {
			return err
		}
		return last()
	})
}

// writeTo writes the elements, little-endian.
func (a array) writeTo(w io.Writer) error {
	var data []float32
	if err := a.Runtime().Try(func() { data = a.Float32s() }); err != nil {
		return err
	}
	return safetensors.Float32s(data)(w)
}

// checkpointFile is one of a checkpoint's files.
type checkpointFile struct {
	path string
	*safetensors.File
}

// stored is a piece of an array in a file.
type stored struct {
	safetensors.Piece
	in checkpointFile
}

// openParts opens the files that the first one lists.
func (c *Checkpoint) openParts(dir string) error {
	var names []string
	if text := c.files[0].Metadata()[partsKey]; text != "" {
		if err := json.Unmarshal([]byte(text), &names); err != nil {
			return fmt.Errorf("its list of files: %w", err)
		}
	}
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return fmt.Errorf("%s is twice in its list of files", name)
		}
		if !partName.MatchString(name) {
			return fmt.Errorf("its list of files holds %.100q, which is none of its own", name)
		}
		path := filepath.Join(dir, name)
		f, err := safetensors.Open(path)
		if err != nil {
			return fmt.Errorf("%d files belong to it, and must lie beside it: %w", len(names), err)
		}
		c.files = append(c.files, checkpointFile{path, f})
		if f.Metadata()[partKey] != name {
			return fmt.Errorf("%s was not written as that: it is of another checkpoint", path)
		}
	}
	return nil
}

// index finds the pieces of all arrays, and says if they are not all of each, once.
func (c *Checkpoint) index() error {
	c.arrays = map[string][]stored{}
	for _, f := range c.files {
		var pieces map[string]safetensors.Piece
		if text := f.Metadata()[piecesKey]; text != "" {
			if err := json.Unmarshal([]byte(text), &pieces); err != nil {
				return fmt.Errorf("%s: what its arrays are pieces of: %w", f.path, err)
			}
		}
		for _, t := range f.Tensors() {
			if t.Name == sumName {
				continue
			}
			p, ok := pieces[t.Name]
			if !ok {
				p = safetensors.Box(t.Shape, nil, t.Shape)
			}
			if err := p.Check(); err != nil || p.Len() != t.Elements() || t.DType != safetensors.F32 {
				return fmt.Errorf("%s: array %s of %d elements, %s, can't be the piece %+v (%w)", f.path, t.Name, t.Elements(), t.DType, p, err)
			}
			c.arrays[t.Name] = append(c.arrays[t.Name], stored{p, f})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.arrays)) {
		if err := complete(c.arrays[name]); err != nil {
			return fmt.Errorf("array %s: %w", name, err)
		}
	}
	return nil
}

// complete says if pieces are not all of an array, once. Only where none is missing are
// they compared, so that an array has no more rows than there are elements in the files.
func complete(list []stored) error {
	left := safetensors.Box(list[0].Whole, nil, list[0].Whole).Len()
	for _, a := range list {
		left -= a.Len()
	}
	if left > 0 {
		return fmt.Errorf("%d of its elements are in none of the files", left)
	}
	for i, a := range list {
		for _, b := range list[:i] {
			err := safetensors.Overlap(a.Piece, b.Piece, func(_, _, n int) error { return fmt.Errorf("both have %d elements of it", n) })
			if err != nil {
				return fmt.Errorf("%s and %s don't belong together: %w", b.in.path, a.in.path, err)
			}
		}
	}
	return nil
}

// has says if a piece can't be read.
func (c *Checkpoint) has(name string, p safetensors.Piece) error {
	list := c.arrays[name]
	if len(list) == 0 {
		return fmt.Errorf("the files have no array %s: they are of another run", name)
	}
	if !safetensors.SameArray(list[0].Piece, p) {
		return fmt.Errorf("array %s has shape %v, the model needs %v: the files are of another run", name, list[0].Whole, p.Whole)
	}
	return p.Check()
}

// read gives the elements of a piece.
func (c *Checkpoint) read(name string, p safetensors.Piece) ([]float32, error) {
	if err := c.has(name, p); err != nil {
		return nil, err
	}
	data := make([]float32, p.Len())
	for _, s := range c.arrays[name] {
		err := safetensors.Overlap(s.Piece, p, func(from, to, n int) error {
			return s.in.ReadFloat32At(name, from, data[to:to+n])
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.in.path, err)
		}
	}
	return data, nil
}

// verify compares files with their sums, each on one of the ranks.
func (l *parallel) verify(c *Checkpoint) error {
	from, by := 0, 1
	if l != nil {
		from, by = l.Group.Rank(), l.Group.Size()
	}
	for i := from; i < len(c.files); i += by {
		if err := c.files[i].verify(); err != nil {
			return fmt.Errorf("%s: %w", c.files[i].path, err)
		}
	}
	return nil
}

// verify compares the file with its sum.
func (f checkpointFile) verify() error {
	file, err := os.Open(f.path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	var want uint32
	size := info.Size() - int64(binary.Size(want))
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	if _, err := io.Copy(sum, io.NewSectionReader(file, 0, size)); err != nil {
		return err
	}
	if err := binary.Read(io.NewSectionReader(file, size, 4), binary.LittleEndian, &want); err != nil {
		return err
	}
	if got := sum.Sum32(); got != want {
		return fmt.Errorf("its bytes have the CRC-32C %08x, and had %08x when it was written: it was damaged since. Put a good copy in its place, or begin the run anew in another folder", got, want)
	}
	return nil
}
