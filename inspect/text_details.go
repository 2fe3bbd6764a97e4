package inspect

import (
	"math"
	"regexp"
	"strconv"
	"strings"
)

// The details: what of a message is no phrase with a figure.

// detailPyTorch notes the age and the kind of device.
func detailPyTorch(m *message) {
	switch {
	case strings.HasPrefix(m.text, "HIP"):
		m.tag("hip")
	case strings.HasPrefix(m.text, "NPU"):
		m.tag("npu")
	case strings.HasPrefix(m.text, "XPU"), strings.HasPrefix(m.text, "size larger than"):
		m.tag("xpu")
	}
	if strings.HasPrefix(m.text, "size larger than") {
		m.tag("piece")
	}
	if strings.Contains(m.text, "total capacity;") || strings.Contains(m.text, "reserved in total") {
		m.tag("old")
	}
}

// detailLlama notes what the buffer was for.
func detailLlama(m *message) {
	if strings.Contains(m.text, "compute buffer") || strings.Contains(m.text, "gallocr") {
		m.tag("compute")
	}
}

var startFree = regexp.MustCompile(`Free memory on device \S* ?\(([\d.]+)/[\d.]+ GiB\)`)

// detailStartup reads "(1.2/23.6 GiB)", where the first number has no unit.
func detailStartup(m *message) {
	if groups := startFree.FindStringSubmatch(m.text); groups != nil {
		m.figures[figFree] = parseBytes(groups[1]+"GiB", false)
	}
}

// detailCuPy turns the old "total", which counts the request, into what is
// allocated.
func detailCuPy(m *message) { m.figures.difference(figAllocated, figProgram, figRequest) }

// bytesPer is the size of an element of TensorFlow's types.
var bytesPer = map[string]uint64{
	"double": 8, "float64": 8, "int64": 8, "uint64": 8, "complex64": 8, "complex128": 16,
	"half": 2, "float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2, "int8": 1, "uint8": 1, "bool": 1,
}

var tensorShape = regexp.MustCompile(`with shape ?\[([\d, ]+)\](?: and type (\w+))?`)

// detailTensorFlow computes the request from the shape (of floats unless the
// message says otherwise) when no size is printed.
func detailTensorFlow(m *message) {
	groups := tensorShape.FindStringSubmatch(m.text)
	if groups == nil || m.figures.has(figRequest) {
		return
	}
	n, known := bytesPer[groups[2]]
	if !known {
		n = 4
	}
	for _, dim := range strings.FieldsFunc(groups[1], func(r rune) bool { return r == ',' || r == ' ' }) {
		d, err := strconv.ParseUint(dim, 10, 64)
		if err != nil || (d > 0 && n > math.MaxUint64/d) {
			n = math.MaxUint64
			break
		}
		n *= d
	}
	m.figures[figRequest] = n
}

var (
	scaleSteps = regexp.MustCompile(`(?:reducing(?: ?loss ?scale)?|setting ?loss ?scale|dynamic ?loss ?scale ?from [\d.e+-]+) ?to:? ?([\d.]+(?:e[+-]?\d+)?|inf|nan)`)
	scaleEnd   = regexp.MustCompile(`already at minimum|[Mm]inimum loss scale|oss (?:scale)?(?: is|:|=)? ?(?:inf|nan|0\.0\b)`)
)

// detailScaler follows the loss scale over the lines of a log: how often it was
// lowered in a row, and to what.
func detailScaler(m *message) {
	last, steps := math.Inf(1), 0
	for _, groups := range scaleSteps.FindAllStringSubmatch(m.text, -1) {
		scale, _ := strconv.ParseFloat(groups[1], 64) // 0 when it is too small for a float64
		if !(scale <= last) {
			steps = 0
		}
		last, steps = scale, steps+1
	}
	if scaleEnd.MatchString(m.text) || math.IsNaN(last) || steps > 0 && math.IsInf(last, 1) {
		m.tag("end")
	}
	if steps > 0 {
		m.words["scale"] = strconv.FormatFloat(last, 'g', -1, 64)
		m.words["drops"] = strconv.Itoa(steps)
	}
}
