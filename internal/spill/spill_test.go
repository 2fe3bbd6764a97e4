//go:build unix

package spill

import (
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

// places opens one Place of each kind.
func places(t *testing.T, capacity uint64) map[string]*Place {
	t.Helper()
	m, err := Memory(nil, capacity)
	if err != nil {
		t.Fatal(err)
	}
	f, err := File(t.TempDir(), capacity)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]*Place{"memory": m, "file": f}
}

// TestPieces takes and gives back pieces at random: none may share a byte with
// another, and no more may be used than the most of each size at a time.
func TestPieces(t *testing.T) {
	for name, p := range places(t, 1<<20) {
		t.Run(name, func(t *testing.T) {
			type piece struct {
				buf      []byte
				mark     byte
				giveBack func()
			}
			r := rand.New(rand.NewPCG(1, 2))
			var out []piece
			refused := 0
			for i := range 2000 {
				if len(out) > 0 && r.IntN(2) == 0 {
					k := r.IntN(len(out))
					for _, b := range out[k].buf {
						if b != out[k].mark {
							t.Fatalf("piece %d was written over", k)
						}
					}
					out[k].giveBack()
					out[k] = out[len(out)-1]
					out = out[:len(out)-1]
					continue
				}
				n := uint64(r.IntN(60_000))
				buf, giveBack, err := p.TakeBytes(n)
				if err != nil {
					if refused++; !strings.Contains(err.Error(), "1MiB set aside") {
						t.Fatal(err)
					}
					continue
				}
				if uint64(len(buf)) != n {
					t.Fatalf("asked for %d bytes, got %d", n, len(buf))
				}
				for j := range buf {
					buf[j] = byte(i)
				}
				out = append(out, piece{buf, byte(i), giveBack})
			}
			if s := p.Stats(); s.UsedBytes > s.CapacityBytes || s.Pieces != len(out) || refused == 0 {
				t.Errorf("%+v with %d pieces out, %d refused", s, len(out), refused)
			}
			for _, o := range out {
				o.giveBack()
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestReuse takes the same sizes step after step.
func TestReuse(t *testing.T) {
	for name, p := range places(t, 1<<20) {
		for range 10 {
			a, backA, errA := p.TakeBytes(5000)
			b, backB, errB := p.TakeBytes(9000)
			if err := errors.Join(errA, errB); err != nil || len(a) != 5000 || len(b) != 9000 {
				t.Fatal(name, err)
			}
			backA()
			backB()
		}
		if s := p.Stats(); s.UsedBytes != 8192+12288 {
			t.Errorf("%s: %+v", name, s)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestFullDisk lets the disk refuse; the Place is then as it was.
func TestFullDisk(t *testing.T) {
	p, err := File(t.TempDir(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	m := p.source.(*mapped)
	real := m.allocate
	m.allocate = func(*os.File, int64, int64) error { return errors.New("disk full") }
	if _, _, err := p.TakeBytes(10); err == nil || !strings.Contains(err.Error(), "no room on the disk") || p.Stats().UsedBytes != 0 {
		t.Errorf("%v, %+v", err, p.Stats())
	}
	m.allocate = func(f *os.File, offset, size int64) error { return zeros(f, offset, size) }
	buf, giveBack, err := p.TakeBytes(3 << 18)
	if err != nil {
		t.Fatal(err)
	}
	buf[0], buf[len(buf)-1] = 1, 2
	m.allocate = real
	if err := p.Close(); err == nil || !strings.Contains(err.Error(), "1 values") {
		t.Errorf("closed with a piece out: %v", err)
	}
	_ = giveBack
}
