package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/internal/size"
)

// ranksIn gives the files of a job's ranks: several that are named, or those of a
// folder, which may hold but one. Nil where the first is no file, or the only one.
func ranksIn(args []string) ([]string, error) {
	info, err := os.Stat(args[0])
	switch {
	case err != nil:
		return nil, nil
	case info.IsDir() && len(args) == 1:
		return filesIn(args[0])
	case info.IsDir():
		return nil, usagef("name one folder, or several files")
	case len(args) == 1:
		return nil, nil
	}
	return args, nil
}

// filesIn gives the snapshots in a folder, by their names, in the order of their
// numbers. It fails where there is none.
func filesIn(folder string) ([]string, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if name := e.Name(); e.Type().IsRegular() && (strings.Contains(name, ".pickle") || strings.Contains(name, ".pkl")) {
			files = append(files, filepath.Join(folder, e.Name()))
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("the folder %s holds no snapshot: no file has .pickle or .pkl in its name", folder)
	}
	slices.SortFunc(files, byNumbers)
	return files, nil
}

var digits = regexp.MustCompile(`[0-9]+`)

// byNumbers orders names by the numbers in them, so that rank10 comes after rank9.
func byNumbers(a, b string) int {
	numbers := func(name string) (all []int) {
		for _, d := range digits.FindAllString(filepath.Base(name), -1) {
			n, _ := strconv.Atoi(d)
			all = append(all, n)
		}
		return all
	}
	return cmp.Or(slices.Compare(numbers(a), numbers(b)), cmp.Compare(a, b))
}

// amongRanks says of a file that can't be read how to go on without it.
func amongRanks(files []string, err error) error {
	if len(files) < 2 {
		return err
	}
	return fmt.Errorf("%w: to go on without it, name the files of the other ranks", err)
}

// explainJob explains the ranks of a job together.
func (e *explainer) explainJob(w io.Writer, files []string) error {
	if e.exports != (exports{}) {
		return usagef("--pprof, --perfetto and --svg are of one snapshot, and these are %d", len(files))
	}
	var ranks []inspect.Member
	for i, path := range files {
		if at := slices.IndexFunc(files[:i], func(other string) bool { return sameFile(path, other) }); at >= 0 {
			return usagef("%s and %s are one file: name each rank's once", files[at], path)
		}
		s, err := readSnapshot(path, e.stdin, e.stderr)
		if err != nil {
			return amongRanks(files, err)
		}
		h, err := e.gpu.choose(s)
		if err != nil {
			return naming(path, err)
		}
		ranks = append(ranks, inspect.Member{Name: nameOf(path), History: h})
	}
	r := inspect.ExplainJob(ranks)
	if e.json {
		return e.failing(r.Verdict, json.NewEncoder(w).Encode(r))
	}
	return e.failing(r.Verdict, writeJob(newPage(w), r))
}

// writeJob prints a job's report for people.
func writeJob(p *page, r *inspect.JobReport) error {
	s := bad
	if r.Verdict == inspect.Healthy {
		s = good
	}
	p.line(s, "%s  %s", r.Verdict, r.Summary)
	p.title(fmt.Sprintf("ranks (the most that is live on one is %.2f times the mean)", r.Imbalance))
	rows := [][]string{{"", "rank", "live", "reserved", "free of it", "verdict", "", ""}}
	for i, k := range r.Ranks {
		mark := ""
		if k.RanOut {
			mark = "ran out"
		}
		rows = append(rows, []string{"", fmt.Sprint(i), size.Format(k.LiveBytes), size.Format(k.ReservedBytes), size.Format(k.CachedBytes), string(k.Verdict), mark, placed(k)})
	}
	p.table("lrrrrlll", rows...)
	writeSpreads(p, "what differs, by purpose", r.Purposes)
	writeSpreads(p, "what differs, by call site", r.Sites)
	writeList(p, "what to do", r.Actions)
	p.line(plain, "")
	return p.err
}

// placed is the name of a rank with its place in the job, if that is known.
func placed(k inspect.RankFigures) string {
	if k.Place == "" {
		return k.Name
	}
	return k.Name + " (" + k.Place + ")"
}

// writeSpreads shows between what ranks the largest differences are.
func writeSpreads(p *page, title string, all []inspect.Spread) {
	const most = 6
	if len(all) == 0 {
		return
	}
	p.title(title)
	rows := [][]string{{"", "least", "rank", "most", "rank", ""}}
	for _, s := range all[:min(len(all), most)] {
		least, top := slices.Index(s.Bytes, slices.Min(s.Bytes)), slices.Index(s.Bytes, slices.Max(s.Bytes))
		rows = append(rows, []string{"", size.Format(s.Bytes[least]), fmt.Sprint(least), size.Format(s.Bytes[top]), fmt.Sprint(top),
			fmt.Sprintf("%s, %d to %d blocks", s.What, slices.Min(s.Counts), slices.Max(s.Counts))})
	}
	p.table("lrrrrw", rows...)
}
