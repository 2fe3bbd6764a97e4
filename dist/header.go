package dist

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
)

// header goes before every message between two ranks, and says what the sender
// takes part in. A receiver that takes part in something else has found a
// mistake.
type header struct {
	what     opcode
	op       Op
	root     uint16
	bufs     uint32
	elements uint64 // of all buffers
	layout   uint64 // a digest of the buffers' types and lengths
	bytes    uint64 // that follow
}

const headerBytes = 32

// opcode is a collective.
type opcode uint8

const (
	allReduce  opcode = iota + 1
	allReduced        // its second half
	reduceScatter
	allGather
	broadcast
	exchange
	barrier
)

func (o opcode) String() string {
	return [...]string{"nothing", "all_reduce", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "exchange", "barrier"}[o]
}

// newHeader describes a collective on bufs.
func newHeader(what opcode, op Op, root int, bufs []Buf) header {
	h := header{what: what, op: op, root: uint16(root), bufs: uint32(len(bufs))}
	digest := fnv.New64a()
	for _, b := range bufs {
		h.elements += uint64(b.Len)
		var text [9]byte
		binary.LittleEndian.PutUint64(text[:], uint64(b.Len))
		text[8] = byte(b.Type)
		digest.Write(text[:])
	}
	h.layout = digest.Sum64()
	return h
}

// carrying is h before data.
func (h header) carrying(data []Buf) header {
	h.bytes = 0
	for _, b := range data {
		h.bytes += uint64(b.Bytes())
	}
	return h
}

func (h header) String() string {
	switch h.what {
	case exchange:
		return fmt.Sprintf("%v of %d bytes", h.what, h.bytes)
	case broadcast:
		return fmt.Sprintf("%v from %d of %d elements in %d buffers (layout %x)", h.what, h.root, h.elements, h.bufs, h.layout)
	case barrier:
		return h.what.String()
	}
	return fmt.Sprintf("%v (%v) of %d elements in %d buffers (layout %x)", h.what, h.op, h.elements, h.bufs, h.layout)
}

func (h header) encode() []byte {
	b := []byte{byte(h.what), byte(h.op)}
	b = binary.LittleEndian.AppendUint16(b, h.root)
	b = binary.LittleEndian.AppendUint32(b, h.bufs)
	b = binary.LittleEndian.AppendUint64(b, h.elements)
	b = binary.LittleEndian.AppendUint64(b, h.layout)
	return binary.LittleEndian.AppendUint64(b, h.bytes)
}

func decodeHeader(b []byte) (h header, err error) {
	h = header{what: opcode(b[0]), op: Op(b[1]), root: binary.LittleEndian.Uint16(b[2:]), bufs: binary.LittleEndian.Uint32(b[4:]),
		elements: binary.LittleEndian.Uint64(b[8:]), layout: binary.LittleEndian.Uint64(b[16:]), bytes: binary.LittleEndian.Uint64(b[24:])}
	if h.what < allReduce || h.what > barrier || h.op > Max {
		return h, fmt.Errorf("what came is no message of this protocol: % x", b)
	}
	return h, nil
}
