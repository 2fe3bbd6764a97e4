//go:build unix

package spill

import (
	"context"
	"hash/maphash"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/headroom-go/headroom/device"
)

const benchBytes = 64 << 20

// BenchmarkLoan sends a value to a lender in this process and fetches it; what a
// plain TCP connection moves in the same run stands beside it.
//
//	go test ./internal/spill -run '^$' -bench 'Loan|Recall' -benchtime 20x
func BenchmarkLoan(b *testing.B) {
	w := newBench(b)
	p, data := w.array(b, benchBytes)
	copy(data, randomBytes(benchBytes)) // memory that was never written to is one page of zeros
	l := loan(b, w, lend(b, LendOptions{Bytes: benchBytes}).address, benchBytes, BorrowOptions{})
	conn := sink(b)
	buf, source := randomBytes(benchBytes), randomBytes(benchBytes)
	var plain, plainBack cost
	benchmarkLoan(b, w, l, p, func() {
		plain.time(func() {
			if _, err := conn.Write(source); err != nil {
				b.Fatal(err)
			}
		})
		plainBack.time(func() {
			if _, err := conn.Write(source[:1]); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(conn, buf); err != nil {
				b.Fatal(err)
			}
		})
	})
	plain.report(b, "tcp-out")
	plainBack.report(b, "tcp-back")
}

// benchmarkLoan sends a value from p to a lender and fetches it, in turn with what it
// is compared with.
func benchmarkLoan(b *testing.B, w *bench, l *Loan, p device.Ptr, other func()) {
	var sent, fetched cost
	for b.Loop() {
		room, err := l.Take(benchBytes)
		if err != nil {
			b.Fatal(err)
		}
		sent.time(func() {
			room.Send(w.side, p)
			(&mark{&l.gone, l.puts}).Sync()
		})
		other()
		fetched.time(func() { room.Fetch(w.side, p); mustSync(b, w.side) })
		if err := room.Free(); err != nil {
			b.Fatal(err)
		}
	}
	sent.report(b, "out")
	fetched.report(b, "back")
	b.ReportMetric(0, "ns/op")
}

// cost is the least time of a copy of benchBytes, and the mean of the processor time that
// its ends in this process took, which other work on the machine does not lengthen.
type cost struct {
	best
	used time.Duration
	n    int
}

func (c *cost) time(f func()) {
	before := processorTime()
	c.best.time(f)
	c.used += processorTime() - before
	c.n++
}

func (c *cost) report(b *testing.B, name string) {
	b.ReportMetric(benchBytes/time.Duration(c.best).Seconds()/1e9, name+"-GB/s")
	b.ReportMetric(c.used.Seconds()*1e3/float64(c.n), name+"-cpu-ms")
}

// processorTime is what this process has used.
func processorTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// best is the least time of what is repeated, since other work on the machine only
// adds to it.
type best time.Duration

func (t *best) time(f func()) {
	start := time.Now()
	f()
	t.enter(time.Since(start))
}

func (t *best) enter(d time.Duration) {
	if *t == 0 || d < time.Duration(*t) {
		*t = best(d)
	}
}

// sink is a connection to who takes benchBytes and, when it is sent one more, gives
// them back, in chunks.
func sink(b *testing.B) net.Conn {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer listener.Close()
	go func() {
		c, err := listener.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		memory := make([]byte, benchBytes)
		for {
			for i := 0; i < benchBytes; i += chunkBytes {
				if _, err := io.ReadFull(c, memory[i:i+chunkBytes]); err != nil {
					return
				}
			}
			if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
				return
			}
			for i := 0; i < benchBytes; i += chunkBytes {
				if _, err := c.Write(memory[i : i+chunkBytes]); err != nil {
					return
				}
			}
		}
	}()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	return conn
}

// BenchmarkRecall calls back what is held in values of 1 MiB: the time from the
// recall until the lender has its memory, and what is above a copy of the same bytes
// by Fetch.
func BenchmarkRecall(b *testing.B) {
	const bytes = 64 << 20
	w := newBench(b)
	p, _ := w.array(b, bytes)
	spare, err := Memory(nil, bytes)
	if err != nil {
		b.Fatal(err)
	}
	defer spare.Close()
	whole, giveBack, err := spare.TakeBytes(bytes) // memory that was touched
	if err != nil {
		b.Fatal(err)
	}
	clear(whole)
	giveBack()
	var recalled, copied best
	for b.Loop() {
		lender := lend(b, LendOptions{Bytes: bytes, Grace: time.Minute})
		l, err := Borrow(context.Background(), w, lender.address, bytes, BorrowOptions{Spare: spare.TakeBytes})
		if err != nil {
			b.Fatal(err)
		}
		room, err := l.Take(bytes)
		if err != nil {
			b.Fatal(err)
		}
		room.Send(w.side, p)
		room.Fetch(w.side, p)
		mustSync(b, w.side)
		copied.time(func() { room.Fetch(w.side, p); mustSync(b, w.side) })
		lender.end()
		c := lender.seen()
		recalled.enter(c[len(c)-1].After)
		if err := room.Free(); err != nil {
			b.Fatal(err)
		}
		if err := l.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(time.Duration(recalled).Seconds()*1e3, "recall-ms")
	b.ReportMetric(time.Duration(copied).Seconds()*1e3, "copy-ms")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkSum makes sums of pieces as they go over a connection, and hash/maphash's beside.
func BenchmarkSum(b *testing.B) {
	s, data := newSummer(), randomBytes(chunkBytes)
	var ours, std time.Duration
	n := 0
	for b.Loop() {
		begin := processorTime()
		s.sum(data)
		between := processorTime()
		maphash.Bytes(s.rest, data)
		ours, std, n = ours+between-begin, std+processorTime()-between, n+1
	}
	speed := func(d time.Duration) float64 { return float64(n) * chunkBytes / d.Seconds() / 1e9 }
	b.ReportMetric(speed(ours), "GB/s")
	b.ReportMetric(speed(std), "maphash-GB/s")
	b.ReportMetric(0, "ns/op")
}
