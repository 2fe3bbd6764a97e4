package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/internal/kernel"
	"github.com/headroom-go/headroom/internal/size"
)

func doctorCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say which devices, processor features and libraries were found",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			findings, err := examine()
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(findings)
			}
			return writeFindings(newPage(cmd.OutOrStdout()), findings)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	return cmd
}

// finding is one thing that doctor looked for.
type finding struct {
	Part   string `json:"part"`
	Name   string `json:"name"`
	Found  bool   `json:"found"`
	Detail string `json:"detail"`
}

func examine() ([]finding, error) {
	host, err := device.Open("host")
	if err != nil {
		return nil, err
	}
	i := host.Info()
	if err := host.Close(); err != nil {
		return nil, err
	}
	found := []finding{
		{"device", "host", true, fmt.Sprintf("%s available, %d threads", size.Format(i.Capacity), i.Workers)},
		{"device", "null", true, "any size; hands out addresses and computes nothing, for plans"},
		{"memory", "virtual", i.Virtual, fmt.Sprintf("addresses apart from memory, in granules of %s", size.Format(i.Granularity))},
		setting("huge pages", "/sys/kernel/mm/transparent_hugepage/enabled", "madvise or always make large tensors faster"),
		setting("mappings", "/proc/sys/vm/max_map_count", "a quarter of them may hold granules"),
		{"program", "go", true, runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH},
	}
	for _, f := range kernel.Features() {
		found = append(found, finding{"processor", f.Name, f.Found, f.Use})
	}
	found = append(append(found, examineCUDA()...), examineMPI()...)
	if path, err := defaultText(); err != nil {
		found = append(found, finding{"data", "default text", false, err.Error()})
	} else {
		_, err := os.Stat(path)
		found = append(found, finding{"data", "default text", err == nil, path})
	}
	return found, nil
}

// setting is the content of a file of the kernel.
func setting(name, path, why string) finding {
	text, err := os.ReadFile(path)
	if err != nil {
		return finding{"memory", name, false, err.Error()}
	}
	return finding{"memory", name, true, fmt.Sprintf("%s (%s)", strings.TrimSpace(string(text)), why)}
}

func writeFindings(p *page, findings []finding) error {
	var rows [][]string
	for _, f := range findings {
		mark := "no"
		if f.Found {
			mark = "yes"
		}
		rows = append(rows, []string{f.Part, f.Name, mark, f.Detail})
	}
	p.table("lllw", rows...)
	return p.err
}
