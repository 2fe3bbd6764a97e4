//go:build linux && (amd64 || arm64) && !nocuda

package library

import (
	"strings"
	"sync"
	"testing"
)

// TestReasonIsKept: why a library can't be opened is told also where many threads
// try at a time.
func TestReasonIsKept(t *testing.T) {
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for range 200 {
				if _, err := Open([]string{"libnowhere.so.9"}, nil, nil); !strings.HasPrefix(err.Error(), "libnowhere.so.9: library not found: libnowhere.so.9: ") {
					t.Errorf("%v", err)
					return
				}
			}
		})
	}
	all.Wait()
}
