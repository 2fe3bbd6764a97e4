package dist

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/headroom-go/headroom/internal/cuda"
)

// TestTell copies an id of NCCL's from rank 0 to all.
func TestTell(t *testing.T) {
	want := bytes.Repeat([]byte{1, 2, 3, 4}, 32)
	var ended sync.WaitGroup
	for _, g := range Local(3, Options{}) {
		ended.Go(func() {
			id := make([]byte, len(want))
			if g.Rank() == 0 {
				copy(id, want)
			}
			if err := tell(g, id); err != nil || !bytes.Equal(id, want) {
				t.Errorf("rank %d has %v, error %v", g.Rank(), id, err)
			}
		})
	}
	ended.Wait()
}

// TestNCCLBeginsAnew: where an attempt is abandoned, every rank aborts its
// communicators, once, and makes new ones before the next attempt; else none.
func TestNCCLBeginsAnew(t *testing.T) {
	var ended sync.WaitGroup
	for _, base := range Local(3, Options{}) {
		ended.Go(func() {
			var mu sync.Mutex
			var calls []string
			lib := cuda.FakeNCCL(func(symbol string, args []uintptr) uintptr {
				mu.Lock()
				defer mu.Unlock()
				if name, ok := strings.CutPrefix(symbol, "ncclComm"); ok {
					calls = append(calls, name)
				}
				return 0
			})
			driver, err := cuda.FakeDriver(func(string, []uintptr) uintptr { return 0 })
			if err != nil {
				t.Error(err)
				return
			}
			context, err := driver.Retain(0)
			if err != nil {
				t.Error(err)
				return
			}
			g, err := newNCCL(base, lib, context)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := g.Sub("reversed", 2, 1, 0); err != nil {
				t.Error(err)
			}
			for attempt := range 3 {
				if err := g.Attempt(); err != nil {
					t.Error(err)
				}
				if attempt == 1 && g.Rank() == 1 {
					g.Abandon(errors.New("no more paper"))
				}
				if err := g.Barrier(); (err != nil) != (attempt == 1) {
					t.Errorf("rank %d, attempt %d: %v", g.Rank(), attempt, err)
				}
			}
			if err := errors.Join(g.End(), g.Close()); err != nil {
				t.Error(err)
			}
			counts := map[string]int{}
			for _, c := range calls {
				counts[c]++
			}
			if want := "InitRankScalable"; counts[want] != 4 || counts["Abort"] != 2 || counts["Destroy"] != 2 || !slices.Equal(calls[:2], []string{want, want}) {
				t.Errorf("rank %d called %v", g.Rank(), calls)
			}
		})
	}
	ended.Wait()
}
