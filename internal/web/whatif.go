package web

import (
	"fmt"
	"strings"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/inspect"
)

// Setting is an allocator to try: PyTorch's under settings, or Headroom's.
type Setting struct {
	name string
	o    inspect.Options
}

// ParseSetting reads "headroom", "planned", "recorded" (the recorded settings
// once more), or settings as in PYTORCH_CUDA_ALLOC_CONF.
func ParseSetting(text string) (Setting, error) {
	text = strings.TrimSpace(text)
	switch p := inspect.Policy(text); p {
	case inspect.Headroom, inspect.Planned:
		return Setting{text, inspect.Options{Policy: p}}, nil
	case "recorded":
		return Setting{text, inspect.Options{}}, nil
	case "":
		return Setting{}, fmt.Errorf("no settings to try: give %s, %s, or some such as expandable_segments:True", inspect.Headroom, inspect.Planned)
	}
	conf, err := inspect.ParseConf(text)
	return Setting{text, inspect.Options{Conf: &conf}}, err
}

// otherSettings are what is tried where nobody says what: expandable segments
// on or off, whichever was not recorded, and Headroom's allocator.
func (r *Record) otherSettings() []Setting {
	conf := r.h.Conf
	conf.Expandable = !conf.Expandable
	name := map[bool]string{true: "expandable_segments:True", false: "expandable_segments:False"}[conf.Expandable]
	return []Setting{{name, inspect.Options{Conf: &conf}}, {string(inspect.Headroom), inspect.Options{Policy: inspect.Headroom}}}
}

// WhatIf is what another allocator would have reserved.
type WhatIf struct {
	Name   string          `json:"name"`
	Result *inspect.Result `json:"result"`
	// Reserved is the most of each span of Size moments, as far as the replay
	// went.
	Size     int      `json:"size"`
	Reserved []uint64 `json:"reserved"`
}

// whatIfBins is how many spans of moments such a curve has at most.
const whatIfBins = 1 << 11

// WhatIf replays the record.
func (r *Record) WhatIf(s Setting) (*WhatIf, error) {
	w := &WhatIf{Name: s.name, Size: (r.moments() + whatIfBins - 1) / whatIfBins, Reserved: []uint64{}}
	s.o.Observe = func(event int, now alloc.Stats) {
		bin := (event + 1) / w.Size
		for len(w.Reserved) <= bin {
			w.Reserved = append(w.Reserved, now.Reserved)
		}
		w.Reserved[bin] = max(w.Reserved[bin], now.Reserved)
	}
	var err error
	w.Result, err = r.h.Replay(s.o)
	return w, err
}
