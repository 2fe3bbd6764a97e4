package alloc

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/trace"
)

// TestManyStreams lets eight goroutines with four streams each do everything
// at once.
func TestManyStreams(t *testing.T) {
	open := map[string]func() (device.Device, error){
		"null": func() (device.Device, error) {
			return device.OpenNull(device.NullOptions{Capacity: 32 << 20, Virtual: true, Alias: true, Granularity: 256 << 10})
		},
		"host":   func() (device.Device, error) { return device.OpenHost(device.HostOptions{Capacity: 32 << 20}) },
		"shared": func() (device.Device, error) { return device.OpenSharedHost(device.HostOptions{Capacity: 32 << 20}) },
	}
	for name, open := range open {
		t.Run(name, func(t *testing.T) {
			dev, err := open()
			if errors.Is(err, errors.ErrUnsupported) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			a, err := New(dev, Options{Sink: trace.NewRecorder(1000)})
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for i := range uint64(8) {
				var streams [4]device.Stream
				for j := range streams {
					if streams[j], err = dev.NewStream(); err != nil {
						t.Fatal(err)
					}
				}
				wg.Go(func() { bustle(t, a, streams[:], i) })
			}
			wg.Wait()
			st := a.Stats()
			if st.Live != 0 || st.Allocs != st.Frees || name == "null" && st.Stitches == 0 {
				t.Errorf("at the end %+v", st)
			}
			if err := errors.Join(a.Check(), a.Close(), dev.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}

// bustle allocates, works, hands over from stream to stream, frees, trims and
// reads figures.
func bustle(t *testing.T, a *Allocator, streams []device.Stream, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 3))
	var live []content
	written := make([]device.Event, 0, 8)
	pool := a.NewPool(PoolOptions{})
	text := numbers(1 << 20)[seed<<16:] // of which nobody else writes
	for range 80 {
		s := streams[r.IntN(len(streams))]
		switch n := r.IntN(20); {
		case n < 10 && len(live) < 6:
			size := 1 + r.Uint64N(2<<20>>r.IntN(8))
			give := a.Alloc
			if n == 0 {
				give = pool.Alloc
			}
			b, err := give(size, trace.Input, s)
			if errors.Is(err, device.ErrOutOfMemory) {
				continue
			}
			if err != nil {
				t.Error(err)
				return
			}
			c := content{b, text[:min(size, 64)]}
			text = text[64:]
			s.Upload(b.Ptr(), c.bytes)
			live, written = append(live, c), append(written, s.Record())
		case n < 17 && len(live) > 0: // another stream reads it, then it is freed
			j := r.IntN(len(live))
			got := make([]byte, len(live[j].bytes))
			live[j].block.Use(s)
			s.Wait(written[j])
			s.Download(got, live[j].block.Ptr())
			done := s.Record()
			live[j].block.Free()
			done.Sync()
			if a.Device().Info().Kind == device.Host && !slices.Equal(got, live[j].bytes) {
				t.Errorf("stream %d reads %v, want %v: the block was another one's as well", s.ID(), got, live[j].bytes)
			}
			live, written = slices.Delete(live, j, j+1), slices.Delete(written, j, j+1)
		case n == 17:
			if _, err := a.Trim(a.Stats().Reserved / 2); err != nil {
				t.Error(err)
			}
		case n == 18:
			if err := a.Check(); err != nil {
				t.Error(err)
			}
			a.Segments()
		}
	}
	for _, c := range live {
		c.block.Free()
	}
	pool.Destroy()
}
