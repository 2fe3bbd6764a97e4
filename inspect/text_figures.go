package inspect

import "slices"

// figure names a number of a message: bytes, or a count where it says so.
type figure string

// The figures that messages hold.
const (
	figRequest     figure = "request"   // what could not be had
	figTotal       figure = "total"     // of the device
	figFree        figure = "free"      // of the device, by the driver
	figAllocated   figure = "allocated" // live
	figReserved    figure = "reserved"  // taken from the device by the framework
	figCached      figure = "cached"    // reserved and not live
	figOutside     figure = "outside"   // neither free nor reserved
	figLimit       figure = "limit"     // what a setting or the runtime allows
	figPrivate     figure = "private"   // live in the pools of CUDA graphs
	figInUse       figure = "in use"    // of the device, by this process
	figParameters  figure = "parameters"
	figOutputs     figure = "outputs"
	figTemporaries figure = "temporaries"
	figProgram     figure = "program" // the three before and the constants of a compiled program
	figMissing     figure = "missing" // by how much a plan does not fit
	figCacheKV     figure = "kv cache"
	figGraph       figure = "graph"
	figResident    figure = "resident"   // of a process, in the computer's memory
	figTokensAsked figure = "tokens"     // a count
	figTokensFit   figure = "tokens fit" // a count
)

// The figures that follow from those.
const (
	figHeld     figure = "held"      // reserved, or live where only that is known
	figRoom     figure = "room"      // free, or what should be free where that is not known
	figAvail    figure = "avail"     // room + cached
	figShort    figure = "short"     // request − avail
	figSpare    figure = "spare"     // cached − request
	figOver     figure = "over"      // request − total
	figPaged    figure = "paged"     // allocated − total
	figExtra    figure = "extra"     // room − request
	figPerToken figure = "per token" // request ÷ tokens
	figSplitMB  figure = "split"     // a count: a max_split_size_mb that suits the request
)

// amounts are the known numbers of one message.
type amounts map[figure]uint64

func (f amounts) has(names ...figure) bool {
	return !slices.ContainsFunc(names, func(name figure) bool { _, ok := f[name]; return !ok })
}

// dropUnreal forgets figures that no memory has, such as those that the driver
// could not read, except those whose absurdity is the finding.
func (f amounts) dropUnreal() {
	for name, n := range f {
		if n >= unreal && name != figRequest && name != figAllocated && name != figReserved {
			delete(f, name)
		}
	}
}

// difference stores a − b − c… as name, unless name is known, one of them is
// not, or the result is negative.
func (f amounts) difference(name, a figure, less ...figure) {
	if f.has(name) || !f.has(a) || !f.has(less...) {
		return
	}
	n := f[a]
	for _, b := range less {
		if f[b] > n {
			return
		}
		n -= f[b]
	}
	f[name] = n
}

// sum stores a + b as name when name is not known and both are.
func (f amounts) sum(name, a, b figure) {
	if !f.has(name) && f.has(a, b) && f[a] < unreal && f[b] < unreal {
		f[name] = f[a] + f[b]
	}
}

// firstOf stores the first known of some figures as name.
func (f amounts) firstOf(name figure, from ...figure) {
	for _, a := range from {
		if !f.has(name) && f.has(a) {
			f[name] = f[a]
		}
	}
}

// complete computes the figures that follow from those in the message.
func (m *message) complete() {
	f := m.figures
	f.sum(figReserved, figAllocated, figCached)
	f.difference(figCached, figReserved, figAllocated)
	f.difference(figOutside, figTotal, figFree, figReserved)
	if m.is("async") { // the driver's own pool: what it caches counts as outside
		f.difference(figOutside, figTotal, figFree, figAllocated)
	}
	f.firstOf(figHeld, figReserved, figAllocated)
	f.firstOf(figRoom, figFree)
	if m.is("xpu") { // does not say what is free: at most this
		f.difference(figRoom, figTotal, figHeld)
	}
	f.sum(figAvail, figRoom, figCached)
	f.firstOf(figAvail, figRoom)
	f.difference(figShort, figRequest, figAvail)
	f.difference(figSpare, figCached, figRequest)
	f.difference(figOver, figRequest, figTotal)
	f.difference(figPaged, figAllocated, figTotal)
	f.difference(figExtra, figRoom, figRequest)
	if f.has(figRequest, figTokensAsked) && f[figTokensAsked] > 0 {
		f[figPerToken] = f[figRequest] / f[figTokensAsked]
	}
	if f.has(figRequest) {
		f[figSplitMB] = splitSize(f[figRequest])
	}
}

// splitSize is the greatest power of two of MiB up to the request, between the
// 32 that the allocator's smallest allowed value suggests and 512: blocks of
// the request's kind then stay whole.
func splitSize(request uint64) uint64 {
	mb := uint64(32)
	for mb < 512 && mb*2 <= request>>20 {
		mb *= 2
	}
	return mb
}
