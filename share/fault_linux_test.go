package share

import (
	"errors"
	"os"
	"testing"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/device/devicetest"
)

var errInjected = errors.New("injected")

// faulty is a device of which one call fails, and one import or export.
type faulty struct {
	*devicetest.Failing
	device.Sharer
	imports, failingImport int
	exports, failingExport int
}

func (f *faulty) Import(file *os.File, offset int64) (device.Handle, error) {
	if f.imports++; f.imports == f.failingImport {
		return 0, errInjected
	}
	return f.Sharer.Import(file, offset)
}

func (f *faulty) Export(h device.Handle) (*os.File, int64, error) {
	if f.exports++; f.exports == f.failingExport {
		return nil, 0, errInjected
	}
	return f.Sharer.Export(h)
}

func fail(d *device.SharedHost, method devicetest.Method, nth int) *faulty {
	return &faulty{Failing: devicetest.Fail(d, method, nth, errInjected), Sharer: d}
}

// TestFailedReceiveLeavesNothing lets each call of Receive fail. Nothing stays
// on the device, the owner has the block back, and it can be received again.
func TestFailedReceiveLeavesNothing(t *testing.T) {
	o := newOwner(t, 8)
	block, walls := o.stitchedBlock()
	copy(content(block.Ptr(), 1), "x")
	faults := []*faulty{
		fail(openDevice(t, 1), devicetest.Reserve, 1),
		fail(openDevice(t, 1), devicetest.Map, 1),
	}
	for nth := 1; nth <= 3; nth++ {
		f := fail(openDevice(t, 1), devicetest.Any, 0)
		f.failingImport = nth
		faults = append(faults, f)
	}
	for i, d := range faults {
		before := openFiles(t)
		l, borrower := connect(t, o, d)
		loan := lend(t, l, block)
		if m, err := borrower.Receive(); m != nil || !errors.Is(err, errInjected) {
			t.Fatalf("fault %d: mapping %v, %v", i, m, err)
		}
		wait(t, loan)
		expectFiles(t, "after the fault", before+2)
		if calls := d.Calls(devicetest.Reserve) - d.Calls(devicetest.Release); calls != 0 && i > 0 {
			t.Errorf("fault %d: %d ranges are left", i, calls)
		}
		loan = lend(t, l, block)
		m := receive(t, borrower)
		if c := content(m.Ptr(), 1)[0]; c != 'x' {
			t.Errorf("fault %d: the block shows %q", i, c)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		wait(t, loan)
		if err := errors.Join(borrower.Close(), l.Close()); err != nil {
			t.Error(err)
		}
		expectFiles(t, "after the end", before)
	}
	for _, b := range append(walls, block) {
		b.Free()
	}
}

// TestFailedCloseGoesOn lets each call that the life of a mapping takes fail,
// whichever it is, and then what undoes it. The next Close does what is left,
// and the loan ends when the memory is mapped no more.
func TestFailedCloseGoesOn(t *testing.T) {
	o := newOwner(t, 8)
	block := o.block(2*page + 512)
	failed := 0
	for nth, more := 1, true; more; nth++ {
		d := fail(openDevice(t, 1), devicetest.Any, nth)
		before := openFiles(t)
		l, borrower := connect(t, o, d)
		loan := lend(t, l, block)
		m, err := borrower.Receive()
		if err == nil {
			err = m.Close()
		}
		if more = d.Failed(); more != errors.Is(err, errInjected) {
			t.Fatalf("call %d fails: %v, %v", nth, more, err)
		}
		if d.Calls(devicetest.Unmap) != 1 || d.Calls(devicetest.Release) > 0 {
			wait(t, loan)
		} else {
			second := lend(t, l, block)
			if err := receive(t, borrower).Close(); err != nil {
				t.Fatal(err)
			}
			wait(t, second) // so that the lender has read all that was said before
			if !isLent(loan) {
				t.Errorf("call %d fails: the loan ended while the memory is mapped", nth)
			}
		}
		if err := errors.Join(borrower.Close(), l.c.CloseWrite()); err != nil {
			t.Errorf("call %d fails: %v", nth, err)
		}
		wait(t, loan)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		expectFiles(t, "after the end", before)
		if more {
			failed++
		}
	}
	if want := 4 + 3; failed != want { // Reserve, Map, Unmap, Release, Destroy of three
		t.Errorf("%d calls failed, want %d", failed, want)
	}
	block.Free()
}

// stubborn is a device that destroys and releases nothing at first.
type stubborn struct {
	*faulty
	refuse bool
}

func (s *stubborn) Release(p device.Ptr) error {
	if s.refuse {
		return errInjected
	}
	return s.faulty.Release(p)
}

func (s *stubborn) Destroy(h device.Handle) error {
	if s.refuse {
		return errInjected
	}
	return s.faulty.Destroy(h)
}

// TestUndoThatFailsIsDoneByClose lets a Receive fail and all that would undo
// it. The borrower remembers what is left.
func TestUndoThatFailsIsDoneByClose(t *testing.T) {
	o := newOwner(t, 8)
	block := o.block(2 * page)
	d := &stubborn{fail(openDevice(t, 1), devicetest.Map, 1), true}
	l, borrower := connect(t, o, d)
	loan := lend(t, l, block)
	if _, err := borrower.Receive(); !errors.Is(err, errInjected) {
		t.Fatal(err)
	}
	wait(t, loan)
	if err := borrower.Close(); !errors.Is(err, errInjected) {
		t.Errorf("Close while nothing can be destroyed: %v", err)
	}
	again := lend(t, l, block) // the connection is there still
	d.refuse = false
	receive(t, borrower)
	if err := borrower.Close(); err != nil {
		t.Error(err)
	}
	wait(t, again)
	block.Free()
}

// TestFailedLendLeavesNothing lets each export fail. The block is not lent.
func TestFailedLendLeavesNothing(t *testing.T) {
	for nth := 1; nth <= 3; nth++ {
		inner := openDevice(t, 4)
		d := fail(inner, devicetest.Any, 0)
		d.failingExport = nth
		a, err := alloc.New(d, alloc.Options{})
		if err != nil {
			t.Fatal(err)
		}
		s, err := d.NewStream()
		if err != nil {
			t.Fatal(err)
		}
		o := &owner{a, t, s}
		block := o.block(3 * page)
		before := openFiles(t)
		l, borrower := connect(t, o, openDevice(t, 1))
		files := openFiles(t)
		if loan, err := l.Lend(block); loan != nil || !errors.Is(err, errInjected) {
			t.Errorf("export %d fails: %v", nth, err)
		}
		expectFiles(t, "after the fault", files)
		loan := lend(t, l, block)
		if err := receive(t, borrower).Close(); err != nil {
			t.Error(err)
		}
		wait(t, loan)
		block.Free()
		if err := errors.Join(borrower.Close(), l.Close(), a.Close()); err != nil {
			t.Error(err)
		}
		expectFiles(t, "after the end", before+1) // the borrower's device
	}
}
