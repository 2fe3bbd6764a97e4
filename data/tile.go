package data

import (
	"fmt"
	"math/bits"
)

// Grid covers an image by tiles of one size that overlap. Along each axis the
// tiles begin tile−overlap apart; the last one is moved back to end with the
// image, so that it overlaps more. It does not change and may be shared.
//
// Where tiles overlap, their results are blended: a tile's weight falls linearly
// towards its edges, and the weights of all tiles at a pixel add to exactly one.
// They are multiples of 1/256 along each axis, so that blending in float32 is
// exact for values of up to 8 bits, such as the pixels themselves.
type Grid struct {
	image, tile [2]int // height, width
	axes        [2]axis
}

// axis is where tiles begin along one axis, and their weights.
type axis struct {
	starts  []int
	weights [][]float32 // of each tile, for each of its pixels
}

// weightSum is the sum of the weights at a pixel, before division by it.
const weightSum = 256

// NewGrid makes the grid for images and tiles of the given height and width.
// The overlap must be smaller than a tile, and the tile fit in the image.
func NewGrid(image, tile, overlap [2]int) (*Grid, error) {
	g := &Grid{image: image, tile: tile}
	for i, name := range []string{"height", "width"} {
		if tile[i] < 1 || tile[i] > image[i] || overlap[i] < 0 || overlap[i] >= tile[i] {
			return nil, fmt.Errorf("data: tiles of %s %d with overlap %d in an image of %d: want 0 ≤ overlap < tile ≤ image", name, tile[i], overlap[i], image[i])
		}
		if tile[i]/(tile[i]-overlap[i]) >= weightSum/2 {
			return nil, fmt.Errorf("data: tiles of %s %d with overlap %d: a pixel would be in more than %d tiles", name, tile[i], overlap[i], weightSum/2)
		}
		g.axes[i] = newAxis(image[i], tile[i], tile[i]-overlap[i])
	}
	return g, nil
}

func newAxis(image, tile, step int) axis {
	var a axis
	for start := 0; start+tile < image; start += step {
		a.starts = append(a.starts, start)
	}
	a.starts = append(a.starts, image-tile)
	for range a.starts {
		a.weights = append(a.weights, make([]float32, tile))
	}
	for first, x := 0, 0; x < image; x++ {
		for a.starts[first]+tile <= x {
			first++
		}
		a.weigh(first, x, tile)
	}
	return a
}

// weigh divides weightSum among the tiles at pixel x, of which first is the
// first: in proportion to the distance from their edges, and what rounding down
// leaves to the first of those with the most.
func (a *axis) weigh(first, x, tile int) {
	distance := func(k int) int { return min(x-a.starts[k], a.starts[k]+tile-1-x) + 1 }
	sum, last, best := 0, first, first
	for ; last < len(a.starts) && a.starts[last] <= x; last++ {
		sum += distance(last)
		if distance(last) > distance(best) {
			best = last
		}
	}
	left := weightSum
	for k := first; k < last; k++ {
		w := weightSum * distance(k) / sum
		left -= w
		a.weights[k][x-a.starts[k]] = float32(w) / weightSum
	}
	a.weights[best][x-a.starts[best]] += float32(left) / weightSum
}

// Len is the number of tiles.
func (g *Grid) Len() int { return len(g.axes[0].starts) * len(g.axes[1].starts) }

// At gives the upper left corner of tile k. Tiles come row by row.
func (g *Grid) At(k int) (y, x int) {
	n := len(g.axes[1].starts)
	return g.axes[0].starts[k/n], g.axes[1].starts[k%n]
}

// Blend adds tile k, times its weights, to an image that was zero before the
// first tile. Both have the given number of planes, one after the other:
// [planes, height, width].
func (g *Grid) Blend(image, tile []float32, k, planes int) {
	if len(image) != planes*g.image[0]*g.image[1] || len(tile) != planes*g.tile[0]*g.tile[1] {
		panic(fmt.Sprintf("data: an image of %d and a tile of %d elements for %d planes of %v and %v", len(image), len(tile), planes, g.image, g.tile))
	}
	top, left := g.At(k)
	n := len(g.axes[1].starts)
	rows, columns := g.axes[0].weights[k/n], g.axes[1].weights[k%n]
	for p := range planes {
		for y, weight := range rows {
			src := tile[(p*g.tile[0]+y)*g.tile[1]:][:g.tile[1]]
			dst := image[(p*g.image[0]+top+y)*g.image[1]+left:][:g.tile[1]]
			for x, w := range columns {
				dst[x] += weight * w * src[x]
			}
		}
	}
}

// Tiles are the tiles of a source's images, as samples: sample i is tile
// i mod n of image i/n, for n tiles an image. The last two dimensions of an image
// are height and width; those before are planes. If the source is a PartReader,
// an image is never in memory as a whole.
type Tiles struct {
	cutter
	grid *Grid
}

// NewTiles cuts the images of a source.
func NewTiles(s Source, tile, overlap [2]int) (*Tiles, error) {
	c, err := newCutter(s, tile)
	if err != nil {
		return nil, err
	}
	g, err := NewGrid(c.image, tile, overlap)
	if err != nil {
		return nil, err
	}
	if err := c.repeat(g.Len()); err != nil {
		return nil, err
	}
	return &Tiles{c, g}, nil
}

// Grid is that of every image.
func (t *Tiles) Grid() *Grid { return t.grid }

// Read fills dst with tile i.
func (t *Tiles) Read(i int, dst []byte) error {
	checkWhole(t, i, dst)
	y, x := t.grid.At(i % t.grid.Len())
	return t.cut(i/t.grid.Len(), y, x, dst)
}

// Crops are random parts of a source's images, for training: sample i is a crop
// of image i mod n, for n images, at a place that follows from the seed and i. Of
// a PartReader only the crop is read. A new seed for each epoch gives new crops;
// so does a large number of crops an image, of which a run sees only a part.
type Crops struct {
	cutter
	images int
	key    uint64
}

// NewCrops makes so many crops of each image, of height and width size.
func NewCrops(s Source, size [2]int, perImage int, seed uint64) (*Crops, error) {
	c, err := newCutter(s, size)
	if err == nil {
		err = c.repeat(perImage)
	}
	if err != nil {
		return nil, err
	}
	return &Crops{c, s.Len(), mix(seed)}, nil
}

// At says where crop i is: in which image, and its upper left corner.
func (c *Crops) At(i int) (image, y, x int) {
	random := mix(c.key + uint64(i))
	below := func(n int) int { // n+1 places, by the upper bits of a product
		high, _ := bits.Mul64(random, uint64(n)+1)
		random = mix(random)
		return int(high)
	}
	return i % c.images, below(c.image[0] - c.tile[0]), below(c.image[1] - c.tile[1])
}

// Read fills dst with crop i.
func (c *Crops) Read(i int, dst []byte) error {
	checkWhole(c, i, dst)
	image, y, x := c.At(i)
	return c.cut(image, y, x, dst)
}

// cutter reads rectangles out of a source's images.
type cutter struct {
	source      Source
	image, tile [2]int
	shape       []int
	n           int
}

func newCutter(s Source, tile [2]int) (cutter, error) {
	shape := s.Shape()
	n := len(shape)
	if n < 2 {
		return cutter{}, fmt.Errorf("data: samples of shape %v are no images: they need a height and a width", shape)
	}
	image := [2]int{shape[n-2], shape[n-1]}
	if tile[0] < 1 || tile[1] < 1 || tile[0] > image[0] || tile[1] > image[1] {
		return cutter{}, fmt.Errorf("data: parts of %v of images of %v", tile, image)
	}
	return cutter{s, image, tile, append(append([]int{}, shape[:n-2]...), tile[0], tile[1]), s.Len()}, nil
}

// repeat makes samples for each image.
func (c *cutter) repeat(samples int) error {
	if samples < 1 {
		return fmt.Errorf("data: %d parts of an image", samples)
	}
	n, err := product([]int{c.source.Len()}, samples)
	c.n = int(n)
	return err
}

// Len is the number of parts of all images.
func (c *cutter) Len() int { return c.n }

// Shape is that of an image, with another height and width.
func (c *cutter) Shape() []int { return c.shape }

// DType is that of the images.
func (c *cutter) DType() DType { return c.source.DType() }

// cut fills dst with the part of an image whose upper left corner is at y, x.
func (c *cutter) cut(image, y, x int, dst []byte) error {
	width := c.DType().Size()
	read := func(offset int, dst []byte) error { return c.source.(PartReader).ReadPart(image, offset, dst) }
	if _, ok := c.source.(PartReader); !ok {
		whole := make([]byte, SampleBytes(c.source))
		if err := c.source.Read(image, whole); err != nil {
			return err
		}
		read = func(offset int, dst []byte) error { copy(dst, whole[offset:]); return nil }
	}
	row := c.tile[1] * width
	for k := 0; len(dst) > 0; k++ {
		plane, line := k/c.tile[0], k%c.tile[0]
		if err := read(((plane*c.image[0]+y+line)*c.image[1]+x)*width, dst[:row]); err != nil {
			return err
		}
		dst = dst[row:]
	}
	return nil
}
