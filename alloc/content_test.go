package alloc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/device/devicetest"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/trace"
)

const contentCapacity = 32 << 20

// TestContent fills blocks on devices with memory, by the work of streams, and
// finds every live block as it was left while others come and go, are stitched
// and moved.
func TestContent(t *testing.T) {
	t.Run("host", func(t *testing.T) {
		dev, err := device.OpenHost(device.HostOptions{Capacity: contentCapacity})
		if err != nil {
			t.Fatal(err)
		}
		st := fill(t, dev)
		if dev.Info().Virtual && !invariant.Slow && st.Unmaps == 0 {
			t.Errorf("nothing was moved: %+v", st)
		}
	})
	t.Run("shared", func(t *testing.T) {
		dev, err := device.OpenSharedHost(device.HostOptions{Capacity: contentCapacity})
		if errors.Is(err, errors.ErrUnsupported) {
			t.Skipf("this system has no memory that can be mapped twice: %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		if st := fill(t, dev); st.Stitches == 0 || !invariant.Slow && (st.Unmaps == 0 || st.Reuses == 0) {
			t.Errorf("nothing was moved, stitched or used again: %+v", st)
		}
	})
}

// TestContentChosen is TestContent on the device that the flag -device names.
func TestContentChosen(t *testing.T) {
	if devicetest.Chosen() == "" {
		t.Skip("the flag -device names none")
	}
	st := fill(t, devicetest.Open(t, ""))
	t.Logf("%+v", st)
}

// content is a block and what is in it.
type content struct {
	block *Block
	bytes []byte
}

// fill plays a random program of two streams.
func fill(t *testing.T, dev device.Device) Stats {
	a, err := New(dev, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var streams [2]device.Stream
	for i := range streams {
		if streams[i], err = dev.NewStream(); err != nil {
			t.Fatal(err)
		}
	}
	r := rand.New(rand.NewPCG(8, 8))
	var live []content
	text, back := numbers(contentCapacity), make([]byte, contentCapacity)
	sizes := []uint64{1 << 20, 3 << 20, 5 << 19, 9 << 20} // that come again and again
	rounds := 300
	if invariant.Slow { // which takes its time
		rounds = 120
	}
	for i := range rounds {
		s := streams[r.IntN(2)]
		size := 1 + r.Uint64N(6<<20>>r.IntN(10))
		if r.IntN(2) == 0 {
			size = sizes[r.IntN(len(sizes))]
		}
		if len(live) > 0 && r.IntN(9) < 4 {
			j := r.IntN(len(live))
			verify(t, streams[:], back, live[j:j+1])
			live[j].block.Free()
			live = slices.Delete(live, j, j+1)
		} else if b, err := a.Alloc(size, trace.Other, s); err == nil {
			from := r.Uint64N(contentCapacity-size) / 8 * 8
			live = append(live, content{b, text[from : from+size]})
			s.Upload(b.Ptr(), live[len(live)-1].bytes)
		} else if !errors.Is(err, device.ErrOutOfMemory) {
			t.Fatal(err)
		}
		if i%30 == 0 {
			verify(t, streams[:], back, live)
		}
		if i%100 == 99 {
			if _, err := a.Trim(0); err != nil {
				t.Fatal(err)
			}
		}
	}
	verify(t, streams[:], back, live)
	for _, c := range live {
		c.block.Free()
	}
	st := a.Stats()
	if err := errors.Join(a.Check(), a.Close(), dev.Close()); err != nil {
		t.Error(err)
	}
	return st
}

// numbers is bytes of which no eight at a multiple of eight occur twice. Slices
// of it, from different places on, are the content of blocks.
func numbers(size int) []byte {
	p := make([]byte, size)
	for i := 0; i < size; i += 8 {
		binary.LittleEndian.PutUint64(p[i:], uint64(i))
	}
	return p
}

// verify reads blocks back into the buffer.
func verify(t *testing.T, streams []device.Stream, buffer []byte, blocks []content) {
	t.Helper()
	got := make([][]byte, len(blocks))
	for _, s := range streams { // all that was written
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range blocks {
		got[i], buffer = buffer[:len(c.bytes)], buffer[len(c.bytes):]
		streams[i%2].Download(got[i], c.block.Ptr())
	}
	for _, s := range streams {
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range blocks {
		if !bytes.Equal(got[i], c.bytes) {
			t.Fatalf("the block of %d bytes at %#x is not as it was left", len(c.bytes), c.block.Ptr())
		}
	}
}
