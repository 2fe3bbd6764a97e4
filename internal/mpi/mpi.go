// Package mpi calls an MPI library, Open MPI's or MPICH's, which it loads while
// the program runs, and turns its codes into errors. It has no policy: who sends
// what to whom is decided in package dist.
//
// MPI's standard fixes names and arguments of functions, but not what the handles
// are: for Open MPI addresses of its variables, for MPICH numbers. What else
// differs stands in abi. Of MPI's functions those are used that send and receive
// bytes between two ranks of the world without waiting, and those that put them into
// memory of a rank and get them from there.
package mpi

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"github.com/headroom-go/headroom/internal/library"
)

const (
	initThread = iota
	finalize
	setErrhandler
	commRank
	commSize
	isend
	irecv
	testsome
	cancel
	getCount
	errorString
	libraryVersion
	allgather
	winCreate
	winSetErrhandler
	winLockAll
	rput
	rget
	winFlushAll
	winUnlockAll
	winFree
	openWorld // here and below are variables of Open MPI's
	openByte
	openErrorsReturn
	openNoInfo
)

var symbols = []string{
	initThread:       "MPI_Init_thread",
	finalize:         "MPI_Finalize",
	setErrhandler:    "MPI_Comm_set_errhandler",
	commRank:         "MPI_Comm_rank",
	commSize:         "MPI_Comm_size",
	isend:            "MPI_Isend",
	irecv:            "MPI_Irecv",
	testsome:         "MPI_Testsome",
	cancel:           "MPI_Cancel",
	getCount:         "MPI_Get_count",
	errorString:      "MPI_Error_string",
	libraryVersion:   "MPI_Get_library_version",
	allgather:        "MPI_Allgather",
	winCreate:        "MPI_Win_create",
	winSetErrhandler: "MPI_Win_set_errhandler",
	winLockAll:       "MPI_Win_lock_all",
	rput:             "MPI_Rput",
	rget:             "MPI_Rget",
	winFlushAll:      "MPI_Win_flush_all",
	winUnlockAll:     "MPI_Win_unlock_all",
	winFree:          "MPI_Win_free",
	openWorld:        "ompi_mpi_comm_world",
	openByte:         "ompi_mpi_byte",
	openErrorsReturn: "ompi_mpi_errors_return",
	openNoInfo:       "ompi_mpi_info_null",
}

// abi is the part of MPI's binary interface in which libraries differ.
type abi struct {
	world, bytes, errorsReturn, noInfo uintptr // handles
	handle                             int     // bytes of one
	anySource                          int
	status                             int // bytes of an MPI_Status
	source, failure                    int // where in it the rank and the code stand
	inStatus                           int // the code that says to look there
}

// interfaceOf tells by its variables which library it is.
func interfaceOf(l *library.Library) abi {
	if l.Has(symbols[openWorld]) {
		return abi{l.Address(openWorld), l.Address(openByte), l.Address(openErrorsReturn), l.Address(openNoInfo), 8, -1, 24, 0, 8, 18}
	}
	return abi{0x44000000, 0x4c00010d, 0x54000001, 0x1c000000, 4, -2, 20, 8, 16, 17}
}

// Names of the libraries, as Open takes them. Those of MPICH's interface are also
// Intel's and others'.
var (
	OpenMPI = []string{"libmpi.so.40"}
	MPICH   = []string{"libmpich.so.12", "libmpi.so.12"}
)

// MPI is a library that is loaded.
type MPI struct {
	*library.Library
	abi abi
}

// Open loads the first library of the names that the loader has; mpirun tells it
// where.
func Open(names []string) (*MPI, error) { return open(library.OpenGlobal, names) }

// Look is Open for a library that is not started, but only asked for its version.
// Several can be in one process.
func Look(names []string) (*MPI, error) { return open(library.Open, names) }

// open loads a library. UCX, which it may use, would take the signals of faults
// from Go, which makes panics of them; it does not, unless C's copy of the
// environment says otherwise when it is loaded.
func open(with func(names, folders, symbols []string) (*library.Library, error), names []string) (*MPI, error) {
	if c, err := library.Open([]string{"libc.so.6"}, nil, []string{"setenv"}); err == nil {
		name, value := []byte("UCX_ERROR_SIGNALS\x00"), []byte("\x00")
		c.Call(0, uintptr(unsafe.Pointer(&name[0])), uintptr(unsafe.Pointer(&value[0])), 0)
	}
	l, err := with(names, nil, symbols)
	if err != nil {
		return nil, err
	}
	return &MPI{l, interfaceOf(l)}, nil
}

// Error is the failure of a call.
type Error struct {
	Library, Call string
	Code          int
	Text          string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s returned %d: %s", e.Library, e.Call, e.Code, e.Text)
}

// check makes an error of the code that a function returned.
func (m *MPI) check(symbol, code int) error {
	switch code {
	case 0:
		return nil
	case library.NotFound:
		return &Error{m.Name, m.Symbol(symbol), code, "the library does not have it: install Open MPI 4 or MPICH 3, or newer"}
	}
	var t text
	m.Call(errorString, uintptr(code), uintptr(unsafe.Pointer(&t.bytes)), uintptr(unsafe.Pointer(&t.n)))
	return &Error{m.Name, m.Symbol(symbol), code, t.String()}
}

// text is room for what a function has to say.
type text struct {
	bytes [8192]byte // MPI_MAX_LIBRARY_VERSION_STRING, the longest
	n     int32
}

func (t *text) String() string { return string(t.bytes[:max(0, min(int(t.n), len(t.bytes)))]) }

// Version is what the library says it is: the first line of it.
func (m *MPI) Version() string {
	var t text
	m.Call(libraryVersion, uintptr(unsafe.Pointer(&t.bytes)), uintptr(unsafe.Pointer(&t.n)))
	line, _, _ := strings.Cut(t.String(), "\n")
	return strings.TrimRight(line, "\x00 ")
}

// World is all ranks that were started together. Its methods are called from the
// goroutine that started it, which stays on its thread.
type World struct {
	*MPI
	Rank, Size int
	Lent       []uint64 // bytes that each rank lends, after Lend

	window   uint64 // handle; 0: nobody lends
	last     int    // number that was given
	pending  []operation
	handles  []byte // of pending, in its order
	indices  []int32
	statuses []byte
}

// operation is one that the library works on.
type operation struct {
	id     int
	symbol int
	pin    *runtime.Pinner // keeps the data where they are
}

// Start starts MPI in this process, once, and locks the goroutine to its thread.
// It waits until all ranks do so.
func (m *MPI) Start() (*World, error) {
	runtime.LockOSThread()
	const funneled = 1 // all calls come from the thread that started it
	w, provided := &World{MPI: m}, int32(0)
	if err := m.check(initThread, m.Call(initThread, 0, 0, funneled, uintptr(unsafe.Pointer(&provided)))); err != nil {
		return nil, err
	}
	if provided < funneled {
		return nil, fmt.Errorf("%s is built for programs of one thread: install one that knows MPI_THREAD_FUNNELED", m.Name)
	}
	if err := m.check(setErrhandler, m.Plain(setErrhandler, m.abi.world, m.abi.errorsReturn)); err != nil {
		return nil, err
	}
	for symbol, to := range map[int]*int{commRank: &w.Rank, commSize: &w.Size} {
		var n int32
		if err := m.check(symbol, m.Call(symbol, m.abi.world, uintptr(unsafe.Pointer(&n)))); err != nil {
			return nil, err
		}
		*to = int(n)
	}
	return w, nil
}

// Lend lets all ranks Put bytes into memory, which may be empty, and Get them from
// there. All ranks call it once, and it waits until they do. The memory stays where
// it is until the process ends.
func (w *World) Lend(memory []byte) error {
	mine := uint64(len(memory))
	w.Lent = make([]uint64, w.Size)
	err := w.check(allgather, w.Call(allgather, uintptr(unsafe.Pointer(&mine)), 8, w.abi.bytes, uintptr(unsafe.Pointer(&w.Lent[0])), 8, w.abi.bytes, w.abi.world))
	if err != nil || slices.Max(w.Lent) == 0 {
		return err
	}
	err = w.check(winCreate, w.Call(winCreate, uintptr(unsafe.Pointer(unsafe.SliceData(memory))), uintptr(mine), 1, w.abi.noInfo, w.abi.world, uintptr(unsafe.Pointer(&w.window))))
	if err == nil {
		err = w.check(winSetErrhandler, w.Plain(winSetErrhandler, uintptr(w.window), w.abi.errorsReturn))
	}
	if err == nil {
		err = w.check(winLockAll, w.Plain(winLockAll, 0, uintptr(w.window)))
	}
	return err
}

// Finalize ends MPI in this process. It may wait until all ranks do so.
func (w *World) Finalize() error {
	if w.window != 0 {
		if err := w.check(winUnlockAll, w.Plain(winUnlockAll, uintptr(w.window))); err != nil {
			return err
		}
		if err := w.check(winFree, w.Call(winFree, uintptr(unsafe.Pointer(&w.window)))); err != nil {
			return err
		}
	}
	return w.check(finalize, w.Plain(finalize))
}

// AnySource is the rank that Receive takes a message of any rank from.
const AnySource = -1

// Done is an operation that is over.
type Done struct {
	ID    int
	From  int // the rank that sent what was received
	Bytes int // that were received
	Err   error
}

// Send begins to send data, which stay unchanged until Test has it done, to a
// rank. It gives the operation's number.
func (w *World) Send(data []byte, to, tag int) (id int, err error) {
	return w.begin(isend, data, to, uintptr(tag), w.abi.world)
}

// Receive begins to receive a message, of so many bytes at most as data have.
// Those of one rank and tag come in the order in which they were sent.
func (w *World) Receive(data []byte, from, tag int) (id int, err error) {
	if from == AnySource {
		from = w.abi.anySource
	}
	return w.begin(irecv, data, from, uintptr(tag), w.abi.world)
}

// Put begins to copy data, which stay unchanged until Test has it done, into what a
// rank lends. They are there after the next Flush; until then it is open what lies in
// their place.
func (w *World) Put(data []byte, to int, offset uint64) (id int, err error) {
	return w.access(rput, data, to, offset)
}

// Get begins to fill data, which Test says when it is done, from what a rank lends.
func (w *World) Get(data []byte, from int, offset uint64) (id int, err error) {
	return w.access(rget, data, from, offset)
}

// mostBytes is the most that one operation moves: counts are numbers of 32 bits.
const mostBytes = 1 << 30

func (w *World) access(symbol int, data []byte, rank int, offset uint64) (int, error) {
	n := uint64(len(data))
	if lent := w.Lent[rank]; n > mostBytes || offset > lent || n > lent-offset {
		return 0, fmt.Errorf("%d bytes at %d of %d that rank %d lends", n, offset, lent, rank)
	}
	return w.begin(symbol, data, rank, uintptr(offset), uintptr(n), w.abi.bytes, uintptr(w.window))
}

// Flush waits until all that was put is where it belongs.
func (w *World) Flush() error {
	return w.check(winFlushAll, w.Plain(winFlushAll, uintptr(w.window)))
}

// begin calls a function whose arguments are data, a rank, some more, and the place
// of the operation's handle.
func (w *World) begin(symbol int, data []byte, rank int, more ...uintptr) (int, error) {
	op := operation{w.last + 1, symbol, new(runtime.Pinner)}
	start := unsafe.SliceData(data)
	if start != nil {
		op.pin.Pin(start)
	}
	last := len(w.handles)
	w.handles = append(w.handles, make([]byte, w.abi.handle)...)
	args := append([]uintptr{uintptr(unsafe.Pointer(start)), uintptr(len(data)), w.abi.bytes, uintptr(rank)}, more...)
	if err := w.check(symbol, w.Plain(symbol, append(args, uintptr(unsafe.Pointer(&w.handles[last])))...)); err != nil {
		op.pin.Unpin()
		w.handles = w.handles[:last]
		return 0, err
	}
	w.last = op.id
	w.pending = append(w.pending, op)
	return op.id, nil
}

// Cancel gives up an operation of Receive's: what it was to receive may be lost.
// Test has it done in either case.
func (w *World) Cancel(id int) error {
	for i, op := range w.pending {
		if op.id == id {
			return w.check(cancel, w.Call(cancel, uintptr(unsafe.Pointer(&w.handles[i*w.abi.handle]))))
		}
	}
	return nil // it is over
}

// Test gives the operations that are over since the last call. It lets the
// library work, and does not wait.
func (w *World) Test() ([]Done, error) {
	n := len(w.pending)
	if n == 0 {
		return nil, nil
	}
	for len(w.indices) < n {
		w.indices, w.statuses = append(w.indices, 0), append(w.statuses, make([]byte, w.abi.status)...)
	}
	var over int32
	code := w.Call(testsome, uintptr(n), uintptr(unsafe.Pointer(&w.handles[0])), uintptr(unsafe.Pointer(&over)),
		uintptr(unsafe.Pointer(&w.indices[0])), uintptr(unsafe.Pointer(&w.statuses[0])))
	if code != 0 && code != w.abi.inStatus {
		return nil, w.check(testsome, code)
	}
	var done []Done
	for i := range max(0, int(over)) {
		d, err := w.result(i, code != 0)
		if err != nil {
			return nil, err
		}
		done = append(done, d)
	}
	w.forget(done)
	return done, nil
}

// result reads status i. Codes stand in it only where Test was told to look.
func (w *World) result(i int, look bool) (d Done, err error) {
	status := w.statuses[i*w.abi.status:][:w.abi.status]
	field := func(at int) int { return int(*(*int32)(unsafe.Pointer(&status[at]))) }
	op := w.pending[w.indices[i]]
	d = Done{ID: op.id, From: field(w.abi.source)}
	if look {
		if d.Err = w.check(testsome, field(w.abi.failure)); d.Err != nil {
			return d, nil
		}
	}
	if op.symbol != irecv {
		return d, nil
	}
	var n int32
	err = w.check(getCount, w.Call(getCount, uintptr(unsafe.Pointer(&status[0])), w.abi.bytes, uintptr(unsafe.Pointer(&n))))
	d.Bytes = max(0, int(n))
	return d, err
}

// forget takes operations that are over out of the lists.
func (w *World) forget(done []Done) {
	over := map[int]bool{}
	for _, d := range done {
		over[d.ID] = true
	}
	kept := 0
	for i, op := range w.pending {
		if over[op.id] {
			op.pin.Unpin()
			continue
		}
		w.pending[kept] = op
		copy(w.handles[kept*w.abi.handle:], w.handles[i*w.abi.handle:][:w.abi.handle])
		kept++
	}
	w.pending, w.handles = w.pending[:kept], w.handles[:kept*w.abi.handle]
}
