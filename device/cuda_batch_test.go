package device

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

var fakeCode = &CUDACode{Name: "fake", PTX: func(int) (string, error) { return "", nil }}

var fakeKernel = &Kernel{Name: "fake", CUDA: func(l *Launch, q *CUDAQueue) {
	q.Run(fakeCode, [...]string{"triple_and_add", "add_triple"}[l.Int[0]%2], Grid{X: 1, Block: 32}, l)
}}

// fakeLaunch queues a kernel of fakeGPU: the number at p is tripled, and n added.
// Those for odd and even n are two.
func fakeLaunch(s Stream, p Ptr, n int) {
	l := Launch{Kernel: fakeKernel}
	l.Ptr[0], l.Int[0] = p, n
	s.Launch(&l)
}

// TestBatches queues launches on two streams, with all that can come between
// them, and compares the numbers that they leave with those of launches done one
// after another. The fake driver sees that nothing but launches is captured.
func TestBatches(t *testing.T) {
	for seed := range uint64(20) {
		g, d := openFake(t)
		g.refuse = int(seed)
		checkAtEnd(t, g, d)
		p, err := d.Alloc(512)
		if err != nil {
			t.Fatal(err)
		}
		mix(t, g, d, p, rand.New(rand.NewPCG(seed, 1)))
		if n := d.streams[0].batch.launched; n < 30 || n > 70 {
			t.Errorf("%d graphs", n)
		}
		if err := d.Free(p); err != nil {
			t.Fatal(err)
		}
	}
}

// mix runs some thousand launches on numbers at p.
func mix(t *testing.T, g *fakeGPU, d *CUDADevice, p Ptr, random *rand.Rand) {
	var streams [2]Stream
	for i := range streams {
		s, err := d.NewStream()
		if err != nil {
			t.Fatal(err)
		}
		streams[i] = s
	}
	streams[0].Upload(p, make([]byte, 512))
	streams[1].Wait(streams[0].Record())
	var want [3]int64
	now := 0 // which stream works on number 2, which both have in turn
	for i := range 6000 {
		g.fast = i/1000%2 == 0
		i, n := random.IntN(2), 2*random.IntN(50)+i/500%2
		switch random.IntN(1000) {
		case 0:
			streams[now].Copy(p+256, p, 8)
		case 1:
			var b [8]byte
			streams[i].Download(b[:], p+Ptr(8*i))
			if err := streams[i].Sync(); err != nil || int64(binary.LittleEndian.Uint64(b[:])) != want[i] {
				t.Fatalf("number %d is %d, want %d: %v", i, b, want[i], err)
			}
		case 2:
			e := streams[now].Record()
			now = 1 - now
			streams[now].Wait(e)
		case 3:
			streams[i].Record().Sync()
		case 4, 5, 6, 7, 8:
			fakeLaunch(streams[now], p+16, n)
			want[2] = 3*want[2] + int64(n)
		default:
			i = max(0, random.IntN(20)-18)
			fakeLaunch(streams[i], p+Ptr(8*i), n)
			want[i] = 3*want[i] + int64(n)
		}
	}
	var b [24]byte
	streams[now].Download(b[16:], p+16)
	for i := range streams {
		streams[i].Download(b[8*i:8*i+8], p+Ptr(8*i))
		if err := streams[i].Sync(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range want {
		if got := int64(binary.LittleEndian.Uint64(b[8*i:])); got != want[i] {
			t.Errorf("number %d is %d, want %d", i, got, want[i])
		}
	}
}
