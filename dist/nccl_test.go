package dist

import (
	"bytes"
	"sync"
	"testing"
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
