package library

import (
	"os"
	"path/filepath"
	"sort"
)

// Candidate is a library to try: its name, and the name or path to open.
type Candidate struct{ Name, Path string }

// Candidates lists what to try for a library with the names, the best first:
// each name as the loader finds it, then in the folders, in their order.
func Candidates(names, folders []string) []Candidate {
	var list []Candidate
	for _, n := range names {
		list = append(list, Candidate{n, n})
	}
	for _, dir := range expand(folders) {
		for _, n := range names {
			path := filepath.Join(dir, n)
			if _, err := os.Stat(path); err == nil {
				list = append(list, Candidate{n, path})
			}
		}
	}
	return list
}

// expand replaces the patterns among folders by the folders that exist, those
// with the greatest names, which have the newest versions, first.
func expand(folders []string) []string {
	var dirs []string
	for _, pattern := range folders {
		found, _ := filepath.Glob(pattern)
		sort.Sort(sort.Reverse(sort.StringSlice(found)))
		dirs = append(dirs, found...)
	}
	return dirs
}
