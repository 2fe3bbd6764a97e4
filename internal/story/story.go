// Package story plays stories as tests: text files of commands and of what they print.
package story

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Command carries out the words of a line and writes what comes of it.
type Command func(out *strings.Builder, words []string)

// Play plays the files that match a pattern, each as a subtest. A file is a
// list of paragraphs with empty lines between them, each of commands, a line of
// four dashes and what they print; lines that begin with # are comments. begin
// starts a file. With update the files are rewritten.
func Play(t *testing.T, pattern string, update bool, begin func(t *testing.T) Command) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories %s: %v", pattern, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { play(t, file, update, begin(t)) })
	}
}

func play(t *testing.T, file string, update bool, do Command) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var played []string
	for paragraph := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
		commands, _, _ := strings.Cut(paragraph, "\n----")
		var out strings.Builder
		for line := range strings.SplitSeq(commands, "\n") {
			if line != "" && !strings.HasPrefix(line, "#") {
				do(&out, strings.Fields(line))
			}
		}
		played = append(played, strings.TrimRight(commands+"\n----\n"+out.String(), "\n"))
	}
	got := strings.Join(played, "\n\n") + "\n"
	if update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got != string(text) {
		t.Errorf("%s: now it goes\n%s", file, got)
	}
}
