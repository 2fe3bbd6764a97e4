package web

import "github.com/headroom-go/headroom/inspect"

// meta is what the page knows of a record from the start.
type meta struct {
	Name        string       `json:"name"` // of the file
	Device      int          `json:"device"`
	Settings    string       `json:"settings"` // of the allocator, as recorded; empty: PyTorch's default
	Events      int          `json:"events"`
	Timed       bool         `json:"timed"`
	Duration    int64        `json:"duration"` // microseconds; the number of events where there are no times
	Peak        int          `json:"peak"`     // the moment with most live bytes
	Purposes    []string     `json:"purposes"`
	Sites       []string     `json:"sites"`
	Failures    []failure    `json:"failures"`
	Annotations []annotation `json:"annotations"`
	Live        bool         `json:"live"` // of a job that runs
}

func (r *Record) meta() meta {
	return meta{
		Name: r.name, Device: r.h.Device(), Settings: r.h.Conf.String(),
		Events: r.h.Len(), Timed: r.timed, Duration: r.time(r.h.Len()), Peak: r.h.Peak(),
		Purposes: r.splits[byPurpose].names, Sites: r.splits[bySite].names,
		Failures: r.failures(), Annotations: r.annotations(),
	}
}

// verdict is the text part of the page: what explain and replay say.
type verdict struct {
	Explain *inspect.Report `json:"explain"`
	Replay  *inspect.Result `json:"replay"` // under the recorded settings; nil if that can't be
	Steps   *steps          `json:"steps"`
}

// findings gives what the commands explain and replay say with --json.
func (r *Record) findings() verdict { return verdict{r.verdict(), r.recorded(), r.steps()} }
