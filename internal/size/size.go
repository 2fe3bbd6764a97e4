// Package size reads and writes numbers of bytes as people do: 256MiB, 1.5GiB.
package size

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

// unit is a word that may follow a number.
type unit struct {
	name  string
	bytes uint64
}

// units holds the binary units from small to great, then the decimal ones,
// then short names of the binary ones.
var units = []unit{
	{"B", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"PiB", 1 << 50}, {"EiB", 1 << 60},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"PB", 1e15}, {"EB", 1e18},
	{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"Ti", 1 << 40}, {"Pi", 1 << 50}, {"Ei", 1 << 60},
	{"K", 1 << 10}, {"M", 1 << 20}, {"G", 1 << 30}, {"T", 1 << 40}, {"P", 1 << 50}, {"E", 1 << 60},
}

// binary is the number of units that Format uses.
const binary = 7

// maxDigits bounds the number's text, so that its value stays cheap to compute.
const maxDigits = 40

// Parse reads a size such as "256MiB", "1.5GiB", "12MB" or "512" (bytes).
// KiB, MiB, … are powers of 1024, and so are K, M, … and Ki, Mi, …, as schedulers
// and PyTorch mean them; KB, MB, … are powers of 1000. Case does not matter and a blank may stand before the unit. A fraction of a byte is cut
// off. The error says what is wrong with s.
func Parse(s string) (uint64, error) {
	text := strings.TrimSpace(s)
	end := strings.IndexFunc(text, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if end < 0 {
		end = len(text)
	}
	number, name := text[:end], strings.TrimSpace(text[end:])
	if err := checkNumber(s, number); err != nil {
		return 0, err
	}
	scale, err := unitBytes(s, name)
	if err != nil {
		return 0, err
	}
	return multiply(s, number, scale)
}

// checkNumber accepts digits with at most one point among them.
func checkNumber(s, number string) error {
	switch {
	case strings.HasPrefix(strings.TrimSpace(s), "-"):
		return fmt.Errorf("size %q is negative", s)
	case strings.Trim(number, ".") == "":
		return fmt.Errorf("size %q does not start with a number: write it like 256MiB or 24GiB", s)
	case strings.Count(number, ".") > 1:
		return fmt.Errorf("size %q has more than one decimal point", s)
	case len(number) > maxDigits:
		return fmt.Errorf("size has a number of %d digits, more than %d", len(number), maxDigits)
	}
	return nil
}

// unitBytes is the number of bytes in the unit; no unit means bytes.
func unitBytes(s, name string) (uint64, error) {
	if name == "" {
		return 1, nil
	}
	for _, u := range units {
		if strings.EqualFold(u.name, name) {
			return u.bytes, nil
		}
	}
	return 0, fmt.Errorf("size %q has the unknown unit %q: use B, KiB, MiB, GiB, TiB (K, M, G, T are the same; KB, MB, GB, TB are powers of 1000)", s, name)
}

// multiply computes number·scale exactly and cuts off the fraction.
func multiply(s, number string, scale uint64) (uint64, error) {
	whole, fraction, _ := strings.Cut(number, ".")
	value, _ := new(big.Int).SetString(whole+fraction, 10)
	value.Mul(value, new(big.Int).SetUint64(scale))
	value.Quo(value, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(len(fraction))), nil))
	if !value.IsUint64() {
		return 0, fmt.Errorf("size %q is more than 64 bits can count (16EiB − 1)", s)
	}
	return value.Uint64(), nil
}

// Format writes n in the greatest binary unit of which it holds one or more,
// with as many decimals, at most two, as it needs: "256MiB", "1.5GiB", and
// "1.46GiB" for a number that two decimals only approximate.
func Format(n uint64) string {
	i := 0
	for i+1 < binary && n >= units[i+1].bytes {
		i++
	}
	hundredths := roundHundredths(n, units[i].bytes)
	if hundredths >= 1024*100 && i+1 < binary {
		i++
		hundredths = roundHundredths(n, units[i].bytes)
	}
	text := strconv.FormatUint(hundredths/100, 10)
	if rest := hundredths % 100; rest != 0 {
		text += strings.TrimRight(fmt.Sprintf(".%02d", rest), "0")
	}
	return text + units[i].name
}

// roundHundredths is n/unit in hundredths, rounded to the nearest.
func roundHundredths(n, unit uint64) uint64 {
	return n/unit*100 + uint64(float64(n%unit)/float64(unit)*100+0.5)
}

// Exact writes n so that Parse gives n again: as Format does where that is
// exact, otherwise in bytes without a unit.
func Exact(n uint64) string {
	text := Format(n)
	if back, err := Parse(text); err == nil && back == n {
		return text
	}
	return strconv.FormatUint(n, 10)
}
