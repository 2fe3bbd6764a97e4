// Package devicetest is a suite of tests that every device must pass, and a
// device that fails on demand.
package devicetest

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/device"
)

// Run tests devices. open gives a new one, with nothing on it and a capacity
// from 8 granules to 1 GiB; the tests close it. What a device without virtual
// memory, without data or without host kernels cannot do is skipped there.
func Run(t *testing.T, open func(t *testing.T) device.Device) {
	for _, test := range []struct {
		name string
		run  func(b *bench)
	}{
		{"Info", testInfo},
		{"PlainStates", testPlainStates},
		{"PlainCapacity", testPlainCapacity},
		{"PlainAlignment", testPlainAlignment},
		{"PlainData", testPlainData},
		{"NoVirtual", testNoVirtual},
		{"RangeMisuse", testRangeMisuse},
		{"HandleMisuse", testHandleMisuse},
		{"MapMisuse", testMapMisuse},
		{"UnmapMisuse", testUnmapMisuse},
		{"NoAlias", testNoAlias},
		{"AliasStates", testAliasStates},
		{"AliasCapacity", testAliasCapacity},
		{"AliasContent", testAliasContent},
		{"MixedCapacity", testMixedCapacity},
		{"ContentMoves", testContentMoves},
		{"ShuffledGranules", testShuffledGranules},
		{"Share", func(b *bench) { testShare(b, open) }},
		{"SharePassedOn", func(b *bench) { testSharePassedOn(b, open) }},
		{"ShareMisuse", func(b *bench) { testShareMisuse(b, open) }},
		{"CloseEmpty", testCloseEmpty},
		{"CloseLeaks", testCloseLeaks},
		{"StreamOrder", testStreamOrder},
		{"LongQueue", testLongQueue},
		{"LargeCopies", testLargeCopies},
		{"StreamMisuse", testStreamMisuse},
		{"Events", testEvents},
		{"Asynchronous", testAsynchronous},
		{"EventsAcrossStreams", testEventsAcrossStreams},
		{"StickyError", testStickyError},
		{"DoneAtOnce", testDoneAtOnce},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := open(t)
			b := &bench{T: t, Device: d, info: d.Info()}
			t.Cleanup(func() { _ = d.Close() })
			test.run(b)
		})
	}
}

// bench is a device under test. Its must… methods end the test on an error.
type bench struct {
	*testing.T
	device.Device
	info device.Info
}

func (b *bench) granules(n int) uint64 { return uint64(n) * b.info.Granularity }

// at gives the address n granules after p.
func (b *bench) at(p device.Ptr, n int) device.Ptr { return p + device.Ptr(b.granules(n)) }

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) mustAlloc(size uint64) device.Ptr {
	b.Helper()
	p, err := b.Alloc(size)
	b.must(err)
	return p
}

func (b *bench) mustReserve(granules int) device.Ptr {
	b.Helper()
	p, err := b.Reserve(b.granules(granules))
	b.must(err)
	return p
}

func (b *bench) mustCreate(n int) []device.Handle {
	b.Helper()
	handles := make([]device.Handle, n)
	for i := range handles {
		h, err := b.Create()
		b.must(err)
		handles[i] = h
	}
	return handles
}

func (b *bench) mustStream() device.Stream {
	b.Helper()
	s, err := b.NewStream()
	b.must(err)
	return s
}

// refuse expects misuse to be an error that is not for want of memory and that
// has the words in its text.
func (b *bench) refuse(err error, words string) {
	b.Helper()
	if err == nil || errors.Is(err, device.ErrOutOfMemory) || !strings.Contains(err.Error(), words) {
		b.Fatalf("got error %q, want one with %q", err, words)
	}
}

// full expects a request to fail for want of memory.
func (b *bench) full(err error) {
	b.Helper()
	if !errors.Is(err, device.ErrOutOfMemory) {
		b.Fatalf("got error %v, want %v", err, device.ErrOutOfMemory)
	}
}

func (b *bench) needVirtual() {
	if !b.info.Virtual {
		b.Skip("no virtual memory")
	}
}

func (b *bench) needAlias() {
	if !b.info.Alias {
		b.Skip("no aliases")
	}
}

func (b *bench) needData() {
	if b.info.Kind == device.Null {
		b.Skip("no data")
	}
}

func (b *bench) needHostKernels() {
	if b.info.Kind != device.Host {
		b.Skip("runs no host kernels")
	}
}

// write stores data at p and waits for it.
func (b *bench) write(s device.Stream, p device.Ptr, data []byte) {
	b.Helper()
	s.Upload(p, data)
	b.must(s.Sync())
}

// expect compares the memory at p.
func (b *bench) expect(s device.Stream, p device.Ptr, want []byte) {
	b.Helper()
	got := make([]byte, len(want))
	s.Download(got, p)
	b.must(s.Sync())
	if !bytes.Equal(got, want) {
		b.Fatalf("%d bytes at %#x are %v…, want %v…", len(want), uint64(p), got[:min(8, len(got))], want[:min(8, len(want))])
	}
}

// pattern is n bytes that differ from those of other seeds.
func pattern(n int, seed byte) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = seed + byte(i*7) + byte(i>>8)
	}
	return data
}
