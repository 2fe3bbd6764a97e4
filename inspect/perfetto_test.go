package inspect

import (
	"bytes"
	wire "encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/trace"
)

// protoField is one protoField of a decoded message: a number or bytes.
type protoField struct {
	id    int
	n     uint64
	bytes []byte
}

// fields decodes a message of varints and bytes.
func fields(t *testing.T, m []byte) []protoField {
	t.Helper()
	var out []protoField
	for len(m) > 0 {
		key, k := wire.Uvarint(m)
		n, l := wire.Uvarint(m[max(k, 0):])
		if k <= 0 || l <= 0 {
			t.Fatalf("no varint: % x", m)
		}
		f := protoField{id: int(key >> 3), n: n}
		m = m[k+l:]
		if key&7 == 2 {
			f.bytes, m = m[:n], m[n:]
		} else if key&7 != 0 {
			t.Fatalf("wire type %d", key&7)
		}
		out = append(out, f)
	}
	return out
}

func get(all []protoField, id int) protoField {
	i := slices.IndexFunc(all, func(f protoField) bool { return f.id == id })
	if i < 0 {
		return protoField{}
	}
	return all[i]
}

// perfettoLines decodes a trace into one line a packet.
func perfettoLines(t *testing.T, s *trace.Snapshot) []string {
	t.Helper()
	var b bytes.Buffer
	if err := WritePerfetto(&b, s, 0); err != nil {
		t.Fatal(err)
	}
	names := map[uint64]string{}
	var lines []string
	for i, p := range fields(t, b.Bytes()) {
		packet := fields(t, p.bytes)
		if flags := get(packet, 13).n; p.id != 1 || get(packet, 10).n != 1 || (flags == 1) != (i == 0) {
			t.Errorf("packet %d: protoField %d, flags %d", i, p.id, flags)
		}
		if d := fields(t, get(packet, 60).bytes); len(d) > 0 {
			id := get(d, 1).n
			if names[id] != "" {
				t.Errorf("track %d is described twice", id)
			}
			names[id] = string(get(d, 2).bytes)
			lines = append(lines, fmt.Sprintf("track %d %s under %q unit %v", id, names[id], names[get(d, 5).n], get(d, 8).bytes))
			continue
		}
		e := fields(t, get(packet, 11).bytes)
		line := fmt.Sprintf("%d %s", get(packet, 8).n, names[get(e, 11).n])
		switch get(e, 9).n {
		case 1:
			line += " begin " + string(get(e, 23).bytes)
		case 2:
			line += " end"
		case 3:
			line += " instant " + string(get(e, 23).bytes)
			for _, f := range e {
				if f.id == 4 {
					a := fields(t, f.bytes)
					line += fmt.Sprintf(" %s=%d", get(a, 10).bytes, get(a, 3).n)
				}
			}
		case 4:
			line += fmt.Sprintf(" = %d", get(e, 30).n)
		}
		lines = append(lines, line)
	}
	return lines
}

func TestPerfetto(t *testing.T) {
	p := sound()
	p.event(trace.OOM, 77, 1<<40, forward)
	at := func(name string, begin bool, time int64) {
		p.s.Annotations = append(p.s.Annotations, trace.Annotation{Name: name, Begin: begin, TimeUS: time})
	}
	at("nobody began this", false, 1)
	at("step", true, 2)
	at("inner", true, 3)
	at("across", true, 4)
	at("inner", false, 5)
	at("step", false, 6)
	at("across", false, 8)
	at("open", true, 9)
	got := strings.Join(perfettoLines(t, p.snapshot()), "\n")
	want := `track 1 device 0 under "" unit []
track 2 live under "device 0" unit [24 3]
track 3 reserved under "device 0" unit [24 3]
1000 live = 1536
1000 reserved = 2097152
1000 live = 512
3000 reserved = 4194304
4000 live = 1024
5000 live = 2048
6000 live = 3072
7000 live = 2048
9000 live = 1024
track 4 out of memory under "device 0" unit []
10000 out of memory instant out of memory request_bytes=1099511627776 free_bytes=77
track 5 annotations under "device 0" unit []
2000 annotations begin step
3000 annotations begin inner
track 6 annotations under "device 0" unit []
4000 annotations begin across
5000 annotations end
6000 annotations end
9000 annotations begin open
10000 annotations end
8000 annotations end`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestPerfettoWithoutTimes: events stand a microsecond apart.
func TestPerfettoWithoutTimes(t *testing.T) {
	p := &program{}
	for i := range uint64(3) {
		p.time = -1
		p.event(trace.Alloc, i<<20, 512, nil)
	}
	got := perfettoLines(t, p.snapshot())
	for _, want := range []string{"0 live = 512", "1000 live = 1024", "2000 live = 1536"} {
		if !slices.Contains(got, want) {
			t.Errorf("no %q in %q", want, got)
		}
	}
}

// FuzzPerfetto: the slices of any record nest: each track ends what it begins.
func FuzzPerfetto(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 250, 1, 1, 0, 0, 1, 2, 3, 250, 2, 1, 0, 0, 1, 2, 3, 250, 1, 0, 0, 0, 1, 2, 3, 250, 2, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		s := arbitrary(append([]byte{0, 1, 1, 1}, data...))
		depth := 0
		for _, l := range perfettoLines(t, s) {
			switch {
			case strings.Contains(l, "annotations begin"):
				depth++
			case strings.HasSuffix(l, "annotations end"):
				depth--
			}
		}
		if depth != 0 {
			t.Errorf("%d slices are not ended", depth)
		}
	})
}

// full is a writer that takes n bytes.
type full struct{ n int }

func (f *full) Write(b []byte) (int, error) {
	if f.n -= len(b); f.n < 0 {
		return 0, errFull
	}
	return len(b), nil
}

var errFull = errors.New("full")

// TestFailingWriter: a writer that fails makes the export fail, wherever it is.
func TestFailingWriter(t *testing.T) {
	s := larger(2).snapshot()
	for _, write := range []func(io.Writer, *trace.Snapshot, int) error{WritePprof, WritePerfetto, WriteSVG} {
		var b bytes.Buffer
		if err := write(&b, s, 0); err != nil {
			t.Fatal(err)
		}
		for n := 0; n < b.Len(); n += 1 + b.Len()/50 {
			if err := write(&full{n}, s, 0); !errors.Is(err, errFull) {
				t.Fatalf("%d of %d bytes: %v", n, b.Len(), err)
			}
		}
		if err := write(&full{b.Len()}, s, 0); err != nil {
			t.Error(err)
		}
	}
}
