package dist

import (
	"math/rand/v2"
	"testing"

	"github.com/headroom-go/headroom/device"
)

// TestPackets: pieces tile the buffers in order, each packet fits a slot, and pieces
// begin at multiples of the unit, also in the buffer that is cut.
func TestPackets(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 0))
	for range 200 {
		slot := (1 + r.IntN(8)) * pieceUnit
		var bufs, want []Buf
		for range r.IntN(6) {
			b := Buf{Ptr: device.Ptr(r.IntN(100)) << 20, Len: r.IntN(3 * slot), Type: []device.DType{device.Float32, device.BFloat16}[r.IntN(2)]}
			if bufs = append(bufs, b); b.Len > 0 {
				want = append(want, b)
			}
		}
		for _, p := range packets(bufs, slot) {
			room := slot
			for _, piece := range p {
				b := want[0]
				if piece.Ptr != b.Ptr || piece.Type != b.Type || piece.Len > b.Len || piece.Len == 0 {
					t.Fatalf("piece %+v of what is left, %+v", piece, b)
				}
				if want[0] = b.Range(piece.Len, b.Len); want[0].Len == 0 {
					want = want[1:]
				} else if piece.Bytes()%pieceUnit != 0 {
					t.Fatalf("%+v is cut after %d bytes", b, piece.Bytes())
				}
				room -= pieceBytes(piece)
			}
			if room < 0 || len(p) == 0 {
				t.Fatalf("packet of %d pieces, %d bytes too many for %d", len(p), -room, slot)
			}
		}
		if len(want) > 0 {
			t.Fatalf("%+v is in no packet", want)
		}
	}
}

// TestLedger: the same collectives in the same order leave nothing; another one is
// found with both ranks' words, whoever comes first.
func TestLedger(t *testing.T) {
	l := &ledger{met: map[int]*entry{}}
	h := func(n int) header { return newHeader(allReduce, Sum, 0, []Buf{{Len: n}}) }
	for rank := range 3 {
		for n := range 5 {
			if err := l.compare(rank, 3, h(n)); err != nil {
				t.Errorf("rank %d, collective %d: %v", rank, n, err)
			}
		}
	}
	if len(l.met) != 0 {
		t.Errorf("%d collectives that all came to are kept", len(l.met))
	}
	if err := l.compare(2, 3, h(1)); err != nil {
		t.Error(err)
	}
	if err := l.compare(0, 3, h(2)); err == nil {
		t.Error("two lengths are one collective")
	}
	for rank := range 3 {
		l.renew(rank)
	}
	if err := l.compare(1, 3, h(9)); err != nil {
		t.Error(err)
	}
}
