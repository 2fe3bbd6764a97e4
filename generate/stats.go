package generate

// Stats are the figures of an engine. Bytes are those of pages.
type Stats struct {
	Requests     int `json:"requests"`         // that were added
	PromptTokens int `json:"prompt_tokens"`    // of all requests
	HitTokens    int `json:"hit_tokens"`       // whose keys and values were found in the tree
	Computed     int `json:"computed_tokens"`  // that went through the model, those after a preemption again
	Generated    int `json:"generated_tokens"` // that came
	Preemptions  int `json:"preemptions"`      // times that a text lost its pages
	Evictions    int `json:"evictions"`        // idle pages that were freed for others

	Waiting     int `json:"waiting"` // texts now
	Running     int `json:"running"`
	MostRunning int `json:"most_running"` // at a time

	PageBytes  uint64 `json:"page_bytes"`  // of one page
	LimitBytes uint64 `json:"limit_bytes"` // of all pages at most
	Now        Usage  `json:"now"`
	Peak       Usage  `json:"peak"` // when UsedBytes was greatest
}

// Usage is what the pages are used for at one moment.
type Usage struct {
	UsedBytes   uint64 `json:"used_bytes"`   // of pages that texts use, each counted once
	IdleBytes   uint64 `json:"idle_bytes"`   // of pages kept for texts to come
	SharedBytes uint64 `json:"shared_bytes"` // that a page for each user would take beyond UsedBytes
	WasteBytes  uint64 `json:"waste_bytes"`  // of UsedBytes, for tokens that have not come yet
}

// Stats gives the figures of this moment.
func (e *Engine) Stats() Stats {
	s := e.stats
	s.Evictions = e.pages.evicted
	s.Waiting, s.Running = len(e.waiting), len(e.running)
	s.PageBytes = e.pages.layout.Bytes()
	s.LimitBytes = uint64(e.pages.limit) * s.PageBytes
	s.Now = e.usage()
	return s
}

// usage counts. A text's last page is its own if it has room left.
func (e *Engine) usage() Usage {
	size, users, slots := e.pages.layout.Bytes(), 0, 0
	for _, t := range e.running {
		users += len(t.pages)
		slots += len(t.pages)*e.o.PageTokens - t.done
	}
	used := e.pages.held - e.pages.idle.Len()
	return Usage{UsedBytes: uint64(used) * size, IdleBytes: uint64(e.pages.idle.Len()) * size,
		SharedBytes: uint64(users-used) * size, WasteBytes: uint64(slots) * size / uint64(e.o.PageTokens)}
}

// note keeps what was greatest. It is called at the end of a step, before any
// page is given back.
func (s *Stats) note(e *Engine) {
	s.MostRunning = max(s.MostRunning, len(e.running))
	if u := e.usage(); u.UsedBytes >= s.Peak.UsedBytes {
		s.Peak = u
	}
}
