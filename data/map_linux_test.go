package data

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// resident is the memory of this process, in bytes, by a name of
// /proc/self/status.
func resident(t testing.TB, name string) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		var kb int
		if n, _ := fmt.Sscanf(line, name+": %d kB", &kb); n == 1 {
			return kb << 10
		}
	}
	t.Fatalf("no %s in the status", name)
	return 0
}

// TestMemoryOfLargeFile goes through half a gigabyte of a file of 20 GB: the
// process's memory hardly grows. (The file is sparse.)
func TestMemoryOfLargeFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const size = 20e9
	if err := f.Truncate(size); err != nil {
		t.Skipf("NOT TESTED: no sparse files: %v", err)
	}
	const seq, batches = 1024, 1000 // of 64 windows of 2 KiB
	b := newBatches(t, openCorpus(t, path, Uint16, gpt2Tokenizer()), 64, seq, 1)
	runtime.GC()
	before, most := resident(t, "VmRSS"), 0
	inputs, targets := make([]int32, 64*seq), make([]int32, 64*seq)
	for range batches / 4 {
		for range 4 {
			if err := b.Next(inputs, targets); err != nil {
				t.Fatal(err)
			}
		}
		most = max(most, resident(t, "VmRSS")-before)
	}
	if limit := 64 << 20; most > limit {
		t.Errorf("%d MiB more in memory, want at most %d", most>>20, limit>>20)
	}
	t.Logf("%d windows, at most %d MiB more in memory, %d MiB in all", 64*batches, most>>20, resident(t, "VmHWM")>>20)
}
