package share

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/headroom-go/headroom/internal/size"
)

// The messages, as share.go describes them.
const (
	magic   = "headroom"
	version = 1

	kindLend   = 1
	kindReturn = 2

	preludeBytes = 24
	headerBytes  = 56
	extentBytes  = 16
)

// Bounds of what a message may announce, looked at before anything is
// allocated for it.
const (
	maxGranules = 1 << 20
	maxFiles    = 1024
)

// header says what is lent.
type header struct {
	id          uint64
	granularity uint64
	offset      uint64 // in the first granule
	size        uint64
	files       uint32
	extents     uint32
}

// extent is a run of granules in a file.
type extent struct {
	file, granules uint32
	offset         uint64
}

// granules is the number of granules that the block lies on.
func (h *header) granules() uint64 { return (h.offset+h.size-1)/h.granularity + 1 }

func appendPrelude(b []byte, kind uint32, id uint64) []byte {
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint32(b, version)
	b = binary.LittleEndian.AppendUint32(b, kind)
	return binary.LittleEndian.AppendUint64(b, id)
}

func appendLend(b []byte, h *header, extents []extent) []byte {
	b = appendPrelude(b, kindLend, h.id)
	for _, n := range []uint64{h.granularity, h.offset, h.size} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	b = binary.LittleEndian.AppendUint32(b, h.files)
	b = binary.LittleEndian.AppendUint32(b, h.extents)
	for _, x := range extents {
		b = binary.LittleEndian.AppendUint32(b, x.file)
		b = binary.LittleEndian.AppendUint32(b, x.granules)
		b = binary.LittleEndian.AppendUint64(b, x.offset)
	}
	return b
}

// parsePrelude gives the number of the loan that a message of the kind is about.
func parsePrelude(b []byte, kind uint32) (id uint64, err error) {
	theirs, found := binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])
	id = binary.LittleEndian.Uint64(b[16:])
	switch {
	case string(b[:8]) != magic:
		return 0, fmt.Errorf("%w: the message begins with %q, not with %q: the peer is no program that shares memory", ErrProtocol, b[:8], magic)
	case theirs != version:
		return 0, fmt.Errorf("%w: the peer speaks version %d of the protocol, this program version %d: use the same release at both ends", ErrProtocol, theirs, version)
	case found != kind:
		return 0, fmt.Errorf("%w: message of kind %d where only kind %d may come: one end lends, the other one borrows", ErrProtocol, found, kind)
	case id == 0:
		return 0, fmt.Errorf("%w: loans are counted from 1, this one is 0", ErrProtocol)
	}
	return id, nil
}

// parseHeader reads what follows the prelude, for a device of the granularity.
func parseHeader(b []byte, id, granularity uint64) (*header, error) {
	h := &header{
		id:          id,
		granularity: binary.LittleEndian.Uint64(b),
		offset:      binary.LittleEndian.Uint64(b[8:]),
		size:        binary.LittleEndian.Uint64(b[16:]),
		files:       binary.LittleEndian.Uint32(b[24:]),
		extents:     binary.LittleEndian.Uint32(b[28:]),
	}
	switch {
	case h.granularity != granularity:
		return nil, fmt.Errorf("%w: the lender's granules have %s, this device's %s: open both devices with about the same capacity",
			ErrProtocol, size.Exact(h.granularity), size.Exact(granularity))
	case h.offset >= granularity:
		return nil, fmt.Errorf("%w: the block begins at byte %d of a granule of %d", ErrProtocol, h.offset, granularity)
	case h.size == 0 || h.size > math.MaxInt64-granularity:
		return nil, fmt.Errorf("%w: block of %d bytes", ErrProtocol, h.size)
	case h.granules() > maxGranules:
		return nil, fmt.Errorf("%w: block on %d granules, at most %d can be shared", ErrProtocol, h.granules(), maxGranules)
	case h.extents == 0 || uint64(h.extents) > h.granules():
		return nil, fmt.Errorf("%w: %d extents for %d granules", ErrProtocol, h.extents, h.granules())
	case h.files == 0 || h.files > maxFiles || h.files > h.extents:
		return nil, fmt.Errorf("%w: %d files for %d extents, at most %d can be passed", ErrProtocol, h.files, h.extents, maxFiles)
	}
	return h, nil
}

// parseExtents reads the extents of h.
func parseExtents(b []byte, h *header) ([]extent, error) {
	extents, granules := make([]extent, 0, h.extents), uint64(0)
	for ; len(b) > 0; b = b[extentBytes:] {
		x := extent{
			file:     binary.LittleEndian.Uint32(b),
			granules: binary.LittleEndian.Uint32(b[4:]),
			offset:   binary.LittleEndian.Uint64(b[8:]),
		}
		switch {
		case x.file >= h.files:
			return nil, fmt.Errorf("%w: extent in file %d of %d", ErrProtocol, x.file, h.files)
		case x.granules == 0 || x.granules > maxGranules:
			return nil, fmt.Errorf("%w: extent of %d granules", ErrProtocol, x.granules)
		case x.offset%h.granularity != 0 || x.offset > math.MaxInt64-uint64(x.granules)*h.granularity:
			return nil, fmt.Errorf("%w: extent of %d granules at offset %d of a file", ErrProtocol, x.granules, x.offset)
		}
		granules += uint64(x.granules)
		extents = append(extents, x)
	}
	if granules != h.granules() {
		return nil, fmt.Errorf("%w: the extents have %d granules, %d bytes from byte %d on need %d",
			ErrProtocol, granules, h.size, h.offset, h.granules())
	}
	return extents, nil
}
