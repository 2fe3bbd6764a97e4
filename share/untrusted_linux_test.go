package share

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/headroom-go/headroom/device"
)

// sealedFile is like the file of a device of so many granules.
func sealedFile(t testing.TB, granules int64) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "test")
	t.Cleanup(func() { _ = f.Close() })
	_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	if err := errors.Join(f.Truncate(granules*page), err); err != nil {
		t.Fatal(err)
	}
	return f
}

// valid is a message that lends granules 3, 4 and 1 of a file, from byte 512
// of the first on.
func valid() []byte {
	return appendLend(nil, &header{id: 1, granularity: page, offset: 512, size: 2*page + 100, files: 1, extents: 2},
		[]extent{{0, 2, 3 * page}, {0, 1, page}})
}

// with is a valid message with a number at an offset replaced.
func with[T uint32 | uint64](offset int, n T) []byte {
	b := valid()
	if _, err := binary.Encode(b[offset:], binary.LittleEndian, n); err != nil {
		panic(err)
	}
	return b
}

// receiveRaw gives a borrower on the device the message and the files, then
// the connection's end.
func receiveRaw(t testing.TB, d device.Device, message []byte, files ...*os.File) (*Borrower, *Mapping, error) {
	t.Helper()
	x, y := socketPair(t, syscall.SOCK_STREAM)
	b, err := NewBorrower(y, d)
	if err := errors.Join(err, send(x, message, files), x.CloseWrite()); err != nil {
		t.Fatal(err)
	}
	m, err := b.Receive()
	t.Cleanup(func() { _ = x.Close() })
	return b, m, err
}

// TestUntrustedLender receives messages with something wrong in them. Each is an
// error that says what, and leaves no file open and nothing on the device.
func TestUntrustedLender(t *testing.T) {
	d, f := openDevice(t, 1), sealedFile(t, 5)
	swapped := append(valid()[:headerBytes:headerBytes], make([]byte, 2*extentBytes)...)
	for _, c := range []struct {
		name    string
		message []byte
		files   int
		words   string
	}{
		{"magic", with(0, uint32(7)), 1, "begins with"},
		{"version", with(8, uint32(2)), 1, "speaks version 2"},
		{"kind", with(12, uint32(kindReturn)), 1, "kind 2"},
		{"loan", with(16, uint64(0)), 1, "counted from 1"},
		{"granularity", with(24, uint64(4096)), 1, "the lender's granules have 4KiB, this device's 2MiB"},
		{"no granularity", with(24, uint64(0)), 1, "granules have 0"},
		{"offset", with(32, uint64(page)), 1, "begins at byte 2097152"},
		{"great offset", with(32, uint64(math.MaxUint64)), 1, "begins at byte"},
		{"no size", with(40, uint64(0)), 1, "block of 0 bytes"},
		{"great size", with(40, uint64(math.MaxUint64)), 1, "block of 18446744073709551615 bytes"},
		{"too many granules", with(40, uint64((maxGranules+1)*page)), 1, "at most 1048576"},
		{"more granules", with(40, uint64(3*page)), 1, "the extents have 3 granules"},
		{"fewer granules", with(40, uint64(page)), 1, "the extents have 3 granules"},
		{"no files", with(48, uint32(0)), 1, "0 files"},
		{"more files than extents", with(48, uint32(3)), 3, "3 files for 2 extents"},
		{"a file for each byte", with(48, uint32(math.MaxUint32)), 1, "at most 1024"},
		{"no extents", with(52, uint32(0)), 1, "0 extents"},
		{"more extents than granules", with(52, uint32(math.MaxUint32)), 1, "4294967295 extents"},
		{"file of an extent", with(56, uint32(1)), 1, "file 1 of 1"},
		{"no granules in an extent", with(60, uint32(0)), 1, "extent of 0 granules"},
		{"granules of an extent", with(60, uint32(3)), 1, "the extents have 4 granules"},
		{"great extent", with(60, uint32(math.MaxUint32)), 1, "extent of 4294967295"},
		{"odd offset", with(64, uint64(page+512)), 1, "at offset 2097664"},
		{"great offset in the file", with(64, uint64(math.MaxInt64&^(page-1))), 1, "at offset"},
		{"negative offset in the file", with(64, uint64(math.MaxUint64&^(page-1))), 1, "at offset"},
		{"empty extents", swapped, 1, "extent of 0 granules"},
		{"none of the files", valid(), 0, "0 files came"},
		{"a file too many", valid(), 2, "2 files came"},
		{"many files too many", valid(), 60, "60 files came"},
		{"behind the file", with(64, uint64(4*page)), 1, "too few for a granule"},
		{"behind the file, second extent", with(80, uint64(5*page)), 1, "too few for a granule"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var files []*os.File
			for range c.files {
				files = append(files, f)
			}
			before := openFiles(t)
			b, m, err := receiveRaw(t, d, c.message, files...)
			if m != nil || err == nil || !strings.Contains(err.Error(), c.words) {
				t.Errorf("mapping %v, error %v, want %q", m, err, c.words)
			}
			isDevices := strings.Contains(c.words, "too few")
			if errors.Is(err, ErrProtocol) == isDevices {
				t.Errorf("error %v: ErrProtocol is for what the message says", err)
			}
			if _, again := b.Receive(); !isDevices && again != err {
				t.Errorf("the next Receive returns %v", again)
			}
			_ = b.Close()
			expectFiles(t, "after the message", before+1)
		})
	}
}

// TestValidMessageIsReceived shows that what TestUntrustedLender spoils is good.
func TestValidMessageIsReceived(t *testing.T) {
	d, f := openDevice(t, 1), sealedFile(t, 5)
	if _, err := f.WriteAt([]byte("begin"), 3*page+512); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("end"), page+512+97); err != nil {
		t.Fatal(err)
	}
	b, m, err := receiveRaw(t, d, valid(), f)
	if err != nil {
		t.Fatal(err)
	}
	got := content(m.Ptr(), m.Size())
	if string(got[:5]) != "begin" || string(got[len(got)-3:]) != "end" {
		t.Errorf("the block shows %q … %q", got[:5], got[len(got)-3:])
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// TestUnshareableFilesAreRefused offers files that could take memory away, and
// goes on with the next message. Each block is given back once.
func TestUnshareableFilesAreRefused(t *testing.T) {
	d, f := openDevice(t, 1), sealedFile(t, 5)
	pipe, other, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	defer other.Close()
	before := openFiles(t)
	x, y := socketPair(t, syscall.SOCK_STREAM)
	b, err := NewBorrower(y, d)
	if err := errors.Join(err, send(x, valid(), []*os.File{pipe}), send(x, with(16, uint64(2)), []*os.File{f})); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Receive(); err == nil || !strings.Contains(err.Error(), "does not lie in memory") {
		t.Errorf("Receive of a pipe: %v", err)
	}
	m := receive(t, b)
	if err := errors.Join(m.Close(), m.Close(), b.Close()); err != nil {
		t.Error(err)
	}
	said, err := io.ReadAll(x)
	if want := appendPrelude(appendPrelude(nil, kindReturn, 1), kindReturn, 2); !bytes.Equal(said, want) || err != nil {
		t.Errorf("the borrower said %q, %v; want each block given back once", said, err)
	}
	_ = x.Close()
	expectFiles(t, "after the end", before)
}

// TestCutOffMessage ends the connection after each number of bytes.
func TestCutOffMessage(t *testing.T) {
	d, f := openDevice(t, 1), sealedFile(t, 5)
	for n := range len(valid()) {
		before := openFiles(t)
		b, m, err := receiveRaw(t, d, valid()[:n], f)
		want := io.ErrUnexpectedEOF
		if n == 0 {
			want = io.EOF
		}
		if m != nil || !errors.Is(err, want) || n > 0 && !strings.Contains(err.Error(), "cut off") {
			t.Errorf("after %d bytes: %v", n, err)
		}
		_ = b.Close()
		expectFiles(t, "after the end", before+1)
	}
}

// TestFilesBetweenMessages sends files with every byte, far more than any
// message may have.
func TestFilesBetweenMessages(t *testing.T) {
	d, f := openDevice(t, 1), sealedFile(t, 5)
	before := openFiles(t)
	x, y := socketPair(t, syscall.SOCK_STREAM)
	b, err := NewBorrower(y, d)
	if err != nil {
		t.Fatal(err)
	}
	files := make([]*os.File, 200)
	for i := range files {
		files[i] = f
	}
	for i := range 6 {
		if err := send(x, valid()[i:i+1], files); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Receive(); !errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), "more than 1024 files") {
		t.Errorf("Receive of 1200 files: %v", err)
	}
	_, _ = b.Close(), x.Close()
	expectFiles(t, "after the end", before)
}

// TestManyFilesArePassed passes more files than one call can.
func TestManyFilesArePassed(t *testing.T) {
	const n = 600
	x, y := socketPair(t, syscall.SOCK_STREAM)
	h := header{id: 1, granularity: page, size: n * page, files: n, extents: n}
	var extents []extent
	var files []*os.File
	for i := range n {
		f := sealedFile(t, 1)
		files, extents = append(files, f), append(extents, extent{uint32(i), 1, 0})
	}
	sent := make(chan error)
	go func() { sent <- send(x, appendLend(nil, &h, extents), files) }()
	in := inbox{c: y}
	o, err := in.receive(page)
	if err := errors.Join(err, <-sent); err != nil {
		t.Fatal(err)
	}
	defer closeFiles(o.files)
	for i, f := range o.files {
		mine, err1 := files[i].Stat()
		theirs, err2 := f.Stat()
		if err := errors.Join(err1, err2); err != nil || !os.SameFile(mine, theirs) {
			t.Fatalf("file %d of %d is another one: %v", i, len(o.files), err)
		}
	}
}

// TestNoRoomForFiles receives with no file descriptor left.
func TestNoRoomForFiles(t *testing.T) {
	d, f := openDevice(t, 1), sealedFile(t, 5)
	x, y := socketPair(t, syscall.SOCK_STREAM)
	b, err := NewBorrower(y, d)
	if err := errors.Join(err, send(x, valid(), []*os.File{f})); err != nil {
		t.Fatal(err)
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 1, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	_, err = b.Receive()
	if back := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); back != nil {
		t.Fatal(back)
	}
	if err == nil || !strings.Contains(err.Error(), "ulimit -n") {
		t.Errorf("Receive without room for a file: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// TestUntrustedBorrower gives a lender what no borrower sends. No loan ends
// before the connection does, nothing more is lent, and files that come are
// not kept.
func TestUntrustedBorrower(t *testing.T) {
	good := appendPrelude(nil, kindReturn, 1)
	for name, message := range map[string][]byte{
		"magic":           append([]byte("x"), good...),
		"kind":            appendPrelude(nil, kindLend, 1),
		"loan never lent": appendPrelude(nil, kindReturn, 3),
		"loan 0":          appendPrelude(nil, kindReturn, 0),
		"greatest loan":   appendPrelude(nil, kindReturn, math.MaxUint64),
	} {
		t.Run(name, func(t *testing.T) {
			o := newOwner(t, 4)
			block, f := o.block(page), sealedFile(t, 1)
			before := openFiles(t)
			x, y := socketPair(t, syscall.SOCK_STREAM)
			l, err := NewLender(x, o.Allocator)
			if err != nil {
				t.Fatal(err)
			}
			loans := []*Loan{lend(t, l, block), lend(t, l, block)}
			if err := errors.Join(send(y, message, []*os.File{f, f}), send(y, good, nil)); err != nil {
				t.Fatal(err)
			}
			readToEnd(t, y)
			if _, err := l.Lend(block); !errors.Is(err, ErrProtocol) {
				t.Errorf("Lend after the message: %v", err)
			}
			if !isLent(loans[0]) || !isLent(loans[1]) {
				t.Error("a loan ended while the borrower is there")
			}
			_ = y.Close()
			wait(t, loans[0])
			wait(t, loans[1])
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			expectFiles(t, "after the end", before)
			block.Free()
		})
	}
}

// readToEnd reads until the other side sends no more.
func readToEnd(t *testing.T, c *net.UnixConn) {
	t.Helper()
	if _, err := io.Copy(io.Discard, c); err != nil {
		t.Fatal(err)
	}
}

// FuzzReceive gives a borrower any bytes with one file.
func FuzzReceive(f *testing.F) {
	f.Add(valid())
	f.Add(append(valid(), valid()...))
	f.Add(valid()[:70])
	f.Add(with(80, uint64(4*page)))
	f.Fuzz(func(t *testing.T, message []byte) {
		if len(message) > 10_000 {
			return // what fits the socket
		}
		d, file := openDevice(t, 1), sealedFile(t, 5)
		before := openFiles(t)
		b, m, err := receiveRaw(t, d, message, file)
		if (m == nil) == (err == nil) {
			t.Fatalf("mapping %v with error %v", m, err)
		}
		if m != nil {
			content(m.Ptr(), m.Size())[m.Size()-1]++
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		expectFiles(t, "after the end", before+1)
	})
}

// FuzzMessage reads headers and extents; what is accepted has one spelling.
func FuzzMessage(f *testing.F) {
	f.Add(valid(), uint64(page))
	f.Add(valid(), uint64(512))
	f.Fuzz(func(t *testing.T, b []byte, granularity uint64) {
		granularity = max(1, granularity%(1<<40))
		if len(b) < headerBytes {
			return
		}
		id, err := parsePrelude(b, kindLend)
		if err != nil {
			return
		}
		h, err := parseHeader(b[preludeBytes:headerBytes], id, granularity)
		if err != nil || len(b) < headerBytes+int(h.extents)*extentBytes {
			return
		}
		b = b[:headerBytes+int(h.extents)*extentBytes]
		extents, err := parseExtents(b[headerBytes:], h)
		if err != nil {
			return
		}
		if again := appendLend(nil, h, extents); string(again) != string(b) {
			t.Errorf("%x was read as %x", b, again)
		}
		if end := h.offset + h.size; end > h.granules()*granularity || end <= (h.granules()-1)*granularity {
			t.Errorf("%d granules for the end %d", h.granules(), end)
		}
	})
}
