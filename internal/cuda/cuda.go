// Package cuda calls the CUDA driver, NVML, cuBLASLt and cuDNN, which it loads
// while the program runs, and turns their codes into errors. It has no policy:
// what belongs to whom is decided in package device.
//
// There are three levels. A Library is a table of symbols, found or missing,
// and one way to call them. Driver, NVML, BLAS and DNN give the calls Go's types
// and their failures the type *Error. A missing symbol makes its call fail
// with code NotFound; Has says so beforehand, so that callers can do without.
//
// The current context is the property of an operating system's thread. So each
// call that needs one locks the goroutine to its thread, sets the context,
// calls and unlocks, which costs some 0.1 µs.
//
// No call allocates Go memory but those that return strings, slices or errors.
// Pointers that a call stores beyond its return are never pointers to Go memory.
package cuda

import (
	"errors"
	"fmt"
	"sync"
)

// ErrUnavailable is returned (wrapped, with what was tried) by the functions
// that open libraries when there is none.
var ErrUnavailable = errors.New("library not found")

// Caller calls a function of a library by its name and returns its result.
// Tests give one in place of a library.
type Caller func(symbol string, args []uintptr) uintptr

// Library is a shared library with the functions of a table.
type Library struct {
	Name string // "libcuda.so.1"
	Path string // as it was opened; empty for the loader's choice and for tests

	symbols   []string
	addresses []uintptr // 0 where a symbol is missing
	fake      Caller    // called instead, if not nil
	frames    sync.Pool // of *frame
}

// frame is room for the arguments of one call.
type frame [16]uintptr

func newLibrary(name string, symbols []string) *Library {
	l := &Library{Name: name, symbols: symbols, addresses: make([]uintptr, len(symbols))}
	l.frames.New = func() any { return new(frame) }
	return l
}

// fakeLibrary is a library whose calls go to f.
func fakeLibrary(name string, symbols []string, f Caller) *Library {
	l := newLibrary(name, symbols)
	l.fake = f
	return l
}

// Has says whether the library has a symbol of its table.
func (l *Library) Has(symbol string) bool {
	for i, s := range l.symbols {
		if s == symbol {
			return l.fake != nil || l.addresses[i] != 0
		}
	}
	return false
}

// Place is the path by which the library was opened, or its name where the
// loader chose.
func (l *Library) Place() string {
	if l.Path != "" {
		return l.Path
	}
	return l.Name
}

// Missing lists the symbols of the table that the library lacks.
func (l *Library) Missing() []string {
	var missing []string
	for i, s := range l.symbols {
		if l.fake == nil && l.addresses[i] == 0 {
			missing = append(missing, s)
		}
	}
	return missing
}

// NotFound is the code of calls whose symbol is missing. No library uses it.
const NotFound = -1

// call calls a function of the table. Pointers among the arguments, converted
// in the call expression, stay valid until it returns.
//
//go:uintptrescapes
func (l *Library) call(symbol int, args ...uintptr) int { return l.plain(symbol, args...) }

// plain is call for arguments that are no pointers to Go memory, or pointers
// to what is on the heap and stays in use. It allocates nothing.
func (l *Library) plain(symbol int, args ...uintptr) int {
	f := l.frames.Get().(*frame)
	n := copy(f[:], args)
	if n < len(args) {
		panic(fmt.Sprintf("cuda: %s with %d arguments; a frame has room for %d", l.symbols[symbol], len(args), n))
	}
	var code int
	switch {
	case l.fake != nil:
		code = int(int32(l.fake(l.symbols[symbol], f[:n])))
	case l.addresses[symbol] == 0:
		code = NotFound
	default:
		code = int(int32(syscall(l.addresses[symbol], f[:n])))
	}
	*f = frame{}
	l.frames.Put(f)
	return code
}

// open opens the first of the names that the loader, or else one of the
// folders, has, and finds the symbols.
func open(names, folders, symbols []string) (*Library, error) {
	var tried []error
	for _, c := range candidates(names, folders) {
		handle, err := dlopen(c.path)
		if errors.Is(err, ErrUnavailable) {
			return nil, err
		}
		if err != nil {
			tried = append(tried, err)
			continue
		}
		l := newLibrary(c.name, symbols)
		if c.path != c.name {
			l.Path = c.path
		}
		for i, s := range symbols {
			l.addresses[i] = dlsym(handle, s)
		}
		return l, nil
	}
	return nil, fmt.Errorf("%s: %w: %w", names[0], ErrUnavailable, tried[0])
}
