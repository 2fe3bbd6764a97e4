package inspect

import (
	"math"
	"regexp"
	"strings"

	"github.com/headroom-go/headroom/internal/size"
)

// sizePattern matches a number with its unit as the frameworks print it:
// "39.12 MiB", "560.44MiB", "8.41G", "1,073,741,824 bytes"; and what is no size
// in its place, such as "-2.00 GiB", "nan GiB" or "1e+308 GiB".
const sizePattern = `(?:-?\d[\d,]*(?:\.\d+)?(?:e\+?\d+)?|-?(?i:nan|inf))\s?(?i:bytes?|[KMGTPE]i?B|[KMGTPE]|B)\b`

// noSize matches what sizePattern matches and is no size.
var noSize = regexp.MustCompile(`^\s*-|^\s*(?i:nan|inf)|\de\+?\d`)

// countPattern matches a whole number without a unit.
const countPattern = `\d[\d,]*`

var anySize = regexp.MustCompile(sizePattern)

// unreal is the least number of bytes that no memory has (1 EiB). Greater ones
// are garbage, "not available" (2^64 is printed as 17179869184.00 GiB) or
// negative numbers that wrapped.
const unreal = 1 << 60

// parseBytes is the value of a size or a count in bytes. MB and GB are powers
// of 1024, as the frameworks that print them mean them, unless decimal is set.
// What 64 bits cannot hold becomes math.MaxUint64.
func parseBytes(s string, decimal bool) uint64 {
	end := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' && r != ',' })
	if end < 0 {
		end = len(s)
	}
	unit := strings.ToUpper(strings.TrimSpace(s[end:]))
	switch {
	case unit == "" || unit[0] == 'B':
		unit = "B"
	case decimal && !strings.Contains(unit, "I"):
		unit = unit[:1] + "B"
	default:
		unit = unit[:1] + "iB"
	}
	n, err := size.Parse(plainNumber(s[:end]) + unit)
	if err != nil {
		return math.MaxUint64
	}
	return n
}

// plainNumber drops the commas between thousands; a single comma that cannot
// be one of those is the decimal point of another language.
func plainNumber(s string) string {
	whole, rest, found := strings.Cut(s, ",")
	if found && !strings.ContainsAny(rest, ".,") && len(rest) != 3 {
		return whole + "." + rest
	}
	return strings.ReplaceAll(s, ",", "")
}

// sumBytes adds the sizes in s, or reads s as a count when it holds none.
func sumBytes(s string, decimal bool) uint64 {
	found := anySize.FindAllString(s, 64)
	if len(found) == 0 {
		return parseBytes(strings.TrimSpace(s), decimal)
	}
	var sum uint64
	for _, one := range found {
		n := parseBytes(one, decimal)
		if sum += n; sum < n {
			return math.MaxUint64
		}
	}
	return sum
}
