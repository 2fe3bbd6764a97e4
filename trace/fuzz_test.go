package trace

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"testing"
)

// seeds gives small files of all kinds.
func seeds(f *testing.F) {
	for _, file := range [][]byte{pickled(f, small()), jsonLines(f, small()), gzipped(f, pickled(f, small())), zstandard(f, pickled(f, small())), []byte(kinetoFile), written(f, jaxProfile()),
		[]byte(`[[-1, 1, 1000, 0], [5000, 2, 600, 3], [6000, 4, -600, 3]]`), []byte("<html>"), {}} {
		f.Add(file)
	}
	for i, s := range styles {
		for a := range ages {
			p := planter{age: a, r: rand.New(rand.NewPCG(uint64(i), uint64(a))), frames: map[Frame]*shared{}, lists: map[*Stack]*shared{}}
			f.Add(assemble(s, p.tree(small().degrade(a))))
		}
	}
	for code := range opcodes {
		f.Add([]byte("\x80\x04}\x8c\x08segments](K\x07\x8c\x01a]" + string([]byte{byte(code)}) + "\x01\x00\x00\x00\x00\x00\x00\x00es."))
	}
}

// FuzzRead reads anything: no panic, no more memory than the input explains,
// and what was read can be written and read again.
func FuzzRead(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, file []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		s, err := Read(bytes.NewReader(file))
		runtime.ReadMemStats(&after)
		const fixed, perByte = 64 << 20, 400
		if used := after.TotalAlloc - before.TotalAlloc; bytes.HasPrefix(file, []byte{opProto}) && used > fixed+perByte*uint64(len(file)) {
			t.Errorf("%d bytes of memory for a file of %d", used, len(file))
		}
		if (s == nil) == (err == nil) {
			t.Fatalf("snapshot %v and error %v", s, err)
		}
		if s == nil {
			return
		}
		valid(t, s)
		s.Cut, s.NoAddresses = nil, false // pickles do not say it
		again := mustRead(t, "written again", pickled(t, s))
		equal(t, "written again", again, s)
		equal(t, "written as JSON lines", mustRead(t, "JSON lines", jsonLines(t, s)), s)
	})
}

// valid checks what a reader of a snapshot may rely on.
func valid(t *testing.T, s *Snapshot) {
	t.Helper()
	for _, g := range s.Segments {
		for _, b := range g.Blocks {
			if b.State > Free || b.State == Free && b.Requested != 0 || int(b.Purpose) >= NumPurposes {
				t.Fatalf("block %+v", b)
			}
		}
	}
	for _, tr := range s.Traces {
		for i, e := range tr.All() {
			if e.Action > Unknown || int(e.Purpose) >= NumPurposes || e.PCs != nil || e.Stack != nil && len(e.Stack.Frames()) == 0 {
				t.Fatalf("event %d: %+v", i, e)
			}
		}
	}
}
