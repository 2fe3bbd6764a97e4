package device

import (
	"errors"
	"testing"
)

// faulty is memory of which the nth call fails.
type faulty struct {
	addressSpace
	calls, nth int
}

var errSystem = errors.New("the system says no")

func (f *faulty) call() error {
	if f.calls++; f.calls == f.nth {
		return errSystem
	}
	return nil
}

func (f *faulty) alloc(n uint64) (Ptr, error) {
	if err := f.call(); err != nil {
		return 0, err
	}
	return f.addressSpace.alloc(n)
}

func (f *faulty) reserve(n uint64) (Ptr, error) {
	if err := f.call(); err != nil {
		return 0, err
	}
	return f.addressSpace.reserve(n)
}

func (f *faulty) free(Ptr, uint64) error     { return f.call() }
func (f *faulty) release(Ptr, uint64) error  { return f.call() }
func (f *faulty) attach(Ptr, []Handle) error { return f.call() }
func (f *faulty) detach(Ptr, []Handle) error { return f.call() }
func (f *faulty) create(Handle) error        { return f.call() }
func (f *faulty) discard(Handle) error       { return f.call() }
func (f *faulty) close() error               { return f.call() }

// TestSystemFailures lets every call to the system fail once in a sequence of
// steps. The failing step must report that and leave the book as it was, so
// that the same step works when it is tried again, up to an orderly Close.
func TestSystemFailures(t *testing.T) {
	const granule = 4096
	const calls = 9 // one for each step, and one for close
	for nth := 1; nth <= calls; nth++ {
		f := &faulty{addressSpace: addressSpace{next: firstAddress, granularity: granule}, nth: nth}
		m := &memory{book: newBook(Info{Name: "test", Capacity: 1 << 20, Granularity: granule, Virtual: true}, 0), plain: f, virtual: f}
		var p, q Ptr
		var h Handle
		var err error
		failures := 0
		for i, step := range []func() error{
			func() error { p, err = m.Alloc(1000); return err },
			func() error { q, err = m.Reserve(2 * granule); return err },
			func() error { h, err = m.Create(); return err },
			func() error { return m.Map(q, []Handle{h}) },
			func() error { return m.Unmap(q, 1) },
			func() error { return m.Destroy(h) },
			func() error { return m.Release(q) },
			func() error { return m.Free(p) },
		} {
			before := m.book.used
			err := step()
			if err == nil {
				continue
			}
			failures++
			if !errors.Is(err, errSystem) || errors.Is(err, ErrOutOfMemory) != (i == 0 || i == 2) || m.book.used != before || m.book.check() != nil {
				t.Fatalf("call %d fails: step %d returned %v; %d bytes in use before, %d after; %v", nth, i, err, before, m.book.used, m.book.check())
			}
			if err := step(); err != nil {
				t.Fatalf("call %d fails: step %d, tried again, returned %v", nth, i, err)
			}
		}
		err = m.close()
		if (err != nil) != (nth == calls) || failures != map[bool]int{true: 0, false: 1}[nth == calls] || m.book.used != 0 {
			t.Fatalf("call %d fails: %d failures, Close returned %v, %d bytes in use", nth, failures, err, m.book.used)
		}
	}
}
