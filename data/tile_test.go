package data

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// grids calls f for grids of many shapes.
func grids(t *testing.T, f func(g *Grid, image, tile, overlap [2]int)) {
	t.Helper()
	for height := 1; height < 24; height += 3 {
		for tile := 1; tile <= height; tile += 2 {
			for overlap := 0; overlap < tile; overlap++ {
				image, size, both := [2]int{height, height + 5}, [2]int{tile, tile + 1}, [2]int{overlap, overlap / 2}
				g, err := NewGrid(image, size, both)
				if err != nil {
					t.Fatal(err)
				}
				f(g, image, size, both)
			}
		}
	}
}

// TestGridCovers: tiles lie within the image, neighbours overlap by what was
// asked for at least, and the weights at each pixel add to exactly one.
func TestGridCovers(t *testing.T) {
	grids(t, func(g *Grid, image, tile, overlap [2]int) {
		sum := make([]float32, image[0]*image[1])
		ones := slices.Repeat([]float32{1}, tile[0]*tile[1])
		for k := range g.Len() {
			y, x := g.At(k)
			if y < 0 || x < 0 || y+tile[0] > image[0] || x+tile[1] > image[1] {
				t.Fatalf("tile %d of %v at %d, %d in %v", k, tile, y, x, image)
			}
			if k > 0 {
				if y0, x0 := g.At(k - 1); y < y0 || y == y0 && x <= x0 {
					t.Fatalf("tile %d at %d, %d comes after %d, %d", k, y, x, y0, x0)
				} else if y == y0 && x-x0 > tile[1]-overlap[1] || y-y0 > tile[0]-overlap[0] {
					t.Fatalf("tiles at %d, %d and %d, %d overlap less than %v", y0, x0, y, x, overlap)
				}
			}
			g.Blend(sum, ones, k, 1)
		}
		for i, s := range sum {
			if s != 1 {
				t.Fatalf("image %v, tiles %v, overlap %v: the weights at %d add to %v", image, tile, overlap, i, s)
			}
		}
	})
}

// TestTilesReassemble cuts images of 8-bit pixels into tiles and blends them: the
// result is the image, to the bit. For any numbers it is close.
func TestTilesReassemble(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	grids(t, func(g *Grid, image, tile, overlap [2]int) {
		const images, planes = 2, 3
		pixels := make([]byte, images*planes*image[0]*image[1])
		for i := range pixels {
			pixels[i] = byte(r.Uint32())
		}
		a, err := parse(inMemory(idx(8, []int{images, planes, image[0], image[1]}, pixels)), "")
		if err != nil {
			t.Fatal(err)
		}
		parts, err := NewTiles(a, tile, overlap)
		if err != nil {
			t.Fatal(err)
		}
		n := parts.Grid().Len()
		if parts.Len() != images*n || !slices.Equal(parts.Shape(), []int{planes, tile[0], tile[1]}) {
			t.Fatalf("%d tiles of %v", parts.Len(), parts.Shape())
		}
		samples := all(t, parts)
		for image1 := range images {
			whole := pixels[image1*len(pixels)/images:][:len(pixels)/images]
			for _, scale := range []float32{1, 1.0 / 3} {
				result := make([]float32, len(whole))
				for k := range n {
					part := make([]float32, len(samples[k]))
					for i, p := range samples[image1*n+k] {
						part[i] = float32(p) * scale
					}
					parts.Grid().Blend(result, part, k, planes)
				}
				for i, p := range whole {
					want := float32(p) * scale
					if diff := math.Abs(float64(result[i] - want)); scale == 1 && diff != 0 || diff > 1e-4 {
						t.Fatalf("image %v, tiles %v, overlap %v: pixel %d is %v, want %v", image, tile, overlap, i, result[i], want)
					}
				}
			}
		}
	})
}

// wholeOnly hides that a source reads parts.
type wholeOnly struct{ Source }

// TestCrops compares each crop with the pixels of its image, with a source that
// reads parts and one that does not.
func TestCrops(t *testing.T) {
	const images, planes, height, width = 3, 2, 11, 9
	pixels := make([]byte, images*planes*height*width)
	for i := range pixels {
		pixels[i] = byte(i * 31)
	}
	a, err := parse(inMemory(idx(8, []int{images, planes, height, width}, pixels)), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []Source{a, wholeOnly{a}} {
		c, err := NewCrops(s, [2]int{4, 5}, 200, 1)
		if err != nil {
			t.Fatal(err)
		}
		places := map[[2]int]bool{}
		for i, crop := range all(t, c) {
			image, y, x := c.At(i)
			places[[2]int{y, x}] = true
			var want []byte
			for p := range planes {
				for r := range 4 {
					want = append(want, pixels[((image*planes+p)*height+y+r)*width+x:][:5]...)
				}
			}
			if image != i%images || !bytes.Equal(crop, want) {
				t.Fatalf("crop %d of image %d at %d, %d is wrong", i, image, y, x)
			}
		}
		if len(places) != 8*5 {
			t.Errorf("600 crops are at %d of 40 places", len(places))
		}
	}
}

func TestTilesRefuse(t *testing.T) {
	a := mustOpen(t, "testdata/float32.npy", "") // images of 2×3
	for _, bad := range [][2][2]int{{{0, 1}, {}}, {{3, 3}, {}}, {{2, 4}, {}}, {{2, 2}, {2, 0}}, {{2, 2}, {0, -1}}} {
		if _, err := NewTiles(a, bad[0], bad[1]); err == nil {
			t.Errorf("tiles of %v with overlap %v", bad[0], bad[1])
		}
	}
	if _, err := NewGrid([2]int{2000, 2000}, [2]int{1000, 1000}, [2]int{999, 0}); err == nil {
		t.Error("a thousand tiles at a pixel")
	}
	for _, n := range []int{0, -1, math.MaxInt} {
		if _, err := NewCrops(a, [2]int{1, 1}, n, 0); err == nil {
			t.Errorf("%d crops", n)
		}
	}
	if _, err := NewCrops(mustOpen(t, "testdata/scalars.npy", ""), [2]int{1, 1}, 1, 0); err == nil {
		t.Error("crops of numbers")
	}
}

// TestTileErrors: what the source says comes through.
func TestTileErrors(t *testing.T) {
	f := inMemory(idx(8, []int{1, 4, 4}, make([]byte, 16)))
	a, err := parse(f, "")
	if err != nil {
		t.Fatal(err)
	}
	a.pieces[0].r = &faulty{f.ReaderAt, 1, false}
	for _, s := range []Source{a, wholeOnly{a}} {
		tiles, err := NewTiles(s, [2]int{2, 2}, [2]int{})
		if err != nil {
			t.Fatal(err)
		}
		if err := tiles.Read(0, make([]byte, 4)); err == nil {
			t.Error("no error")
		}
	}
}
