package data

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
)

// Images gives the images of a source as float32 [channels, height, width],
// normalised by channel as networks for images want them. Sources have samples
// of uint8 or float32 of shape [H, W], [C, H, W] or [H, W, C] with one or three
// channels.
type Images struct {
	source      Source
	shape       []int // [C, H, W]
	last        bool  // channels come last in the source
	scale, move []float32
}

// NewImages reads s. Bytes go from 0…255 to 0…1; then colour images are
// normalised by ImageNet's means and deviations, as torchvision's weights
// expect, and grey ones to −1…1.
func NewImages(s Source) (*Images, error) {
	m := &Images{source: s}
	switch d := s.Shape(); {
	case len(d) == 2:
		m.shape = []int{1, d[0], d[1]}
	case len(d) == 3 && (d[0] == 1 || d[0] == 3):
		m.shape = []int{d[0], d[1], d[2]}
	case len(d) == 3 && (d[2] == 1 || d[2] == 3):
		m.shape, m.last = []int{d[2], d[0], d[1]}, true
	default:
		return nil, fmt.Errorf("data: samples of shape %v are no images: they need a height, a width, and one or three channels before or after", d)
	}
	if t := s.DType(); t != Uint8 && t != Float32 {
		return nil, fmt.Errorf("data: images of %s: there are %s and %s", t, Uint8, Float32)
	}
	mean, deviation := []float32{0.5}, []float32{0.5}
	if m.shape[0] == 3 {
		mean, deviation = []float32{0.485, 0.456, 0.406}, []float32{0.229, 0.224, 0.225}
	}
	for c := range mean {
		m.scale, m.move = append(m.scale, 1/deviation[c]), append(m.move, -mean[c]/deviation[c])
	}
	if s.DType() == Uint8 {
		for c := range m.scale {
			m.scale[c] /= math.MaxUint8
		}
	}
	return m, nil
}

// Len is the number of images.
func (m *Images) Len() int { return m.source.Len() }

// Shape is [channels, height, width].
func (m *Images) Shape() []int { return m.shape }

// DType is Float32.
func (m *Images) DType() DType { return Float32 }

// Read fills dst with image i; see Source.
func (m *Images) Read(i int, dst []byte) error {
	checkWhole(m, i, dst)
	raw := make([]byte, SampleBytes(m.source))
	if err := m.source.Read(i, raw); err != nil {
		return err
	}
	channels, pixels := m.shape[0], m.shape[1]*m.shape[2]
	for c := range channels {
		for p := range pixels {
			from := c*pixels + p
			if m.last {
				from = p*channels + c
			}
			binary.LittleEndian.PutUint32(dst[4*(c*pixels+p):], math.Float32bits(m.value(raw, from)*m.scale[c]+m.move[c]))
		}
	}
	return nil
}

func (m *Images) value(raw []byte, i int) float32 {
	if m.source.DType() == Uint8 {
		return float32(raw[i])
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
}

// Labels gives single whole numbers of any type as int32.
type Labels struct {
	source  Source
	Classes int // the greatest label + 1
}

// NewLabels reads all of s once to know the number of classes.
func NewLabels(s Source) (*Labels, error) {
	l := &Labels{source: s}
	if n, err := product(s.Shape(), 1); err != nil || n != 1 {
		return nil, fmt.Errorf("data: labels of shape %v: want single numbers", s.Shape())
	}
	for i := range s.Len() {
		v, err := l.at(i)
		if err != nil {
			return nil, err
		}
		l.Classes = max(l.Classes, int(v)+1)
	}
	return l, nil
}

// Len is the number of labels.
func (l *Labels) Len() int { return l.source.Len() }

// Shape is empty.
func (l *Labels) Shape() []int { return nil }

// DType is Int32.
func (l *Labels) DType() DType { return Int32 }

// Read fills dst with label i; see Source.
func (l *Labels) Read(i int, dst []byte) error {
	checkWhole(l, i, dst)
	v, err := l.at(i)
	binary.LittleEndian.PutUint32(dst, uint32(v))
	return err
}

// at is label i, a class.
func (l *Labels) at(i int) (int32, error) {
	raw := make([]byte, 8)
	d := l.source.DType()
	if err := l.source.Read(i, raw[:d.Size()]); err != nil {
		return 0, err
	}
	v := int64(binary.LittleEndian.Uint64(raw))
	switch d {
	case Int8, Int16, Int32: // what is negative must stay so
		free := 64 - 8*d.Size()
		v = v << free >> free
	case Uint8, Uint16, Uint32, Uint64, Int64, Bool:
	default:
		return 0, fmt.Errorf("data: labels of %s: want whole numbers", d)
	}
	const most = 1 << 24
	if v < 0 || v >= most {
		return 0, fmt.Errorf("data: label %d is %d: classes are numbers from 0 to %d", i, v, most-1)
	}
	return int32(v), nil
}

// ImageSet is images and their classes, sample for sample.
type ImageSet struct {
	Images *Images
	Labels *Labels

	files []*Array
}

// imageFiles are the names that the files of a set have: of images, then of
// labels.
var imageFiles = map[string][][2]string{
	"train": {{"train-images-idx3-ubyte", "train-labels-idx1-ubyte"}, {"train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"}, {"train-images.npy", "train-labels.npy"}},
	"test": {{"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}, {"t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"},
		{"test-images-idx3-ubyte", "test-labels-idx1-ubyte"}, {"test-images-idx3-ubyte.gz", "test-labels-idx1-ubyte.gz"}, {"test-images.npy", "test-labels.npy"}},
}

// OpenImageSet opens a part, "train" or "test", of the images in a folder:
// IDX files with MNIST's names (train-images-idx3-ubyte, also with .gz; of the
// test part also t10k-…), or train-images.npy with train-labels.npy. A folder
// without the part gives an error that is fs.ErrNotExist.
func OpenImageSet(dir, part string) (*ImageSet, error) {
	var tried []string
	for _, names := range imageFiles[part] {
		images := filepath.Join(dir, names[0])
		if _, err := os.Stat(images); errors.Is(err, fs.ErrNotExist) {
			tried = append(tried, names[0])
			continue
		}
		return openImageSet(images, filepath.Join(dir, names[1]))
	}
	return nil, fmt.Errorf("data: no images in %s, which would be in one of %q: %w", dir, tried, fs.ErrNotExist)
}

func openImageSet(images, labels string) (_ *ImageSet, err error) {
	set := &ImageSet{}
	defer func() {
		if err != nil {
			err = errors.Join(err, set.Close())
		}
	}()
	for _, path := range []string{images, labels} {
		a, err := Open(path, "")
		if err != nil {
			return nil, err
		}
		set.files = append(set.files, a)
	}
	if a, b := set.files[0].Len(), set.files[1].Len(); a != b || a == 0 {
		return nil, fmt.Errorf("data: %s has %d images, %s has %d labels", images, a, labels, b)
	}
	if set.Images, err = NewImages(set.files[0]); err != nil {
		return nil, fmt.Errorf("%s: %w", images, err)
	}
	if set.Labels, err = NewLabels(set.files[1]); err != nil {
		return nil, fmt.Errorf("%s: %w", labels, err)
	}
	return set, nil
}

// Close closes the files.
func (s *ImageSet) Close() error {
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
