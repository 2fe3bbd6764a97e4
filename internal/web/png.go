package web

import (
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"math"
	"slices"

	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/internal/size"
)

// The picture, in pixels.
const (
	pngWidth, pngHeight  = 1600, 980
	pngLeft, pngRight    = 150, pngWidth - 30
	pngTop, pngBottom    = 80, 640
	letterScale          = 2
	letterStep, lineStep = 6 * letterScale, 28
	legendTop            = pngBottom + 70
)

var (
	paper = color.NRGBA{255, 255, 255, 255}
	ink   = color.NRGBA{26, 26, 26, 255}
	dim   = color.NRGBA{85, 92, 99, 255}
	grid  = color.NRGBA{220, 223, 227, 255}
)

// palette is that of assets/colours.js.
var palette = [maxParts]color.NRGBA{
	{0x00, 0x72, 0xb2, 255}, {0x56, 0xb4, 0xe9, 255}, {0xd5, 0x5e, 0x00, 255}, {0x00, 0x9e, 0x73, 255},
	{0xe6, 0x9f, 0x00, 255}, {0xcc, 0x79, 0xa7, 255}, {0x99, 0x99, 0x99, 255}, {0xf0, 0xe4, 0x42, 255},
}

// WritePNG draws the live memory of a record over time: areas by purpose or,
// for records without purposes, by call site, what is reserved as a dashed
// line, and a legend with the bytes at the peak. It is what inspect.WriteSVG
// draws, for where only pixels are taken. The error is w's.
func WritePNG(w io.Writer, r *Record) error {
	d := &drawing{Areas: r.h.Areas(pngRight - pngLeft), img: image.NewNRGBA(image.Rect(0, 0, pngWidth, pngHeight))}
	d.most = float64(max(slices.Max(d.Reserved), d.live(d.Peak), 1)) * 1.02
	d.fill(d.img.Bounds(), paper)
	d.text(pngLeft, 24, fmt.Sprintf("%s: memory of device %d by %s", r.name, r.h.Device(), d.By), ink)
	d.axes()
	d.areas()
	d.legend()
	return png.Encode(w, d.img)
}

// drawing is a picture that is being drawn.
type drawing struct {
	*inspect.Areas
	img  *image.NRGBA
	most float64 // bytes at the top
}

// live is the live bytes of a sample.
func (d *drawing) live(i int) (sum uint64) {
	for _, b := range d.Bytes {
		sum += b[i]
	}
	return sum
}

func (d *drawing) fill(r image.Rectangle, c color.NRGBA) {
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			d.img.SetNRGBA(x, y, c)
		}
	}
}

// x is the column of a sample, y the row of a number of bytes: the plot's first where
// those of a damaged record add up to more than 64 bits count.
func (d *drawing) x(i int) int {
	from, span := float64(d.Time[0]), max(float64(d.Time[len(d.Time)-1])-float64(d.Time[0]), 1)
	return pngLeft + int(math.Round((float64(d.Time[i])-from)/span*(pngRight-pngLeft)))
}

func (d *drawing) y(bytes float64) int {
	return pngBottom - int(math.Round(min(bytes/d.most, 1)*(pngBottom-pngTop)))
}

// areas draws each sample up to the next one.
func (d *drawing) areas() {
	for i := range d.Moments {
		from, to := d.x(i), pngRight
		if i+1 < len(d.Moments) {
			to = d.x(i + 1)
		}
		var below float64
		for p := range d.Parts {
			above := below + float64(d.Bytes[p][i])
			d.part(p, image.Rect(from, d.y(above), to, d.y(below)))
			below = above
		}
		d.dashes(from, to, d.y(float64(d.Reserved[i])))
	}
	x := d.x(d.Peak)
	d.fill(image.Rect(x-1, pngTop-14, x+1, d.y(float64(d.live(d.Peak)))), ink)
	label := "peak " + size.Format(d.live(d.Peak))
	d.text(min(max(x-len(label)*letterStep/2, pngLeft), pngRight-len(label)*letterStep), pngTop-32, label, ink)
}

// part fills a rectangle with the colour and the texture of a part.
func (d *drawing) part(p int, r image.Rectangle) {
	c := d.colour(p)
	light := color.NRGBA{c.R/2 + 127, c.G/2 + 127, c.B/2 + 127, 255}
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			if textured(d.texture(p), x, y) {
				d.img.SetNRGBA(x, y, light)
			} else {
				d.img.SetNRGBA(x, y, c)
			}
		}
	}
}

// texture is the number of a part's colour: of a purpose it is always the same.
func (d *drawing) texture(p int) int {
	for i, purpose := range inspect.PurposeOrder() {
		if d.By == "purpose" && purpose.String() == d.Parts[p] {
			return i
		}
	}
	return p % maxParts
}

func (d *drawing) colour(p int) color.NRGBA { return palette[d.texture(p)] }

// textured says whether a pixel is of the lines that tell parts apart without
// colour.
func textured(texture, x, y int) bool {
	const every = 12
	switch texture {
	case 1:
		return y%every == 0
	case 2:
		return (x+y)%every == 0
	case 3:
		return x%every == 0
	case 4:
		return (x-y+pngWidth*every)%every == 0
	case 5:
		return (x+y)%every == 0 || (x-y+pngWidth*every)%every == 0
	case 6:
		return x%every < 2 && y%every == 0
	case 7:
		return x%every == 0 || y%every == 0
	}
	return false
}

// dashes draws a part of the reserved line.
func (d *drawing) dashes(from, to, y int) {
	for x := from; x < to; x++ {
		if x%16 < 10 {
			d.fill(image.Rect(x, y-1, x+1, y+1), ink)
		}
	}
}

func (d *drawing) axes() {
	step := math.Exp2(math.Ceil(math.Log2(d.most / 8)))
	for b := 0.0; b <= d.most; b += max(step, 1) {
		y := d.y(b)
		d.fill(image.Rect(pngLeft, y, pngRight, y+1), grid)
		label := size.Format(uint64(b))
		d.text(pngLeft-10-len(label)*letterStep, y-7, label, dim)
	}
	last := len(d.Time) - 1
	end := fmt.Sprintf("%d events", d.Moments[last])
	if d.Timed {
		end = fmt.Sprintf("%.3g s", float64(d.Time[last]-d.Time[0])/1e6)
	}
	d.text(pngLeft, pngBottom+12, "0", dim)
	d.text(pngRight-len(end)*letterStep, pngBottom+12, end, dim)
}

// legend lists the parts, the topmost first.
func (d *drawing) legend() {
	d.text(pngLeft, legendTop-34, "at the peak", dim)
	d.dashes(pngLeft, pngLeft+20, legendTop+8)
	d.text(pngLeft+32, legendTop, size.Format(d.Reserved[d.Peak])+" reserved", ink)
	for n := range d.Parts {
		p := len(d.Parts) - 1 - n
		y := legendTop + (n+1)*lineStep
		d.part(p, image.Rect(pngLeft, y, pngLeft+20, y+15))
		d.text(pngLeft+32, y, size.Format(d.Bytes[p][d.Peak])+" "+d.Parts[p], ink)
	}
}

// text writes a line; letters that the font does not have are shown as a box.
func (d *drawing) text(x, y int, text string, c color.NRGBA) {
	const most = 100
	if letters := []rune(text); len(letters) > most {
		text = string(letters[:most])
	}
	for _, letter := range text {
		for column, bits := range glyph(letter) {
			for row := range 8 {
				if bits>>row&1 == 1 {
					px, py := x+column*letterScale, y+row*letterScale
					d.fill(image.Rect(px, py, px+letterScale, py+letterScale).Intersect(d.img.Bounds()), c)
				}
			}
		}
		x += letterStep
	}
}
