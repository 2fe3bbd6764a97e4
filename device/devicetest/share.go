package devicetest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/device"
)

// testShare imports two handles of one device in another and passes content
// to and fro. The importing device's capacity stays free, and what it
// destroys stays with the exporting one.
func testShare(b *bench, open func(t *testing.T) device.Device) {
	from := b.needSharer()
	other := open(b.T)
	to := &bench{T: b.T, Device: other, info: other.Info()}
	s, r := b.mustStream(), to.mustStream()
	h := b.mustCreate(3)
	own := to.mustCreate(int(to.info.Capacity / to.info.Granularity))
	p, q := b.mustReserve(3), to.mustReserve(4)
	b.must(b.Map(p, h))
	data := pattern(int(b.granules(3)), 7)
	b.write(s, p, data)
	second, third := importFrom(b, from, to, h[1]), importFrom(b, from, to, h[2])
	to.must(to.Map(q, []device.Handle{second, third, own[0], third}))
	to.expect(r, q, data[b.granules(1):])
	to.expect(r, to.at(q, 3), data[b.granules(2):])
	change := pattern(2000, 8)
	to.write(r, to.at(q, 3), change) // the third handle, by its second place
	copy(data[b.granules(2):], change)
	b.expect(s, p, data)
	copy(data[b.granules(1):], change)
	b.write(s, b.at(p, 1), change)
	to.expect(r, q, change)

	to.refuse(to.Destroy(second), "is mapped at")
	to.must(to.Unmap(q, 4))
	to.must(to.Destroy(second))
	to.refuse(to.Destroy(second), "does not exist")
	to.must(to.Destroy(third))
	b.expect(s, p, data)
	for _, h := range own {
		to.must(to.Destroy(h))
	}
	to.must(to.Release(q))
	to.must(to.Close())
}

// testSharePassedOn exports what was imported, and outlives both devices that
// had it before.
func testSharePassedOn(b *bench, open func(t *testing.T) device.Device) {
	from := b.needSharer()
	first, second := open(b.T), open(b.T)
	to := &bench{T: b.T, Device: first, info: first.Info()}
	last := &bench{T: b.T, Device: second, info: second.Info()}
	s, p := b.mustStream(), b.mustReserve(1)
	h := b.mustCreate(1)
	b.must(b.Map(p, h))
	b.write(s, p, pattern(1000, 9))
	middle := importFrom(b, from, to, h[0])
	end := importFrom(b, first.(device.Sharer), last, middle)
	b.must(b.Unmap(p, 1))
	_ = b.Close()
	err := to.Close()
	if err == nil || !strings.Contains(err.Error(), "1 imported handles") {
		b.Fatalf("Close with an imported handle returned %v", err)
	}
	q := last.mustReserve(1)
	last.must(last.Map(q, []device.Handle{end}))
	last.expect(last.mustStream(), q, pattern(1000, 9))
	last.must(last.Unmap(q, 1))
	last.must(last.Release(q))
	last.must(last.Destroy(end))
	last.must(last.Close())
}

// importFrom takes a handle from one device to another.
func importFrom(b *bench, from device.Sharer, to *bench, h device.Handle) device.Handle {
	b.Helper()
	f, offset, err := from.Export(h)
	b.must(err)
	imported, err := to.Device.(device.Sharer).Import(f, offset)
	b.must(err)
	b.must(f.Close())
	return imported
}

// testShareMisuse exports what is no handle and imports what no device
// exported. The device's capacity and handles are not touched.
func testShareMisuse(b *bench, open func(t *testing.T) device.Device) {
	s := b.needSharer()
	h := b.mustCreate(1)[0]
	_, _, err := s.Export(h + 1)
	b.refuse(err, "does not exist")
	_, _, err = s.Export(0)
	b.refuse(err, "does not exist")
	f, offset, err := s.Export(h)
	b.must(err)
	defer f.Close()
	if again, err := s.Import(f, offset); b.info.Kind == device.CUDA {
		b.must(err) // a GPU cannot tell
		b.must(b.Destroy(again))
	} else {
		b.refuse(err, "own")
	}
	other := open(b.T)
	defer other.Close()
	for _, wrong := range []int64{-1, offset + 512, -int64(b.info.Granularity), 1 << 40, 1<<63 - 1, -1 << 63} {
		_, err = other.(device.Sharer).Import(f, wrong)
		b.refuse(err, "import")
	}
	plain, err := os.Create(filepath.Join(b.TempDir(), "file"))
	b.must(err)
	defer plain.Close()
	b.must(plain.Truncate(int64(b.granules(2))))
	for _, f := range []*os.File{plain, nil} {
		_, err = s.Import(f, 0)
		b.refuse(err, "import")
	}
	b.must(f.Close())
	_, err = other.(device.Sharer).Import(f, offset)
	b.refuse(err, "import")
	b.must(b.Destroy(h))
	_, _, err = s.Export(h)
	b.refuse(err, "does not exist")
	b.must(b.Close())
	_, err = s.Import(plain, 0)
	b.refuse(err, "closed")
}

func (b *bench) needSharer() device.Sharer {
	s, ok := b.Device.(device.Sharer)
	if !ok {
		b.Skip("shares nothing")
	}
	return s
}
