package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/watch"
)

var update = flag.Bool("update", false, "rewrite the generated documents")

// TestGeneratedDocs compares the pages in docs/ that come from the program
// with what the program says now.
func TestGeneratedDocs(t *testing.T) {
	for name, text := range map[string]string{"commands.md": commandsPage(t), "statistics.md": statisticsPage(), "verdicts.md": verdictsPage(), "metrics.md": metricsPage()} {
		path := filepath.Join("../../docs", name)
		if *update {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		have, err := os.ReadFile(path)
		if err != nil || string(have) != text {
			t.Errorf("docs/%s is not what the program says (%v): go test ./cmd/headroom -run GeneratedDocs -update", name, err)
		}
	}
}

func commandsPage(t *testing.T) string {
	var b strings.Builder
	b.WriteString("# Commands\n\nWhat `--help` says. Sizes are written like `256MiB` or `1.5GiB`; `24G` and `24Gi` are `24GiB`, `24GB` is 24·10⁹ bytes.\n")
	for _, command := range []string{"train", "launch", "lend", "generate", "plan", "explain", "replay", "diff", "check", "report", "serve", "watch", "doctor"} {
		status, help, stderr := headroom(command, "--help")
		if status != 0 {
			t.Fatal(stderr)
		}
		fmt.Fprintf(&b, "\n## headroom %s\n\n```\n%s```\n", command, help)
	}
	return b.String()
}

func verdictsPage() string {
	var b strings.Builder
	b.WriteString("# Verdicts\n\nWhat `headroom explain` says, and what it means.\n\n| verdict | meaning |\n|---|---|\n")
	for _, v := range inspect.Verdicts() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", v.Verdict, v.Meaning)
	}
	return b.String()
}

func statisticsPage() string {
	var b strings.Builder
	b.WriteString("# Statistics of the allocator\n\nWhat `alloc.Stats` counts. The words are those of DESIGN.md.\n\n| name | meaning |\n|---|---|\n")
	for _, s := range (alloc.Stats{}).Table() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", s.Name, s.Doc)
	}
	return b.String()
}

func metricsPage() string {
	var b strings.Builder
	b.WriteString("# Metrics\n\nWhat `headroom watch --serve` serves on `/metrics`.\n\n| name | type | labels | meaning |\n|---|---|---|---|\n")
	for _, m := range watch.Metrics() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, m.Type, m.Labels, m.Help)
	}
	return b.String()
}
