// Package library loads shared libraries while the program runs, and calls their
// functions by a table of symbols, which are found or missing.
//
// No call allocates Go memory. Pointers that a function keeps beyond its return
// must not be to Go memory, unless it is pinned.
package library

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

// New is a library that has none of its symbols.
func New(name string, symbols []string) *Library {
	l := &Library{Name: name, symbols: symbols, addresses: make([]uintptr, len(symbols))}
	l.frames.New = func() any { return new(frame) }
	return l
}

// Fake is a library whose calls go to f. It has all symbols.
func Fake(name string, symbols []string, f Caller) *Library {
	l := New(name, symbols)
	l.fake = f
	for i := range symbols {
		l.addresses[i] = uintptr(i + 1)
	}
	return l
}

// Symbol is the name of an entry of the table.
func (l *Library) Symbol(i int) string { return l.symbols[i] }

// Address is that of a symbol of the table, or 0 where it is missing.
func (l *Library) Address(i int) uintptr { return l.addresses[i] }

// Has says whether the library has a symbol of its table.
func (l *Library) Has(symbol string) bool {
	for i, s := range l.symbols {
		if s == symbol {
			return l.addresses[i] != 0
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
		if l.addresses[i] == 0 {
			missing = append(missing, s)
		}
	}
	return missing
}

// NotFound is the code of calls whose symbol is missing. No library uses it.
const NotFound = -1

// Call calls a function of the table. Pointers among the arguments, converted
// in the call expression, stay valid until it returns.
//
//go:uintptrescapes
func (l *Library) Call(symbol int, args ...uintptr) int { return l.Plain(symbol, args...) }

// Plain is Call for arguments that are no pointers to Go memory, or pointers
// to what is on the heap and stays in use. It allocates nothing.
func (l *Library) Plain(symbol int, args ...uintptr) int {
	f := l.frames.Get().(*frame)
	n := copy(f[:], args)
	if n < len(args) {
		panic(fmt.Sprintf("library: %s with %d arguments; a frame has room for %d", l.symbols[symbol], len(args), n))
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

// Open opens the first of the names that the loader, or else one of the
// folders, has, and finds the symbols.
func Open(names, folders, symbols []string) (*Library, error) {
	return open(names, folders, symbols, false)
}

// OpenGlobal is Open for a library whose plugins, which it loads itself, take
// its symbols for granted.
func OpenGlobal(names, folders, symbols []string) (*Library, error) {
	return open(names, folders, symbols, true)
}

func open(names, folders, symbols []string, global bool) (*Library, error) {
	var tried []error
	for _, c := range Candidates(names, folders) {
		handle, err := dlopen(c.Path, global)
		if errors.Is(err, ErrUnavailable) {
			return nil, err
		}
		if err != nil {
			tried = append(tried, err)
			continue
		}
		l := New(c.Name, symbols)
		if c.Path != c.Name {
			l.Path = c.Path
		}
		for i, s := range symbols {
			l.addresses[i] = dlsym(handle, s)
		}
		return l, nil
	}
	return nil, fmt.Errorf("%s: %w: %w", names[0], ErrUnavailable, tried[0])
}
