package dist_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/device/devicetest"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/dist/disttest"
)

// TestPeers runs the suite where -device names a GPU, on all there are: with the slots
// that there are, and with slots that hold a small part of what is passed.
func TestPeers(t *testing.T) {
	needGPUs(t)
	gpus := 0
	for ; ; gpus++ {
		d, err := device.Open(fmt.Sprintf("cuda:%d,64MiB", gpus))
		if err != nil {
			break
		}
		d.Close()
	}
	for name, slot := range map[string]int{"whole": dist.InboxBytes, "in packets": 2048} {
		t.Run(name, func(t *testing.T) {
			disttest.RunPeers(t, gpus, func(p *dist.Peers) { dist.LimitSlots(p, slot) })
		})
	}
}

func needGPUs(t *testing.T) {
	if !devicetest.GPUs() {
		t.Skip("no GPU; the emulated one has several: see CONTRIBUTING.md")
	}
}

// TestPeersBehind lets a rank abandon an attempt to which the other one has not come,
// after it sent more than the slots hold: what the other one has not yet read of the
// attempt before stays as it was.
func TestPeersBehind(t *testing.T) {
	needGPUs(t)
	abandoned := make(chan struct{})
	onPair(t, 1, func(p *dist.Peers, dev device.Device) error {
		s, errStream := dev.NewStream()
		ptr, errPtr := dev.Alloc(4)
		if err := errors.Join(errStream, errPtr); err != nil {
			return err
		}
		x := []int32{0}
		pass := func() {
			s.Upload(ptr, device.BytesOf(x))
			p.Broadcast(s, 1, dist.Buf{Ptr: ptr, Len: 1, Type: device.Int32})
			s.Download(device.BytesOf(x), ptr)
		}
		end := s.Clear
		if p.Rank() == 0 {
			<-abandoned
			pass()
			if err := errors.Join(s.Sync(), p.Attempt()); err != nil || x[0] != 7 {
				t.Errorf("rank 0 reads %d in the attempt that nobody abandoned, want 7: %v", x[0], err)
			}
		} else {
			x[0] = 7
			pass()
			if err := errors.Join(s.Sync(), p.Attempt()); err != nil {
				return err
			}
			for x[0] = range int32(4) {
				pass()
			}
			p.Abandon(errors.New("no more paper"))
			through := make(chan struct{})
			end = func() { <-through }
			go func() { s.Clear(); close(through) }()
			select {
			case <-through:
			case <-time.After(20 * time.Millisecond): // it waits for rank 0
			}
			close(abandoned)
		}
		end()
		return errors.Join(p.Attempt(), p.Barrier(), s.Close(), dev.Free(ptr))
	})
}

// TestPeersRefused: ranks on the same GPU are told so, both of them.
func TestPeersRefused(t *testing.T) {
	needGPUs(t)
	onPair(t, 0, nil)
}

// onPair runs f on two ranks, on GPU 0 and on the second one; nil where they can't be
// a group.
func onPair(t *testing.T, second int, f func(p *dist.Peers, dev device.Device) error) {
	var ended sync.WaitGroup
	for i, g := range dist.Local(2, dist.Options{}) {
		ended.Go(func() {
			dev, err := device.Open(fmt.Sprintf("cuda:%d,64MiB", i*second))
			if err != nil {
				t.Error(err)
				return
			}
			p, err := dist.NewPeers(g, device.CUDAOf(dev))
			switch {
			case f != nil && err == nil:
				if err = f(p, dev); err != nil {
					p.Fail(err)
				}
				err = errors.Join(err, p.End())
			case f == nil && err != nil && strings.Contains(err.Error(), "writes no memory of"):
				err = nil
			case err == nil:
				err = errors.New("it is a group with itself")
			}
			if err := errors.Join(err, dev.Close()); err != nil {
				t.Errorf("rank %d: %v", i, err)
			}
		})
	}
	ended.Wait()
}
