package share

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
)

// TestEqualBlocksGiveEqualMessages lends one block on two connections and
// expects the same bytes: those of the first version of the protocol.
func TestEqualBlocksGiveEqualMessages(t *testing.T) {
	o := newOwner(t, 8)
	block, walls := o.stitchedBlock()
	const golden = "68656164726f6f6d" + "01000000" + "01000000" + "0100000000000000" + // "headroom", version 1, lends, loan 1
		"0000200000000000" + "0000100000000000" + "0000400000000000" + // 2 MiB pages, 1 MiB in, 4 MiB long
		"01000000" + "02000000" + // 1 file, 2 extents:
		"00000000" + "02000000" + "0000200000000000" + // 2 granules at 2 MiB,
		"00000000" + "01000000" + "0000000000000000" // 1 granule at 0
	for range 2 {
		x, y := socketPair(t, syscall.SOCK_STREAM)
		l, err := NewLender(x, o.Allocator)
		if err != nil {
			t.Fatal(err)
		}
		loan := lend(t, l, block)
		message := make([]byte, 1000)
		n, err := y.Read(message)
		if got := hex.EncodeToString(message[:n]); got != golden || err != nil {
			t.Errorf("message %s, %v\n   want %s", got, err, golden)
		}
		_ = y.Close()
		wait(t, loan)
	}
	for _, b := range append(walls, block) {
		b.Free()
	}
}

// TestBorrowedMemoryIsTheOwners lends blocks of many sizes and places, some on
// pages that are not neighbours, and passes content to and fro.
func TestBorrowedMemoryIsTheOwners(t *testing.T) {
	o, d := newOwner(t, 24), openDevice(t, 1)
	l, borrower := connect(t, o, d)
	r := rand.New(rand.NewPCG(5, 5))
	stitched, blocks := o.stitchedBlock()
	blocks = append(blocks, stitched)
	middles := 0
	for _, size := range []uint64{1, 512, 64 << 10, 100_000, page - 512, page, page + 1, 3 * page, 3*page + 777, 1 + r.Uint64N(page)} {
		blocks = append(blocks, o.block(size))
	}
	for i, b := range blocks {
		copy(content(b.Ptr(), b.Size()), pattern(b.Size(), byte(i)))
		if _, offset := b.Handles(); offset > 0 {
			middles++
		}
	}
	for i, b := range blocks {
		loan, m := lend(t, l, b), receive(t, borrower)
		if m.Size() != b.Size() {
			t.Fatalf("block of %d bytes came as %d", b.Size(), m.Size())
		}
		expectContent(t, "the borrower's side", m.Ptr(), pattern(b.Size(), byte(i)))
		copy(content(m.Ptr(), m.Size()), pattern(m.Size(), byte(100+i)))
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		wait(t, loan)
	}
	for i, b := range blocks {
		expectContent(t, "the owner's side", b.Ptr(), pattern(b.Size(), byte(100+i)))
		b.Free()
	}
	if middles < 5 {
		t.Errorf("only %d blocks begin in the middle of a page", middles)
	}
}

// spy notes what is reserved.
type spy struct {
	*device.SharedHost
	reserved []uint64
}

func (s *spy) Reserve(size uint64) (device.Ptr, error) {
	s.reserved = append(s.reserved, size)
	return s.SharedHost.Reserve(size)
}

// TestReceivingReservesTheBlocksPages counts the addresses that each mapping takes.
func TestReceivingReservesTheBlocksPages(t *testing.T) {
	o := newOwner(t, 16)
	d := &spy{SharedHost: openDevice(t, 1)}
	l, borrower := connect(t, o, d)
	for _, size := range []uint64{512, page, page + 512, 5 * page, page / 2, page/2 + 512} {
		b := o.block(size)
		defer b.Free()
		lend(t, l, b)
		m := receive(t, borrower)
		first, last := uint64(b.Ptr())/page, (uint64(b.Ptr())+size-1)/page
		if want := (last - first + 1) * page; len(d.reserved) != 1 || d.reserved[0] != want {
			t.Errorf("a block of %d bytes at %#x reserved %d bytes, want %d", size, b.Ptr(), d.reserved, want)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		d.reserved = nil
	}
}

// TestLoanEndsOnce gives a block back in every way there is, all at once and
// repeated. The other loans stay.
func TestLoanEndsOnce(t *testing.T) {
	o, d := newOwner(t, 8), openDevice(t, 1)
	l, borrower := connect(t, o, d)
	first, second := o.block(page), o.block(page)
	loan, kept := lend(t, l, first), lend(t, l, second)
	m, other := receive(t, borrower), receive(t, borrower)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() { wait(t, loan) })
	}
	all.Wait()
	for range 3 { // what a faulty borrower would send
		if err := m.tell(); err != nil {
			t.Fatal(err)
		}
	}
	third := lend(t, l, first) // the same block, by a new number
	last := receive(t, borrower)
	if err := m.tell(); err != nil {
		t.Fatal(err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	wait(t, kept) // all that was sent before has been read now
	if !isLent(third) {
		t.Error("the end of one loan ended another one of the same block")
	}
	if err := errors.Join(last.Close(), borrower.Close(), borrower.Close(), last.Close()); err != nil {
		t.Error(err)
	}
	wait(t, third)
	first.Free()
	second.Free()
	expectAllFree(t, o)
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Error(err)
	}
}

// expectAllFree expects that the owner can give all memory back.
func expectAllFree(t *testing.T, o *owner) {
	t.Helper()
	if _, err := o.Trim(0); err != nil {
		t.Fatal(err)
	}
	if st := o.Stats(); st.Live != 0 || st.Reserved != 0 {
		t.Errorf("%d bytes are live and %d reserved, want none", st.Live, st.Reserved)
	}
}

// TestPtrOfClosedMappingPanics: the addresses may be somebody else's by then.
func TestPtrOfClosedMappingPanics(t *testing.T) {
	o, d := newOwner(t, 2), openDevice(t, 1)
	l, borrower := connect(t, o, d)
	b := o.block(page)
	defer b.Free()
	lend(t, l, b)
	m := receive(t, borrower)
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if recover() == nil {
			t.Error("Ptr of a closed mapping did not panic")
		}
	}()
	m.Ptr()
}

// TestBorrowerCloseGivesAllBack ends three loans, one of them not yet received.
func TestBorrowerCloseGivesAllBack(t *testing.T) {
	o, d := newOwner(t, 8), openDevice(t, 1)
	l, borrower := connect(t, o, d)
	before := openFiles(t)
	var blocks []*alloc.Block
	var loans []*Loan
	for range 3 {
		blocks = append(blocks, o.block(page))
		loans = append(loans, lend(t, l, blocks[len(blocks)-1]))
	}
	receive(t, borrower)
	receive(t, borrower)
	if err := borrower.Close(); err != nil {
		t.Fatal(err)
	}
	for i, loan := range loans {
		wait(t, loan)
		blocks[i].Free()
	}
	expectFiles(t, "after Close", before-1)
	late := o.block(page)
	if _, err := l.Lend(late); err == nil || !strings.Contains(err.Error(), "connection has ended") {
		t.Errorf("Lend to a borrower that has gone: %v", err)
	}
	late.Free()
	if _, err := borrower.Receive(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Receive after Close: %v", err)
	}
	expectAllFree(t, o)
}

// TestLenderCloseWaitsForLoans refuses to close while a block is lent, since
// that would look like the end of what the borrower does.
func TestLenderCloseWaitsForLoans(t *testing.T) {
	o, d := newOwner(t, 4), openDevice(t, 1)
	l, borrower := connect(t, o, d)
	b := o.block(page)
	loan := lend(t, l, b)
	m := receive(t, borrower)
	if err := l.Close(); err == nil || !strings.Contains(err.Error(), "1 blocks are lent") {
		t.Errorf("Close with a loan: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := loan.Wait(ctx); !errors.Is(err, context.Canceled) || !isLent(loan) {
		t.Errorf("Wait with a context that has ended: %v", err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	wait(t, loan)
	if err := loan.Wait(ctx); err != nil {
		t.Errorf("Wait for a loan that has ended, with a context that has, too: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := l.Lend(b); !errors.Is(err, errClosed) {
		t.Errorf("Lend after Close: %v", err)
	}
	if _, err := borrower.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("Receive after the lender's end: %v", err)
	}
	b.Free()
}

// TestLostConnectionIsNoReturn closes the owner's end under the lender: nobody
// knows what the borrower does, so that the block is not given back.
func TestLostConnectionIsNoReturn(t *testing.T) {
	o, d := newOwner(t, 4), openDevice(t, 1)
	l, borrower := connect(t, o, d)
	b := o.block(page)
	loan := lend(t, l, b)
	m := receive(t, borrower)
	_ = l.c.Close()
	if err := loan.Wait(context.Background()); err == nil || !strings.Contains(err.Error(), "may still use") {
		t.Errorf("Wait after the loss: %v", err)
	}
	content(m.Ptr(), 1)[0]++ // the memory is still there
	if err := errors.Join(m.Close(), borrower.Close(), l.Close()); err != nil {
		t.Error(err)
	}
	b.Free()
}

// TestReceiveDeadline gives up waiting for a block, and gets it later.
func TestReceiveDeadline(t *testing.T) {
	o, d := newOwner(t, 4), openDevice(t, 1)
	l, borrower := connect(t, o, d)
	_ = borrower.c.SetReadDeadline(time.Unix(1, 0))
	if _, err := borrower.Receive(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Receive after its deadline: %v", err)
	}
	_ = borrower.c.SetReadDeadline(time.Time{})
	b := o.block(page)
	loan := lend(t, l, b)
	if err := receive(t, borrower).Close(); err != nil {
		t.Fatal(err)
	}
	wait(t, loan)
	b.Free()
}

// TestLendDeadline fills the connection until Lend gives up. What was lent
// before comes back when the borrower ends.
func TestLendDeadline(t *testing.T) {
	o, d := newOwner(t, 4), openDevice(t, 1)
	l, borrower := connect(t, o, d)
	before := openFiles(t)
	b := o.block(page)
	_ = l.c.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
	var loans []*Loan
	for {
		loan, err := l.Lend(b)
		if err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("Lend to a borrower that does not receive: %v", err)
			}
			break
		}
		loans = append(loans, loan)
	}
	if _, err := l.Lend(b); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Lend after half a message: %v", err)
	}
	for range loans {
		receive(t, borrower)
	}
	if _, err := borrower.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("Receive after the last block: %v", err)
	}
	if err := borrower.Close(); err != nil {
		t.Error(err)
	}
	for _, loan := range loans {
		wait(t, loan)
	}
	expectFiles(t, "after the end", before-1)
	b.Free()
}

// TestManyLoansAtOnce lends from several goroutines and gives back from
// several, in any order.
func TestManyLoansAtOnce(t *testing.T) {
	o, d := newOwner(t, 16), openDevice(t, 1)
	l, borrower := connect(t, o, d)
	var all sync.WaitGroup
	for i := range 4 {
		b := o.block(page/2 + uint64(i)*page/3)
		all.Go(func() {
			defer b.Free()
			for range 25 {
				loan, err := l.Lend(b)
				if err == nil {
					err = loan.Wait(context.Background())
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
		all.Go(func() {
			for range 25 {
				m, err := borrower.Receive()
				if err == nil {
					err = m.Close()
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	expectAllFree(t, o)
}

// TestOnlySharersShare refuses devices and sockets that will not do.
func TestOnlySharersShare(t *testing.T) {
	stream, _ := socketPair(t, syscall.SOCK_STREAM)
	packets, _ := socketPair(t, syscall.SOCK_SEQPACKET)
	null, err := device.Open("null:64MiB")
	if err != nil {
		t.Fatal(err)
	}
	a, err := alloc.New(null, alloc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewLender(stream, a); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "null:64MiB") {
		t.Errorf("lender of a null device: %v", err)
	}
	if _, err := NewBorrower(stream, null); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("borrower on a null device: %v", err)
	}
	if _, err := NewBorrower(packets, openDevice(t, 1)); err == nil || !strings.Contains(err.Error(), "unixpacket") {
		t.Errorf("borrower on a socket of packets: %v", err)
	}
}

// TestPlainBlocksAreRefused: without virtual memory there are no handles.
func TestPlainBlocksAreRefused(t *testing.T) {
	d := openDevice(t, 4)
	a, err := alloc.New(d, alloc.Options{NoVirtual: true})
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	o := &owner{a, t, s}
	b := o.block(page)
	l, borrower := connect(t, o, openDevice(t, 1))
	if _, err := l.Lend(b); err == nil || !strings.Contains(err.Error(), "0 handles") {
		t.Errorf("Lend of a plain block: %v", err)
	}
	b.Free()
	if err := errors.Join(l.Close(), borrower.Close(), a.Close()); err != nil {
		t.Error(err)
	}
}

// TestLendOfAForeignBlock panics: it would share memory of the wrong device.
func TestLendOfAForeignBlock(t *testing.T) {
	o, other := newOwner(t, 4), newOwner(t, 4)
	l, _ := connect(t, o, openDevice(t, 4))
	b := other.block(4096)
	defer b.Free()
	defer func() {
		if recover() == nil {
			t.Error("a block of another allocator was lent")
		}
	}()
	_, _ = l.Lend(b)
}
