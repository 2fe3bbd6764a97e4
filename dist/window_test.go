package dist_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headroom-go/headroom/dist"
)

// soon is a deadline that no test should reach.
func soon() time.Time { return time.Now().Add(time.Minute) }

func borrow(t *testing.T, m *dist.MPI, size uint64) *dist.Window {
	t.Helper()
	w, err := m.Borrow(size)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// TestWindows lets two ranks put bytes at random places of what three others lend, and
// get them, also several places at once and the same one again and again. Each finds
// what memory of its own would hold, over a library that keeps no order which MPI does
// not promise, and the lenders learn of the end.
func TestWindows(t *testing.T) {
	const part = 3<<20 + 100
	lent := []uint64{0, 1 << 20, 600_000, 0, 2*part - 1<<20 - 600_000}
	ranks := dist.FakeLenders(lent)
	var ended sync.WaitGroup
	for r, m := range ranks {
		if rank, size, address := m.Place(); size != 2 || address != "0:1" || lent[r] == 0 && rank != r/3 {
			t.Errorf("rank %d is %d of %d with the first at %s", r, rank, size, address)
		}
		ended.Go(func() {
			err := useWindow(m, part, uint64(r), lent[r] > 0)
			if err := errors.Join(err, m.Close(err == nil)); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	}
	ended.Wait()
}

// useWindow lends, or compares a window with memory of its own.
func useWindow(m *dist.MPI, size int, seed uint64, lends bool) error {
	if lends {
		return m.Lend()
	}
	w, err := m.Borrow(uint64(size))
	if err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(seed, 1))
	own, data := make([]byte, size), make([]byte, 1200<<10)
	rand.NewChaCha8([32]byte{byte(seed)}).Read(data)
	for range 600 {
		n := 1 + r.IntN(3000)
		if r.IntN(50) == 0 {
			n = len(data) / (1 + r.IntN(4)) // more than one piece
		}
		at := r.IntN(size - n + 1)
		if r.IntN(3) > 0 {
			at = min(at, 10_000)
		}
		if r.IntN(2) == 0 {
			from := data[r.IntN(len(data)-n+1):][:n]
			copy(own[at:], from)
			if err := w.Put(uint64(at), from, soon()); err != nil {
				return err
			}
			continue
		}
		got := make([]byte, n)
		if err := errors.Join(w.Get(uint64(at), n, soon()), w.Take(got, soon())); err != nil || !bytes.Equal(got, own[at:][:n]) {
			return fmt.Errorf("%d bytes at %d are others than were put there: %v", n, at, err)
		}
	}
	return errors.Join(w.Get(0, 10, soon()), w.Close(soon())) // what was not taken goes with it
}

// TestWindowAgain borrows what was given back, and what was not.
func TestWindowAgain(t *testing.T) {
	m := dist.FakeLenders([]uint64{0, 1000, 0})[0]
	for range 2 {
		w := borrow(t, m, 500)
		if _, err := m.Borrow(1); err == nil || !strings.Contains(err.Error(), "in use") {
			t.Errorf("a second window: %v", err)
		}
		if err := errors.Join(w.Put(490, make([]byte, 10), soon()), w.Get(490, 10, soon()), w.Close(soon())); err != nil {
			t.Error(err)
		}
	}
	if _, err := m.Borrow(501); err == nil || !strings.Contains(err.Error(), "lend 1000B, of which each of 2 that train has 500B") {
		t.Errorf("more than there is: %v", err)
	}
	if _, err := dist.FakeMPI(2)[0].Borrow(1); err == nil || !strings.Contains(err.Error(), "no rank of this MPI job lends") {
		t.Errorf("from nobody: %v", err)
	}
	w := borrow(t, m, 100)
	for _, at := range []uint64{91, 101, 1<<64 - 1} {
		if err := w.Put(at, make([]byte, 10), soon()); err == nil || !strings.Contains(err.Error(), "of 100 that are lent") {
			t.Errorf("10 bytes at %d: %v", at, err)
		}
	}
}

// TestWindowBreaks lets the library of a rank fail at one of its calls: what is taken
// is what was put, or an error comes, and none waits.
func TestWindowBreaks(t *testing.T) {
	var failed [40]bool // at which call; never at 0
	var ended sync.WaitGroup
	for n := range failed {
		ended.Go(func() { failed[n] = windowBreaks(t, n) != nil })
	}
	ended.Wait()
	if failed[0] || !failed[1] || !failed[10] || !failed[20] {
		t.Errorf("an error where the library failed at its call number 0 (never), 1, …: %v", failed)
	}
}

func windowBreaks(t *testing.T, call int) error {
	ranks := dist.FakeLenders([]uint64{0, 4 << 20}, call)
	w, err := ranks[0].Borrow(4 << 20)
	if err != nil {
		return err
	}
	data, got := bytes.Repeat([]byte("abc"), 1<<20), make([]byte, 3<<20)
	err = w.Put(5, data, soon())
	for range 2 {
		err = errors.Join(err, w.Get(5, len(data), soon()), w.Take(got, soon()))
	}
	if err == nil && !bytes.Equal(got, data) {
		t.Errorf("failure at call %d: other bytes came back", call)
	}
	ranks[0].Close(err == nil)
	if call > 0 {
		return errors.Join(err, ranks[1].Close(false)) // it may never hear of the end
	}
	return errors.Join(err, ranks[1].Lend(), ranks[1].Close(true))
}

// TestLenderIsDeaf: what does not move in time is an error, and the window of no more
// use.
func TestLenderIsDeaf(t *testing.T) {
	ranks := dist.FakeLenders([]uint64{0, 1 << 20})
	dist.Deafen(ranks[0])
	w := borrow(t, ranks[0], 1<<20)
	if err := w.Get(0, 10, soon()); err != nil {
		t.Fatal(err)
	}
	if err := w.Take(make([]byte, 10), time.Now().Add(time.Millisecond)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("taking: %v", err)
	}
	if err := errors.Join(w.Close(soon())); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("closing: %v", err)
	}
	if _, err := ranks[0].Borrow(1); err == nil {
		t.Error("it is lent again")
	}
	ranks[0].Close(false)
	if err := ranks[1].Lend(); err == nil || !strings.Contains(err.Error(), "a rank that trains failed") {
		t.Errorf("the lender: %v", err)
	}
}
