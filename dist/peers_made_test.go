package dist

import (
	"errors"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/device/devicetest"
)

// TestPeersHalfMade lets the job fail when one rank has its group and another one not
// yet: the one that gets an error does not keep the other one waiting at its End.
func TestPeersHalfMade(t *testing.T) {
	if !devicetest.GPUs() {
		t.Skip("no GPU; the emulated one has several: see CONTRIBUTING.md")
	}
	var gpus [2]*device.CUDADevice
	for i, name := range []string{"cuda:0,64MiB", "cuda:1,64MiB"} {
		d, err := device.Open(name)
		if err != nil {
			t.Skip(err)
		}
		defer d.Close()
		gpus[i] = device.CUDAOf(d)
	}
	groups, made := Local(2, Options{}), make(chan error)
	go func() {
		_, err := NewPeers(groups[0], gpus[0])
		made <- err
	}()
	h := groups[1].(*hostGroup)
	sides, err := meet(h, &side{device: gpus[1], ended: make(chan struct{})})
	if err != nil {
		t.Fatal(err)
	}
	h.wire.(*localWire).job.table("", 2)[1] = &ledger{}
	if err := h.Barrier(); err != nil {
		t.Fatal(err)
	}
	h.Fail(errors.New("no more paper")) // while rank 0 is in its last barrier
	close(sides[1].ended)
	if err := <-made; err == nil || !strings.Contains(err.Error(), "no more paper") {
		t.Errorf("rank 0 gets %v", err)
	}
	select {
	case <-sides[0].ended:
	default:
		t.Error("rank 1 would wait for ever for rank 0 to end")
	}
}
