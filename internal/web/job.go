package web

import (
	"slices"

	"github.com/headroom-go/headroom/inspect"
)

// job is what a page says of the ranks of a job together.
type job struct {
	*inspect.JobReport
	Records []int `json:"records"` // of each rank its record on the page; -1: it has none
}

// mostSpreads is how many parts of the memory a page names that ranks have different
// amounts of.
const mostSpreads = 12

// explainJob explains the first record of each file as a rank. What is said of the job's
// own rank alone stands with its record.
func explainJob(files [][]*Record) *job {
	var ranks []inspect.Member
	for _, f := range files {
		ranks = append(ranks, inspect.Member{Name: f[0].name, History: f[0].h})
	}
	r := inspect.ExplainJob(ranks)
	r.Report = nil
	r.Purposes, r.Sites = r.Purposes[:min(len(r.Purposes), mostSpreads)], r.Sites[:min(len(r.Sites), mostSpreads)]
	return &job{JobReport: r}
}

// show says which records are on the page.
func (j *job) show(files [][]*Record, records []*Record) {
	for _, f := range files {
		j.Records = append(j.Records, slices.Index(records, f[0]))
	}
}
