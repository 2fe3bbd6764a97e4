package cuda

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/internal/library"
)

// TestNCCLArguments compares what calls give to NCCL with its interface.
func TestNCCLArguments(t *testing.T) {
	c, _ := fakeContext(t)
	r := &recorder{}
	var calls []string
	n := FakeNCCL(func(symbol string, args []uintptr) uintptr {
		calls = append(calls, symbol)
		if !strings.HasPrefix(symbol, "ncclGroup") {
			r.symbol, r.args = symbol, append(r.args[:0], args...)
		}
		return r.code
	})
	if !slices.Equal(calls, []string{"setenv"}) || r.args[2] != 0 {
		t.Errorf("the start calls %v with %v", calls, r.args)
	}
	m, err := n.Init(c, 4, 3, UniqueID{})
	if err != nil || r.symbol != "ncclCommInitRankScalable" || r.args[1] != 4 || r.args[2] != 3 || r.args[3] != 1 || r.args[5] != 0 {
		t.Fatalf("%s %v: %v", r.symbol, r.args, err)
	}
	m.handle = 99
	for _, test := range []struct {
		call   func() error
		symbol string
		args   []uintptr
	}{
		{func() error { return m.AllReduce(1, 2, 3, NCCLFloat32, NCCLAvg, 6) }, "ncclAllReduce", []uintptr{2, 1, 3, 7, 4, 99, 6}},
		{func() error { return m.ReduceScatter(1, 2, 3, NCCLBFloat16, NCCLSum, 6) }, "ncclReduceScatter", []uintptr{2, 1, 3, 9, 0, 99, 6}},
		{func() error { return m.Reduce(1, 2, 3, NCCLFloat16, NCCLMax, 5, 6) }, "ncclReduce", []uintptr{2, 1, 3, 6, 2, 5, 99, 6}},
		{func() error { return m.AllGather(1, 2, 3, NCCLInt32, 6) }, "ncclAllGather", []uintptr{2, 1, 3, 2, 99, 6}},
		{func() error { return m.Broadcast(1, 2, 3, 7, 5, 6) }, "ncclBroadcast", []uintptr{2, 1, 3, 7, 5, 99, 6}},
		{func() error { return m.Send(1, 3, 7, 5, 6) }, "ncclSend", []uintptr{1, 3, 7, 5, 99, 6}},
		{func() error { return m.Receive(1, 3, 7, 5, 6) }, "ncclRecv", []uintptr{1, 3, 7, 5, 99, 6}},
		{m.Destroy, "ncclCommDestroy", []uintptr{99}},
		{m.Abort, "ncclCommAbort", []uintptr{99}},
	} {
		calls, r.code = nil, 0
		if err := m.Group(test.call); err != nil || r.symbol != test.symbol || !slices.Equal(r.args, test.args) {
			t.Errorf("%s%v, error %v; want %s%v", r.symbol, r.args, err, test.symbol, test.args)
		}
		if len(calls) != 3 || calls[0] != "ncclGroupStart" || calls[2] != "ncclGroupEnd" {
			t.Errorf("a group calls %v", calls)
		}
		r.code = 5
		var failure *Error
		if err := test.call(); !errors.As(err, &failure) || failure.Call != test.symbol || !strings.Contains(fmt.Sprint(err), "the calls don't fit together") {
			t.Errorf("%s: error %v", test.symbol, err)
		}
	}
	if _, err := OpenNCCL([]string{t.TempDir()}); err != nil && !errors.Is(err, library.ErrUnavailable) {
		t.Errorf("without a library: %v", err)
	}
}
