package share

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
)

// filesPerCall is how many files one call passes; the system allows 253.
const filesPerCall = 250

// send writes data with the files beside it. There are more bytes than files.
func send(c *net.UnixConn, data []byte, files []*os.File) error {
	for len(data) > 0 {
		batch, piece := files[:min(len(files), filesPerCall)], data
		if len(batch) < len(files) {
			piece = data[:1] // a batch of files needs a byte to go with
		}
		n, _, err := c.WriteMsgUnix(piece, rights(batch), nil)
		if err != nil {
			return err
		}
		data, files = data[n:], files[len(batch):]
	}
	return nil
}

// inbox reads one message, and collects the files that come with its bytes.
type inbox struct {
	c       *net.UnixConn
	control []byte
	begun   bool // a byte has come
	files   []*os.File
}

// Read implements io.Reader.
func (in *inbox) Read(p []byte) (int, error) {
	n, m, flags, _, err := in.c.ReadMsgUnix(p, in.control)
	in.begun = in.begun || n > 0
	files, bad := takeFiles(in.control[:m], flags)
	in.files = append(in.files, files...)
	if len(in.files) > maxFiles {
		bad = fmt.Errorf("%w: more than %d files", ErrProtocol, maxFiles)
	}
	switch {
	case bad != nil:
		return 0, bad // io.ReadFull drops errors that come with bytes
	case errors.Is(err, io.EOF):
		return n, io.EOF // which is compared by ==
	}
	return n, err
}

// offer is a message that lends a block. The files are open.
type offer struct {
	*header
	extents []extent
	files   []*os.File
}

// receive reads a message that lends memory of the granularity. When it fails
// it closes what files have come.
func (in *inbox) receive(granularity uint64) (*offer, error) {
	in.control = make([]byte, controlBytes)
	o, err := in.offer(granularity)
	if err != nil {
		closeFiles(in.files)
		return nil, err
	}
	return o, nil
}

func (in *inbox) offer(granularity uint64) (*offer, error) {
	h, err := in.header(granularity)
	if err != nil {
		return nil, err
	}
	// The buffer grows with what comes, not with what is announced.
	n := int64(h.extents) * extentBytes
	b, err := io.ReadAll(io.LimitReader(in, n))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) < n {
		return nil, fmt.Errorf("message cut off after %d of %d bytes: %w", headerBytes+len(b), headerBytes+n, io.ErrUnexpectedEOF)
	}
	if len(in.files) != int(h.files) {
		return nil, fmt.Errorf("%w: %d files came, the message is about %d", ErrProtocol, len(in.files), h.files)
	}
	extents, err := parseExtents(b, h)
	return &offer{h, extents, in.files}, err
}

func (in *inbox) header(granularity uint64) (*header, error) {
	var b [headerBytes]byte
	n, err := io.ReadFull(in, b[:preludeBytes])
	if err != nil {
		return nil, cutOff(n, err)
	}
	id, err := parsePrelude(b[:], kindLend)
	if err != nil {
		return nil, err
	}
	n, err = io.ReadFull(in, b[preludeBytes:])
	if err != nil {
		return nil, cutOff(preludeBytes+n, err)
	}
	return parseHeader(b[preludeBytes:], id, granularity)
}

// cutOff says that the header ended after n bytes; before the first one that
// is nobody's fault.
func cutOff(n int, err error) error {
	switch {
	case n == 0:
		return err
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("message cut off after %d of the header's %d bytes: %w", n, headerBytes, err)
}
