package alloc

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/headroom-go/headroom/device"
)

// TestCompactEmptiesPages leaves one block in each of eight pages: they fit
// into one.
func TestCompactEmptiesPages(t *testing.T) {
	dev := newLagging(t, device.NullOptions{Capacity: 64 * mib, Virtual: true, Granularity: 2 * mib})
	a, err := New(dev, Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, _ := dev.NewStream()
	var kept []*Block
	for i := range 64 {
		b := mustAlloc(t, a, mib/4, s)
		if i%8 == 3 {
			kept = append(kept, b)
		} else {
			defer b.Free()
		}
	}
	if moves := a.Compact(kept); len(moves) > 0 {
		t.Errorf("%d moves although there is nowhere to go", len(moves))
	}
}

// TestCompactKeepsContent compacts random blocks on the host device; half of
// them may move.
func TestCompactKeepsContent(t *testing.T) {
	dev, err := device.OpenHost(device.HostOptions{Capacity: 64 * mib})
	if err != nil {
		t.Fatal(err)
	}
	if !dev.Info().Virtual {
		t.Skip("this build's host has no virtual memory: no block can move")
	}
	a, err := New(dev, Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	content := map[*Block][]byte{}
	for range 400 {
		b := mustAlloc(t, a, 65*1024+r.Uint64N(300*1024), s)
		content[b] = make([]byte, b.Size())
		for i := range content[b] {
			content[b][i] = byte(r.Uint32())
		}
		s.Upload(b.Ptr(), content[b])
		if len(content) > 60 {
			for b := range content { // any of them
				b.Free()
				delete(content, b)
				break
			}
		}
	}
	for b := range content {
		if r.IntN(3) > 0 {
			b.Free()
			delete(content, b)
		}
	}
	var movable []*Block
	for b := range content {
		if len(movable) < len(content)*3/4 {
			movable = append(movable, b)
		}
	}
	if _, err := a.Trim(0); err != nil {
		t.Fatal(err)
	}
	before := a.Stats()
	moves := a.Compact(movable)
	for _, m := range moves {
		content[m.To] = content[m.From]
		delete(content, m.From)
	}
	if err := a.Check(); err != nil {
		t.Fatal(err)
	}
	freed, err := a.Trim(0)
	if err != nil || len(moves) == 0 || freed == 0 || a.Stats().Live != before.Live {
		t.Errorf("%d moves freed %d bytes, %v; live is %d, was %d", len(moves), freed, err, a.Stats().Live, before.Live)
	}
	for b, want := range content {
		got := make([]byte, b.Size())
		s.Download(got, b.Ptr())
		if err := s.Sync(); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("block %#x of %d bytes has changed, %v", b.Ptr(), b.Size(), err)
		}
		b.Free()
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestCompactUntilTwoPages frees seven of eight blocks in each page.
func TestCompactUntilTwoPages(t *testing.T) {
	dev := newLagging(t, device.NullOptions{Capacity: 64 * mib, Virtual: true, Granularity: 2 * mib})
	a, err := New(dev, Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, _ := dev.NewStream()
	var kept, gone []*Block
	for i := range 64 {
		b := mustAlloc(t, a, mib/4, s)
		if i%8 == 3 || i == 12 {
			kept = append(kept, b)
		} else {
			gone = append(gone, b)
		}
	}
	for _, b := range gone {
		b.Free()
	}
	moves := a.Compact(kept)
	freed, err := a.Trim(0)
	if err != nil || freed != 6*2*mib || a.Stats().Live != 9*mib/4 {
		t.Errorf("%d moves freed %d bytes, %v", len(moves), freed, err)
	}
}
