package size

import (
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		text string
		want uint64
	}{
		{"0", 0}, {"512", 512}, {"512B", 512}, {"100KiB", 100 << 10}, {"256MiB", 256 << 20},
		{"24GiB", 24 << 30}, {"1.5GiB", 3 << 29}, {"12MB", 12e6}, {"2TiB", 2 << 40}, {"1PiB", 1 << 50},
		{"1 GiB", 1 << 30}, {" 3kib ", 3 << 10}, {".5KiB", 512}, {"5.KB", 5000}, {"0.1KiB", 102},
		{"1.9999B", 1}, {"15.999EiB", 18445591152204944769}, {"18446744073709551615", math.MaxUint64},
		{"18.446744073709551615EB", math.MaxUint64},
		{"24G", 24 << 30}, {"24g", 24 << 30}, {"24Gi", 24 << 30}, {"512m", 512 << 20}, {"1.5 T", 3 << 39},
	} {
		got, err := Parse(c.text)
		if err != nil || got != c.want {
			t.Errorf("Parse(%q) = %d, %v; want %d", c.text, got, err, c.want)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                      "does not start with a number",
		"MiB":                   "does not start with a number",
		".":                     "does not start with a number",
		"+1":                    "does not start with a number",
		"-5MiB":                 "is negative",
		"1.2.3MiB":              "more than one decimal point",
		"24GX":                  `unknown unit "GX"`,
		"24GG":                  `unknown unit "GG"`,
		"1e9":                   `unknown unit "e9"`,
		"1,5GiB":                `unknown unit ",5GiB"`,
		"16EiB":                 "more than 64 bits",
		"18446744073709551616":  "more than 64 bits",
		strings.Repeat("9", 41): "41 digits",
	} {
		got, err := Parse(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse(%q) = %d, %v; want an error with %q", text, got, err, want)
		}
	}
}

func TestFormat(t *testing.T) {
	for _, c := range []struct {
		n    uint64
		want string
	}{
		{0, "0B"}, {1, "1B"}, {1023, "1023B"}, {1024, "1KiB"}, {1536, "1.5KiB"}, {256 << 20, "256MiB"},
		{1567000000, "1.46GiB"}, {3 << 29, "1.5GiB"}, {1<<30 - 1, "1GiB"}, {1 << 60, "1EiB"},
		{math.MaxUint64, "16EiB"}, {1000 << 20, "1000MiB"}, {1<<20 + 52429, "1.05MiB"},
	} {
		if got := Format(c.n); got != c.want {
			t.Errorf("Format(%d) = %q, want %q", c.n, got, c.want)
		}
	}
}

// TestRoundTrip holds Format and Exact to what they promise: Exact comes back
// whole, Format comes back within half a hundredth of its unit, and exactly
// where the size is a whole number of a unit.
func TestRoundTrip(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		n := random.Uint64() >> random.IntN(64)
		if back, err := Parse(Exact(n)); err != nil || back != n {
			t.Fatalf("Parse(Exact(%d) = %q) = %d, %v", n, Exact(n), back, err)
		}
		back, err := Parse(Format(n))
		if err != nil && n < 1<<63 {
			t.Fatalf("Parse(Format(%d) = %q): %v", n, Format(n), err)
		}
		if far := math.Abs(float64(back) - float64(n)); err == nil && far > float64(n)/200+1 {
			t.Fatalf("Format(%d) = %q is off by %g", n, Format(n), far)
		}
		whole := uint64(1+random.IntN(1023)) << (10 * random.IntN(6))
		if back, err := Parse(Format(whole)); err != nil || back != whole {
			t.Fatalf("Parse(Format(%d) = %q) = %d, %v", whole, Format(whole), back, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"256MiB", "1.5GiB", "512", "12MB", "-1", "0.0000001EiB", "1..2", "١GiB"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := Parse(s)
		if err != nil {
			return
		}
		if want := slowParse(s); want != n {
			t.Fatalf("Parse(%q) = %d, want %d", s, n, want)
		}
		if back, err := Parse(Exact(n)); err != nil || back != n {
			t.Fatalf("Parse(Exact(%d) = %q) = %d, %v", n, Exact(n), back, err)
		}
	})
}

// slowParse reads a size that Parse accepted, with rational numbers.
func slowParse(s string) uint64 {
	s = strings.Join(strings.Fields(strings.ToLower(s)), "")
	number := strings.TrimRight(s, "bikmgtpe")
	power := strings.IndexByte("bkmgtpe", (s[len(number):] + "b")[0])
	base := int64(1000)
	if !strings.HasSuffix(s, "b") || strings.Contains(s, "i") {
		base = 1024
	}
	value, _ := new(big.Rat).SetString(strings.TrimSuffix("0"+number, "."))
	for range power {
		value.Mul(value, new(big.Rat).SetInt64(base))
	}
	return new(big.Int).Quo(value.Num(), value.Denom()).Uint64()
}
