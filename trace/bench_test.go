package trace

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"testing"
)

// synthetic gives the tree of a snapshot with n events as PyTorch makes them:
// of 60 stacks, each allocation and the request to free it with a list of
// their own of shared frames.
func synthetic(n int) any {
	var frames, lists []any
	for i := range 90 {
		frames = append(frames, &shared{pairs{"name", fmt.Sprint("function_", i), "filename", fmt.Sprint("/usr/lib/python3/site-packages/torch/file_", i%30, ".py"), "line", 10 * i}})
	}
	for i := range 60 {
		var list items
		for j := range 4 + i%12 {
			list = append(list, frames[(i*7+j*3)%len(frames)])
		}
		lists = append(lists, list)
	}
	var request *shared
	at := func(i int) any {
		addr, which := uint64(1)<<46+uint64(i/3%5000)<<12, i/3%len(lists)
		e := pairs{"action", actionNames[i%3], "addr", addr, "size", 512 + i%100000, "stream", 0, "time_us", int64(1795970916755653 + i), "compile_context", "N/A", "user_metadata", ""}
		switch i % 3 {
		case 0:
			return append(e, "frames", lists[which])
		case 1:
			request = &shared{lists[len(lists)-1-which]}
		}
		return append(e, "frames", request)
	}
	return pairs{"segments", items{}, "device_traces", items{series{n, at}}, "external_annotations", items{}}
}

var (
	syntheticFile   = flag.String("synthetic", "", "write a synthetic snapshot to this file, to measure with")
	syntheticEvents = flag.Int("events", 100_000, "events of the synthetic snapshot; a million take 100 MB")
	syntheticCPP    = flag.Bool("cpp", false, "write the synthetic snapshot as PyTorch's C++ does")
)

// TestWriteSynthetic writes a file on demand.
func TestWriteSynthetic(t *testing.T) {
	if *syntheticFile == "" {
		t.Skip("no -synthetic")
	}
	f, err := os.Create(*syntheticFile)
	if err != nil {
		t.Fatal(err)
	}
	s := styles[2]
	if *syntheticCPP {
		s = styles[4]
	}
	if err := assembleTo(f, s, synthetic(*syntheticEvents)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkRead(b *testing.B) {
	for _, s := range []style{styles[2], styles[4]} {
		b.Run(s.String(), func(b *testing.B) {
			file := assemble(s, synthetic(100_000))
			b.SetBytes(int64(len(file)))
			b.ReportAllocs()
			for b.Loop() {
				if got, err := Read(bytes.NewReader(file)); err != nil || got.Traces[0].Len() != 100_000 {
					b.Fatal(err)
				}
			}
		})
	}
}
