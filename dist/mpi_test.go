package dist_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/dist/disttest"
)

// TestMPI runs the suite over MPI between goroutines.
func TestMPI(t *testing.T) {
	ranks := dist.FakeMPI(4)
	port := 0
	disttest.Run(t, func(t *testing.T, size int, o dist.Options) []dist.Group {
		port++
		return joinMPI(t, ranks[:size], port, dist.JoinOptions{Options: o, Arrival: 20 * time.Second})
	})
	closeMPI(t, ranks)
}

func closeMPI(t *testing.T, ranks []*dist.MPI) {
	for r, m := range ranks {
		if err := m.Close(true); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// joinMPI joins a job with all its ranks in this process, where 0 listens at a
// port.
func joinMPI(t testing.TB, ranks []*dist.MPI, port int, o dist.JoinOptions) []dist.Group {
	t.Helper()
	o.Address = fmt.Sprintf("0:%d", port)
	return joinEach(t, len(ranks), o, func(r int, o *dist.JoinOptions) { o.MPI = ranks[r] })
}

// TestMPIBreaks lets the library of one of two ranks fail at one of its calls:
// both get an error or the right sum, and none waits.
func TestMPIBreaks(t *testing.T) {
	failed := make([]bool, 60)
	var ended sync.WaitGroup
	sum := func(n int, silence time.Duration) {
		for r, m := range dist.FakeMPI(2, 0, n) {
			ended.Go(func() {
				if err := sumOver(m, r, silence); r == 1 {
					failed[n] = err != nil
				}
			})
		}
	}
	sum(0, time.Minute) // nobody is silent, but a busy machine may be slow
	ended.Wait()
	for n := 3; n < len(failed); n += 3 {
		sum(n, 3*time.Second)
	}
	ended.Wait()
	if failed[0] || !failed[3] || !failed[6] || !failed[9] {
		t.Errorf("an error where the library failed at its call number 0 (never), 1, …: %v", failed)
	}
}

// sumOver sums numbers over two ranks, and closes all.
func sumOver(m *dist.MPI, rank int, silence time.Duration) error {
	g, err := dist.Join(context.Background(), dist.JoinOptions{Rank: rank, Size: 2, MPI: m, Address: "0:1", Arrival: silence, Silence: silence})
	if err != nil {
		m.Close(false)
		return err
	}
	dev, err := device.OpenHost(device.HostOptions{Capacity: 4 << 20, Workers: 1})
	if err != nil {
		return err
	}
	defer dev.Close()
	s, err := dev.NewStream()
	if err != nil {
		return err
	}
	const n = 100_000
	p, err := dev.Alloc(4 * n)
	if err != nil {
		return err
	}
	defer dev.Free(p)
	for i := range n {
		device.Int32s(p, n)[i] = int32(i + rank)
	}
	g.AllReduce(s, dist.Sum, dist.Buf{Ptr: p, Len: n, Type: device.Int32})
	err = s.Close()
	for i := 0; i < n && err == nil; i++ {
		if x := device.Int32s(p, n)[i]; int(x) != 2*i+1 {
			panic(fmt.Sprintf("element %d is %d", i, x))
		}
	}
	if failed := g.Close(); err == nil {
		err = failed
	}
	if failed := m.Close(err == nil); err == nil {
		err = failed
	}
	return err
}

// TestMPIAddresses refuses what is no place to listen at or connect to.
func TestMPIAddresses(t *testing.T) {
	ranks := dist.FakeMPI(2)
	for _, address := range []string{"", "1:1", "0:5000", "0:-1", "x:1", "0:x"} {
		_, err := dist.Join(context.Background(), dist.JoinOptions{Size: 2, MPI: ranks[0], Address: address, Arrival: time.Second})
		if err == nil || !strings.Contains(err.Error(), "could not join") {
			t.Errorf("address %q: %v", address, err)
		}
	}
	closeMPI(t, ranks)
}
