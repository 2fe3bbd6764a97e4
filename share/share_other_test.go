//go:build !linux

package share

import (
	"errors"
	"net"
	"testing"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
)

// TestUnsupported expects to be told that memory cannot be shared here.
func TestUnsupported(t *testing.T) {
	d, err := device.Open("null:64MiB")
	if err != nil {
		t.Fatal(err)
	}
	a, err := alloc.New(d, alloc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, lending := NewLender(&net.UnixConn{}, a)
	_, borrowing := NewBorrower(&net.UnixConn{}, d)
	if !errors.Is(lending, errors.ErrUnsupported) || !errors.Is(borrowing, errors.ErrUnsupported) {
		t.Errorf("lender: %v; borrower: %v", lending, borrowing)
	}
}
