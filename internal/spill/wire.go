package spill

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
	"unicode"

	"github.com/headroom-go/headroom/internal/size"
)

// How a borrower and a lender talk.
//
// A connection is one loan, of so many bytes, which live as long as it does.
// Nothing has a name: a borrower says offsets in what was lent to it over this
// connection, so that there is no way to ask for another's memory. All numbers are
// little-endian.
//
//	borrower   hello: magic, version, bytes wanted, its name
//	lender     answer: granted, or a text why not
//	borrower   put offset, length, data      any number of these, in any order
//	           get offset, length
//	lender     data offset, length, data     for each get, in their order
//	           recall                        at any time, once: it wants the memory back
//
// Who closes the connection ends the loan. Whatever breaks these rules ends it, too.
//
// Nothing is encrypted: it is for networks that are trusted. Still a borrower
// trusts no lender with what it gets back, which it compares with a sum that it
// kept.

const (
	magic      = "headroom"
	version    = 1
	helloBytes = 24
	frameBytes = 16
	mostName   = 64
	mostText   = 512
	chunkBytes = 512 << 10 // the most that goes in one frame; measured (BenchmarkLoan)

	// mostLoan bounds what a borrower can ask for, so that sums of offsets and
	// lengths don't pass 64 bits.
	mostLoan = 1 << 60
)

// hello is how a borrower begins.
type hello struct {
	size uint64
	name string
}

func (h hello) encode() []byte {
	b := append(make([]byte, 0, helloBytes+len(h.name)), magic...)
	b = binary.LittleEndian.AppendUint32(b, version)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(h.name)))
	b = binary.LittleEndian.AppendUint64(b, h.size)
	return append(b, h.name...)
}

func readHello(r io.Reader) (h hello, err error) {
	var b [helloBytes]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return h, err
	}
	if string(b[:8]) != magic {
		return h, errors.New("it is no borrower")
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != version {
		return h, fmt.Errorf("it speaks version %d of the protocol, this program version %d: use the same program on both", v, version)
	}
	n := binary.LittleEndian.Uint32(b[12:])
	if n > mostName {
		return h, fmt.Errorf("a name of %d bytes: it may have %d", n, mostName)
	}
	name := make([]byte, n)
	_, err = io.ReadFull(r, name)
	h = hello{binary.LittleEndian.Uint64(b[16:]), printable(name)}
	if err == nil && (h.size == 0 || h.size > mostLoan) {
		err = fmt.Errorf("a loan of %d bytes: ask for 1 to %s", h.size, size.Format(mostLoan))
	}
	return h, err
}

// printable is text from outside without what a terminal would take for orders.
func printable(text []byte) string {
	clean := []rune(string(text))
	for i, r := range clean {
		if !unicode.IsPrint(r) {
			clean[i] = '?'
		}
	}
	return string(clean)
}

// encodeAnswer is what a lender says to a hello: an empty text grants the loan.
func encodeAnswer(refusal string) []byte {
	refusal = refusal[:min(len(refusal), mostText)]
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(refusal))), refusal...)
}

// readAnswer gives an error where the loan was refused.
func readAnswer(r io.Reader) error {
	var b [4]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return fmt.Errorf("it did not answer: %w", err)
	}
	n := binary.LittleEndian.Uint32(b[:])
	if n == 0 {
		return nil
	}
	if n > mostText {
		return errors.New("it is no lender")
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return fmt.Errorf("it did not answer: %w", err)
	}
	return fmt.Errorf("it refused: %s", printable(text))
}

// frame is the head of what goes back and forth in a loan.
type frame struct {
	kind   frameKind
	length uint32 // of the data
	offset uint64 // in what was lent
}

type frameKind uint32

const (
	framePut frameKind = 1 + iota
	frameGet
	frameData
	frameRecall
)

func (k frameKind) String() string { return strconv.Itoa(int(k)) }

// within says whether the frame is of a piece of a loan of so many bytes.
func (f frame) within(loan uint64) bool {
	return f.length > 0 && f.length <= chunkBytes && f.offset < loan && uint64(f.length) <= loan-f.offset
}

// wire is a connection that takes and gives frames, without Go memory for each.
// One goroutine reads; several may write.
type wire struct {
	net.Conn
	patience time.Duration // for one frame to go
	in       [frameBytes]byte

	writing sync.Mutex
	out     [frameBytes]byte
	parts   [2][]byte
	buffers net.Buffers
}

// write sends a frame with its data, if it has any.
func (w *wire) write(f frame, data []byte) error {
	w.writing.Lock()
	defer w.writing.Unlock()
	binary.LittleEndian.PutUint32(w.out[0:], uint32(f.kind))
	binary.LittleEndian.PutUint32(w.out[4:], f.length)
	binary.LittleEndian.PutUint64(w.out[8:], f.offset)
	w.parts = [2][]byte{w.out[:], data}
	w.buffers = w.parts[:]
	w.SetWriteDeadline(time.Now().Add(w.patience))
	_, err := w.buffers.WriteTo(w.Conn)
	return err
}

// read waits for the next frame; its data come with receive.
func (w *wire) read() (f frame, err error) {
	if _, err = io.ReadFull(w.Conn, w.in[:]); err != nil {
		return f, err
	}
	f.kind = frameKind(binary.LittleEndian.Uint32(w.in[0:]))
	f.length = binary.LittleEndian.Uint32(w.in[4:])
	f.offset = binary.LittleEndian.Uint64(w.in[8:])
	return f, nil
}

// receive reads the data of a frame, which must come in time.
func (w *wire) receive(data []byte) error {
	w.SetReadDeadline(time.Now().Add(w.patience))
	_, err := io.ReadFull(w.Conn, data)
	return err
}

// debt is a wire whose other end owes answers to gets, and gives each in time.
type debt struct {
	wire
	mu   sync.Mutex
	open int // gets without their data
}

func (d *debt) write(f frame, data []byte) error {
	if f.kind == frameGet {
		d.expect(1)
	}
	return d.wire.write(f, data)
}

func (d *debt) receive(data []byte) error {
	err := d.wire.receive(data)
	d.expect(-1)
	return err
}

// expect enters that so many more answers are to come.
func (d *debt) expect(more int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open += more
	deadline := time.Time{}
	if d.open > 0 {
		deadline = time.Now().Add(d.patience)
	}
	d.SetReadDeadline(deadline)
}

// defaultPatience is how long a piece of at most chunkBytes may take to go: a link
// that is slower than that helps no training.
const defaultPatience = 10 * time.Second

// keepAlive finds an end that is gone without a word, its machine or the network.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}
