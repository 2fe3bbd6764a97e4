package watch

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// line is n points, ten seconds apart, of a function of the time.
func points(n int, f func(t float64) float64) []point {
	var list []point
	for i := range n {
		list = append(list, point{1e9 + float64(10*i), f(float64(10 * i))})
	}
	return list
}

const gib = 1 << 30

// TestForecasts: what grows and what does not, by the shape of its course.
func TestForecasts(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	for name, c := range map[string]struct {
		course func(t float64) float64
		grows  bool
	}{
		"flat":     {func(float64) float64 { return gib }, false},
		"falling":  {func(t float64) float64 { return 50*gib - 1e7*t }, false},
		"noise":    {func(float64) float64 { return gib * (10 + r.Float64()) }, false},
		"one jump": {func(t float64) float64 { return gib * (1 + 9*math.Floor(t/290)) }, false},
		"saw":      {func(t float64) float64 { return gib * (10 + math.Mod(t, 70)/10) }, false},
		"loaded":   {func(t float64) float64 { return 1e8 * min(t, 200) }, false},
		"leak":     {func(t float64) float64 { return gib + 1e7*t }, true},
		"stairs":   {func(t float64) float64 { return gib + 2e9*math.Floor(t/150) }, true},
		"noisy":    {func(t float64) float64 { return gib + 1e7*t + 1e8*r.Float64() }, true},
		"spikes":   {func(t float64) float64 { return gib + 1e7*t + 30*gib*math.Floor(r.Float64()+0.1) }, true},
	} {
		f := foresee(points(60, c.course), 20*gib)
		if f.Grows() != c.grows {
			t.Errorf("%s: %v", name, f)
		}
		if c.grows && (f.SoonestSeconds > f.FullInSeconds || f.FullInSeconds > f.LatestSeconds || math.IsInf(f.LatestSeconds, 0)) {
			t.Errorf("%s: full in %v, %v to %v", name, f.FullInSeconds, f.SoonestSeconds, f.LatestSeconds)
		}
	}
	if f := foresee(points(60, func(t float64) float64 { return gib + 1e7*t }), 6e9); math.Abs(f.FullInSeconds-600) > 1 || math.Abs(f.BytesPerHour-36e9) > 1 {
		t.Errorf("10 MB a second and 6 GB free: %+v", f)
	}
	if f := foresee(points(29, func(t float64) float64 { return 1e7 * t }), gib); f.Grows() {
		t.Errorf("after less than five minutes: %v", f)
	}
	if f := foresee(points(60, func(t float64) float64 { return 10 * t }), 80*gib); f.Grows() {
		t.Errorf("full in years: %v", f)
	}
}

// TestIntervals: the interval holds the true slope in about 95 of 100 cases.
func TestIntervals(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	const cases = 400
	held := 0
	for range cases {
		_, low, high := theilSen(points(40, func(t float64) float64 { return 5*t + 100*r.NormFloat64() }))
		if low <= 5 && 5 <= high {
			held++
		}
	}
	if held < cases*90/100 || held > cases*99/100 {
		t.Errorf("the interval holds the slope in %d of %d cases", held, cases)
	}
}

// TestTheilSen: against the median found by counting, which outliers don't move.
func TestTheilSen(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	for range 200 {
		list := points(3+r.IntN(20), func(float64) float64 { return float64(r.IntN(50)) })
		slope, low, high := theilSen(list)
		if fewer, more := counts(list, slope); fewer > pairsOf(list)/2 || more > pairsOf(list)/2 || low > slope || slope > high {
			t.Fatalf("%v: the slope %v (%v to %v) has %d pairs below and %d above", list, slope, low, high, fewer, more)
		}
	}
	list := points(40, func(t float64) float64 { return 7 * t })
	for i := range 10 {
		list[i*4].bytes = 1e9 * r.Float64()
	}
	if slope, _, _ := theilSen(list); math.Abs(slope-7) > 0.5 {
		t.Errorf("with a quarter of outliers the slope is %v, want 7", slope)
	}
}

func pairsOf(list []point) int { return len(list) * (len(list) - 1) / 2 }

// counts says how many pairs have a lower and a greater slope.
func counts(list []point, slope float64) (fewer, more int) {
	for i, p := range list {
		for _, q := range list[:i] {
			switch s := (p.bytes - q.bytes) / (p.t - q.t); {
			case s < slope:
				fewer++
			case s > slope:
				more++
			}
		}
	}
	return fewer, more
}

func TestAbout(t *testing.T) {
	var got []string
	for _, s := range []float64{0, 89, 90, 2400, 5999, 6000, 35000, 36000, 172000, 172800} {
		got = append(got, about(s))
	}
	want := []string{"0 s", "89 s", "2 min", "40 min", "100 min", "1.7 h", "9.7 h", "10 h", "48 h", "2 days"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func BenchmarkForecast(b *testing.B) {
	list := points(60, func(t float64) float64 { return 1e7 * t })
	for b.Loop() {
		foresee(list, 80*gib)
	}
}
