package watch

import (
	"fmt"
	"math"
	"slices"

	"github.com/headroom-go/headroom/internal/size"
)

// Note [Growth]
//
// The memory of a job jumps when it starts, saves or evaluates, and a leak may
// grow in stairs of the framework's segments. So growth is measured by the slope
// of Theil and Sen: the median of the slopes of all pairs of points, which nearly
// 30 % of outliers can't move, and which is 0 for a single jump. Points are the
// greatest use in each ten seconds of the last ten minutes. Sen's interval comes
// from the variance of Kendall's statistic: memory grows if its lower end is above
// 0, and if it still does: from the second to the last third of the time the
// median must have risen by half of what the slope says.
//
// P. K. Sen, Estimates of the Regression Coefficient Based on Kendall's Tau,
// Journal of the American Statistical Association 63 (1968), 1379–1389.

// point is bytes in use at a time in seconds.
type point struct{ t, bytes float64 }

const (
	fewestPoints = 8
	// shortestTime is how long growth must have been seen: a job that loads its
	// model grows, too.
	shortestTime = growWindow / 2
	// z bounds the interval: it holds the slope in 95 of 100 cases.
	z = 1.96
	// farthest is the longest time that is foreseen.
	farthest = 30 * 24 * 3600
)

// Forecast is how memory grows and when it will be full. The zero value is that
// of memory that does not grow, as far as one can tell.
type Forecast struct {
	BytesPerHour    float64 `json:"bytes_per_hour"`
	FullInSeconds   float64 `json:"full_in_seconds"`
	SoonestSeconds  float64 `json:"soonest_seconds"` // the interval of 95 %
	LatestSeconds   float64 `json:"latest_seconds"`  // at most 30 days
	ObservedSeconds float64 `json:"observed_seconds"`
}

// Grows says whether the memory surely grows.
func (f Forecast) Grows() bool { return f.BytesPerHour > 0 }

// String tells a forecast: 1.2GiB an hour, full in about 40 min (30 min to 55 min).
func (f Forecast) String() string {
	if !f.Grows() {
		return "nothing that can be told"
	}
	return fmt.Sprintf("%s an hour, full in about %s (%s to %s)", size.Format(uint64(f.BytesPerHour)), about(f.FullInSeconds), about(f.SoonestSeconds), about(f.LatestSeconds))
}

// foresee tells when free bytes will be used up if memory goes on as it went.
func foresee(points []point, free uint64) Forecast {
	if len(points) < fewestPoints {
		return Forecast{}
	}
	observed := points[len(points)-1].t - points[0].t
	slope, low, high := theilSen(points)
	if observed < shortestTime.Seconds() || low <= 0 || float64(free)/slope > farthest || !still(points, slope) {
		return Forecast{}
	}
	return Forecast{
		BytesPerHour:    slope * hour,
		FullInSeconds:   float64(free) / slope,
		SoonestSeconds:  float64(free) / high,
		LatestSeconds:   min(float64(free)/low, farthest),
		ObservedSeconds: observed,
	}
}

// still says whether points that rose by slope do so to the end.
func still(points []point, slope float64) bool {
	first, third := points[0].t, (points[len(points)-1].t-points[0].t)/3
	var second, last []float64
	for _, p := range points {
		switch {
		case p.t >= first+2*third:
			last = append(last, p.bytes)
		case p.t >= first+third:
			second = append(second, p.bytes)
		}
	}
	return len(second) > 0 && median(last)-median(second) >= slope*third/2
}

func median(values []float64) float64 {
	slices.Sort(values)
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}

// theilSen gives the median slope in bytes a second and its interval. The times
// of the points differ.
func theilSen(points []point) (slope, low, high float64) {
	var slopes []float64
	for i, p := range points {
		for _, q := range points[:i] {
			slopes = append(slopes, (p.bytes-q.bytes)/(p.t-q.t))
		}
	}
	slices.Sort(slopes)
	n, pairs := float64(len(points)), float64(len(slopes))
	half := z * math.Sqrt(n*(n-1)*(2*n+5)/18)
	at := func(rank float64) float64 { return slopes[int(min(max(rank, 0), pairs-1))] }
	return (at((pairs-1)/2) + at(pairs/2)) / 2, at((pairs - half) / 2), at((pairs + half) / 2)
}

// about writes a time for people, in one unit.
func about(seconds float64) string {
	switch {
	case seconds < 90:
		return fmt.Sprintf("%.0f s", seconds)
	case seconds < 100*60:
		return fmt.Sprintf("%.0f min", seconds/60)
	case seconds < 10*hour:
		return fmt.Sprintf("%.1f h", seconds/hour)
	case seconds < 48*hour:
		return fmt.Sprintf("%.0f h", seconds/hour)
	}
	return fmt.Sprintf("%.0f days", seconds/(24*hour))
}
