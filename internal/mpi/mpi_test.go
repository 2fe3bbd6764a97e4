package mpi

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/headroom-go/headroom/internal/library"
)

// fake answers calls as a library of one interface does.
type fake struct {
	abi   abi
	calls []string
	args  map[string][]uintptr
	codes map[string]int
	over  []int32  // indices that the next Testsome has done
	lent  []uint64 // by the ranks; this one's is its own
}

// at is memory that a library is told of.
func at[T any](address uintptr) *T { return *(**T)(unsafe.Pointer(&address)) }

func (f *fake) call(symbol string, args []uintptr) uintptr {
	f.calls = append(f.calls, symbol)
	f.args[symbol] = slices.Clone(args)
	switch symbol {
	case "MPI_Init_thread":
		*at[int32](args[3]) = int32(args[2])
	case "MPI_Comm_rank":
		*at[int32](args[1]) = 3
	case "MPI_Comm_size":
		*at[int32](args[1]) = 5
	case "MPI_Isend", "MPI_Irecv", "MPI_Rput", "MPI_Rget":
		f.give(args[len(args)-1], uint64(len(f.calls)))
	case "MPI_Allgather":
		copy(unsafe.Slice(at[uint64](args[3]), len(f.lent)), f.lent)
		*at[uint64](args[3] + 8*3) = *at[uint64](args[0])
	case "MPI_Win_create":
		f.give(args[5], fakeWindow)
	case "MPI_Testsome":
		*at[int32](args[2]) = int32(len(f.over))
		for i, index := range f.over {
			*at[int32](args[3] + uintptr(4*i)) = index
			status := args[4] + uintptr(i*f.abi.status)
			*at[int32](status + uintptr(f.abi.source)) = 10 + index
			*at[int32](status + uintptr(f.abi.failure)) = index % 2 // the second one failed
		}
	case "MPI_Get_count":
		*at[int32](args[2]) = 77
	case "MPI_Error_string":
		copy(unsafe.Slice(at[byte](args[1]), 9), "it is bad")
		*at[int32](args[2]) = 9
	case "MPI_Get_library_version":
		copy(unsafe.Slice(at[byte](args[0]), 11), "Fake 1\nmore")
		*at[int32](args[1]) = 11
	}
	return uintptr(f.codes[symbol])
}

// fakeWindow is a window's handle.
const fakeWindow = 0x20202020

// give writes a handle.
func (f *fake) give(to uintptr, handle uint64) {
	copy(unsafe.Slice(at[byte](to), f.abi.handle), unsafe.Slice((*byte)(unsafe.Pointer(&handle)), 8))
}

// start gives the world of a fake with Open MPI's interface, or MPICH's.
func start(t *testing.T, open bool) (*World, *fake) {
	t.Helper()
	table := symbols
	if !open {
		table = symbols[:openWorld]
	}
	f := &fake{args: map[string][]uintptr{}, codes: map[string]int{}}
	l := library.Fake("fake", table, f.call)
	f.abi = interfaceOf(l)
	w, err := (&MPI{l, f.abi}).Start()
	if err != nil {
		t.Fatal(err)
	}
	return w, f
}

// TestCalls compares what calls give to libraries of both interfaces, and take
// from them, with the headers of Open MPI 4.1 and MPICH 4.0.
func TestCalls(t *testing.T) {
	for _, open := range []bool{true, false} {
		w, f := start(t, open)
		world, bytes, handle, anySource, inStatus := uintptr(0x44000000), uintptr(0x4c00010d), 4, -2, 17
		if open {
			world, bytes, handle, anySource, inStatus = uintptr(openWorld+1), uintptr(openByte+1), 8, -1, 18
		}
		if w.Rank != 3 || w.Size != 5 || w.Version() != "Fake 1" || f.abi.handle != handle {
			t.Errorf("rank %d of %d, version %q, handles of %d bytes", w.Rank, w.Size, w.Version(), f.abi.handle)
		}
		data := make([]byte, 6)
		var ids []int
		for _, begin := range []func() (int, error){
			func() (int, error) { return w.Receive(data, AnySource, 7) },
			func() (int, error) { return w.Send(data, 2, 8) },
			func() (int, error) { return w.Receive(nil, 4, 9) },
		} {
			id, err := begin()
			if err != nil || slices.Contains(ids, id) || id == 0 {
				t.Errorf("operation %d, error %v", id, err)
			}
			ids = append(ids, id)
		}
		at := uintptr(unsafe.Pointer(&data[0]))
		if got, want := f.args["MPI_Isend"][:6], []uintptr{at, 6, bytes, 2, 8, world}; !slices.Equal(got, want) {
			t.Errorf("MPI_Isend%v, want %v", got, want)
		}
		if got, want := f.args["MPI_Irecv"][:6], []uintptr{0, 0, bytes, 4, 9, world}; !slices.Equal(got, want) {
			t.Errorf("MPI_Irecv%v, want %v", got, want)
		}
		f.over, f.codes["MPI_Testsome"] = []int32{2, 1}, inStatus
		done, err := w.Test()
		if err != nil || len(done) != 2 || done[0] != (Done{ID: ids[2], From: 12, Bytes: 77}) || done[1].ID != ids[1] || done[1].Err == nil || !strings.Contains(done[1].Err.Error(), "MPI_Testsome returned 1: it is bad") {
			t.Errorf("done %+v, error %v", done, err)
		}
		f.over, f.codes["MPI_Testsome"] = []int32{0}, 0
		if done, err := w.Test(); err != nil || len(done) != 1 || done[0].ID != ids[0] || f.args["MPI_Testsome"][0] != 1 {
			t.Errorf("done %+v, error %v", done, err)
		}
		if err := w.Cancel(ids[0]); err != nil || slices.Contains(f.calls, "MPI_Cancel") {
			t.Errorf("cancelling what is over: %v", err)
		}
		if got, err := w.Receive(data, AnySource, 1); err != nil || int(int32(f.args["MPI_Irecv"][3])) != anySource {
			t.Errorf("operation %d, error %v, any source %d, want %d", got, err, int32(f.args["MPI_Irecv"][3]), anySource)
		} else if err := w.Cancel(got); err != nil || !slices.Contains(f.calls, "MPI_Cancel") {
			t.Errorf("cancelling: %v", err)
		}
		if err := w.Finalize(); err != nil {
			t.Error(err)
		}
	}
}

// TestWindow compares calls for memory that ranks lend with the headers, and asks for
// bytes beside it.
func TestWindow(t *testing.T) {
	for _, open := range []bool{true, false} {
		w, f := start(t, open)
		world, bytes, noInfo, errorsReturn := uintptr(0x44000000), uintptr(0x4c00010d), uintptr(0x1c000000), uintptr(0x54000001)
		if open {
			world, bytes, noInfo, errorsReturn = uintptr(openWorld+1), uintptr(openByte+1), uintptr(openNoInfo+1), uintptr(openErrorsReturn+1)
		}
		memory, data := make([]byte, 100), make([]byte, 6)
		at := uintptr(unsafe.Pointer(&data[0]))
		f.lent = []uint64{0, 0, 5 << 30, 0, 0}
		if err := w.Lend(memory); err != nil || !slices.Equal(w.Lent, []uint64{0, 0, 5 << 30, 100, 0}) {
			t.Fatalf("%v are lent, %v", w.Lent, err)
		}
		put, err := w.Put(data, 2, 5<<30-6)
		if err != nil {
			t.Fatal(err)
		}
		get, err := w.Get(data, 3, 94)
		if err != nil {
			t.Fatal(err)
		}
		f.over = []int32{0, 1}
		if done, err := w.Test(); err != nil || len(done) != 2 || done[0].ID != put || done[1].ID != get || slices.Contains(f.calls, "MPI_Get_count") {
			t.Errorf("done %+v, error %v", done, err)
		}
		if err := errors.Join(w.Flush(), w.Finalize()); err != nil {
			t.Error(err)
		}
		for symbol, want := range map[string][]uintptr{
			"MPI_Win_create":         {uintptr(unsafe.Pointer(&memory[0])), 100, 1, noInfo, world},
			"MPI_Win_set_errhandler": {fakeWindow, errorsReturn},
			"MPI_Win_lock_all":       {0, fakeWindow},
			"MPI_Rput":               {at, 6, bytes, 2, 5<<30 - 6, 6, bytes, fakeWindow},
			"MPI_Rget":               {at, 6, bytes, 3, 94, 6, bytes, fakeWindow},
			"MPI_Win_flush_all":      {fakeWindow},
			"MPI_Win_unlock_all":     {fakeWindow},
			"MPI_Win_free":           {},
		} {
			if got := f.args[symbol]; !slices.Equal(got[:len(want)], want) {
				t.Errorf("%s%v, want %v", symbol, got, want)
			}
		}
		for _, c := range []struct {
			rank   int
			offset uint64
		}{{2, 5<<30 - 5}, {3, 95}, {3, 1<<64 - 1}, {0, 0}} {
			if _, err := w.Get(data, c.rank, c.offset); err == nil || !strings.Contains(err.Error(), "that rank") {
				t.Errorf("6 bytes at %d of rank %d: %v", c.offset, c.rank, err)
			}
		}
	}
}

// TestNobodyLends makes no window.
func TestNobodyLends(t *testing.T) {
	w, f := start(t, true)
	f.lent = make([]uint64, 5)
	if err := errors.Join(w.Lend(nil), w.Finalize()); err != nil || slices.Contains(f.calls, "MPI_Win_create") || slices.Contains(f.calls, "MPI_Win_free") {
		t.Errorf("%v after %q", err, f.calls)
	}
}

// TestFailures lets each function fail.
func TestFailures(t *testing.T) {
	w, f := start(t, true)
	var failure *Error
	if err := w.Lend(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	lend := func() error { return w.Lend(make([]byte, 1)) }
	for _, c := range []struct {
		symbol string
		call   func() error
	}{
		{"MPI_Isend", func() error { _, err := w.Send(nil, 0, 0); return err }},
		{"MPI_Irecv", func() error { _, err := w.Receive(nil, 0, 0); return err }},
		{"MPI_Rput", func() error { _, err := w.Put(nil, 3, 0); return err }},
		{"MPI_Rget", func() error { _, err := w.Get(nil, 3, 0); return err }},
		{"MPI_Win_flush_all", w.Flush},
		{"MPI_Finalize", w.Finalize},
		{"MPI_Win_free", w.Finalize},
		{"MPI_Win_unlock_all", w.Finalize},
		{"MPI_Win_lock_all", lend},
		{"MPI_Win_set_errhandler", lend},
		{"MPI_Win_create", lend},
		{"MPI_Allgather", lend},
	} {
		symbol, call := c.symbol, c.call
		f.codes[symbol] = 5
		if err := call(); !errors.As(err, &failure) || failure.Call != symbol || failure.Code != 5 || failure.Text != "it is bad" {
			t.Errorf("%s: %v", symbol, err)
		}
	}
	clear(f.codes)
	if _, err := w.Receive(nil, 0, 0); err != nil {
		t.Fatal(err)
	}
	f.codes["MPI_Testsome"] = 5
	if _, err := w.Test(); !errors.As(err, &failure) {
		t.Errorf("test: %v", err)
	}
	for _, symbol := range []string{"MPI_Init_thread", "MPI_Comm_set_errhandler", "MPI_Comm_rank", "MPI_Comm_size"} {
		f.codes = map[string]int{symbol: 5}
		if _, err := w.MPI.Start(); !errors.As(err, &failure) || failure.Call != symbol {
			t.Errorf("%s: %v", symbol, err)
		}
	}
	old := &MPI{library.New("libold.so", symbols), abi{}}
	if _, err := old.Start(); !errors.As(err, &failure) || failure.Code != library.NotFound {
		t.Errorf("a library without symbols: %v", err)
	}
	if _, err := Open([]string{"libno-such-mpi.so"}); !errors.Is(err, library.ErrUnavailable) {
		t.Errorf("no library: %v", err)
	}
}
