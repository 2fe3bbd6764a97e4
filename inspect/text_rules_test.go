package inspect

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// printedSize writes n as PyTorch does.
func printedSize(n uint64) string {
	switch {
	case n <= 1<<10:
		return fmt.Sprintf("%d bytes", n)
	case n <= 1<<20:
		return fmt.Sprintf("%.2f KiB", float64(n)/(1<<10))
	case n <= 1<<30:
		return fmt.Sprintf("%.2f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
}

// accuracy is how far a printed n may be from n.
func accuracy(n uint64) float64 {
	unit := 1.0
	for u := 1 << 10; uint64(u) < n && u <= 1<<30; u <<= 10 {
		unit = float64(u)
	}
	return unit*0.005 + 4
}

// books are the true figures behind a message.
type books struct{ request, total, allocated, cached, free, limit uint64 }

// ages are the wordings of PyTorch's allocator from 1.0 to today.
var ages = []func(b books) string{
	func(b books) string {
		return fmt.Sprintf("CUDA out of memory. Tried to allocate %s (GPU 6; %s total capacity; %s already allocated; %s free; %s cached)",
			printedSize(b.request), printedSize(b.total), printedSize(b.allocated), printedSize(b.free), printedSize(b.cached))
	},
	func(b books) string {
		return fmt.Sprintf("CUDA out of memory. Tried to allocate %s (GPU 6; %s total capacity; %s already allocated; %s free; %s reserved in total by PyTorch)",
			printedSize(b.request), printedSize(b.total), printedSize(b.allocated), printedSize(b.free), printedSize(b.allocated+b.cached))
	},
	func(b books) string {
		return fmt.Sprintf("CUDA out of memory. Tried to allocate %s. GPU 6 has a total capacty of %s of which %s is free. Process 99 has %s memory in use. "+
			"Of the allocated memory %s is allocated by PyTorch, and %s is reserved by PyTorch but unallocated.",
			printedSize(b.request), printedSize(b.total), printedSize(b.free), printedSize(b.allocated), printedSize(b.allocated), printedSize(b.cached))
	},
	func(b books) string {
		allowed := ""
		if b.limit > 0 {
			allowed = printedSize(b.limit) + " allowed; "
		}
		return fmt.Sprintf("CUDA out of memory. Tried to allocate %s. GPU 6 has a total capacity of %s of which %s is free. Including non-PyTorch memory, "+
			"this process has 17179869184.00 GiB memory in use. %sOf the allocated memory %s is allocated by PyTorch, with %s allocated in private pools "+
			"(e.g., CUDA Graphs), and %s is reserved by PyTorch but unallocated.",
			printedSize(b.request), printedSize(b.total), printedSize(b.free), allowed, printedSize(b.allocated), printedSize(b.allocated/3), printedSize(b.cached))
	},
}

// randomBooks covers every rule: requests from bytes to far beyond the device,
// devices that are empty, full, shared or limited, and more live than there is.
func randomBooks(random *rand.Rand) books {
	b := books{total: 4<<30 + random.Uint64N(200<<30)}
	b.request = uint64(math.Exp2(9 + 30*random.Float64()))
	if random.IntN(8) == 0 {
		b.request = b.total / 2 * (1 + random.Uint64N(5000))
	}
	b.allocated = uint64(float64(b.total) * random.Float64())
	b.cached = (b.total - b.allocated) >> random.IntN(12)
	left := b.total - b.allocated - b.cached
	b.free = left >> (random.IntN(8) * random.IntN(5))
	switch random.IntN(12) {
	case 0:
		b.allocated, b.free = b.total+1+random.Uint64N(b.total), 0
	case 1:
		b.allocated, b.cached = b.allocated>>6, b.cached>>6
	case 2:
		b.limit = b.allocated + b.cached + b.request/2
	case 3:
		b.limit = b.total
	}
	return b
}

// textOracle is the rules for a caching allocator as they are written down, on the
// figures that r has.
func textOracle(r *Report) Verdict {
	value := func(p *uint64) float64 {
		if p == nil {
			return math.NaN() // every comparison with it is false
		}
		return float64(*p)
	}
	request, total, free := value(r.RequestBytes), value(r.TotalBytes), value(r.FreeBytes)
	allocated, reserved, cached := value(r.AllocatedBytes), value(r.ReservedBytes), value(r.CachedBytes)
	outside, limit := total-free-reserved, value(r.LimitBytes)
	belowLimit := reserved+request+math.Floor(limit/100) < limit
	for _, rule := range []struct {
		holds   bool
		verdict Verdict
	}{
		{request >= 1000*(total+1), Corrupt},
		{limit > 0 && !(belowLimit && free < request), Limit},
		{request > total || allocated > total, OversizeRequest},
		{free >= request, Platform},
		{outside > max(1.5*(1<<30), total/20) && free+cached+outside-1<<30 >= request && reserved < math.Floor(total/10), OtherProcess},
		{outside > max(1.5*(1<<30), total/20) && free+cached+outside-1<<30 >= request, OutsidePool},
		{cached >= request && cached >= math.Floor(reserved/10), Fragmentation},
		{free+cached >= request, Tight},
	} {
		if rule.holds {
			return rule.verdict
		}
	}
	return Capacity
}

// TestPrintedFiguresAndRules prints random books in the wording of every age
// and expects the figures back, to the printed accuracy, and the verdict that
// the rules give for them.
func TestPrintedFiguresAndRules(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	seen := map[Verdict]int{}
	for i := range 800 {
		b := randomBooks(random)
		text := ages[i%len(ages)](b)
		r, err := ExplainText(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		for _, figure := range []struct {
			name string
			got  *uint64
			want uint64
			away float64
		}{
			{"request", r.RequestBytes, b.request, accuracy(b.request)},
			{"total", r.TotalBytes, b.total, accuracy(b.total)},
			{"free", r.FreeBytes, b.free, accuracy(b.free)},
			{"allocated", r.AllocatedBytes, b.allocated, accuracy(b.allocated)},
			{"reserved", r.ReservedBytes, b.allocated + b.cached, accuracy(b.allocated+b.cached) + accuracy(b.allocated) + accuracy(b.cached)},
		} {
			if figure.got == nil || math.Abs(float64(*figure.got)-float64(figure.want)) > figure.away {
				t.Fatalf("%s: %s is %v, want %d", text, figure.name, figure.got, figure.want)
			}
		}
		if want := textOracle(r); r.Verdict != want {
			t.Fatalf("%s\n%+v\nwant %s", text, r, want)
		}
		for _, action := range r.Actions {
			if strings.Contains(action, "expandable_segments") && (*r.FreeBytes >= b.request || *r.CachedBytes < *r.RequestBytes) {
				t.Fatalf("%s\nadvises %s", text, action)
			}
		}
		seen[r.Verdict]++
		if r.Device != "GPU 6" {
			t.Fatalf("%s: device %q", text, r.Device)
		}
	}
	for _, v := range []Verdict{Corrupt, Limit, OversizeRequest, Platform, OtherProcess, OutsidePool, Fragmentation, Tight, Capacity} {
		if seen[v] < 5 {
			t.Errorf("only %d messages with %s: %v", seen[v], v, seen)
		}
	}
}

// TestCutMessages cuts messages at every byte, from both ends: none may crash
// or find a figure greater than the whole one has (of a number that is cut in
// two, only the end is left).
func TestCutMessages(t *testing.T) {
	b := books{request: 3 << 29, total: 24 << 30, allocated: 19 << 30, cached: 1 << 30, free: 1 << 29}
	for _, age := range []int{1, 3} {
		whole := ages[age](b)
		for i := range whole {
			for _, text := range []string{whole[:i], whole[i:]} {
				r, err := ExplainText(text)
				if err != nil {
					continue
				}
				for _, figure := range []struct {
					got   *uint64
					whole uint64
				}{{r.RequestBytes, b.request}, {r.TotalBytes, b.total}, {r.FreeBytes, b.free}, {r.AllocatedBytes, b.allocated}} {
					if figure.got != nil && *figure.got > figure.whole {
						t.Errorf("%q: %d of %d", text, *figure.got, figure.whole)
					}
				}
			}
		}
	}
}

func TestParseBytes(t *testing.T) {
	for _, c := range []struct {
		text    string
		decimal bool
		want    uint64
	}{
		{"0 bytes", false, 0}, {"1 byte", false, 1}, {"512 bytes", false, 512}, {"2.00 KiB", false, 2048}, {"39.5 MiB", false, 39<<20 + 1<<19},
		{"10.25 GB", false, 10<<30 + 1<<28}, {"10.25 GB", true, 10250000000}, {"10.25 GiB", true, 10<<30 + 1<<28},
		{"8.5G", false, 8<<30 + 1<<29}, {"98.000244MB", false, 102760703}, {"0.000000B", false, 0}, {"1EB", false, 1 << 60},
		{"1,073,741,824 bytes", false, 1 << 30}, {"1,5 GiB", false, 3 << 29}, {"12345", false, 12345}, {"1,234,567.5 KiB", false, 1264197120},
		{"17179869184.00 GiB", false, math.MaxUint64}, {"18446744073709551615", false, math.MaxUint64}, {"18446744073709551616", false, math.MaxUint64},
		{"999999999999999999999999999999999999999999 GiB", false, math.MaxUint64},
	} {
		if got := parseBytes(c.text, c.decimal); got != c.want {
			t.Errorf("parseBytes(%q, %t) = %d, want %d", c.text, c.decimal, got, c.want)
		}
	}
	if got := sumBytes("[8.0 GiB 512 MiB]", false); got != 8<<30+512<<20 {
		t.Errorf("sumBytes = %d", got)
	}
}
