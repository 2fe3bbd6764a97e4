package inspect

import (
	"regexp"
	"strconv"
	"strings"
)

const (
	gib = 1 << 30
	// largeDevice is the memory of all but the largest accelerators made; a
	// request beyond it needs no other figure to be judged.
	largeDevice = 180 * gib
	// absurdFactor is how many devices a request must exceed to be an error.
	absurdFactor = 1000
	// xpuPiece is the largest single allocation of Intel's runtime by default.
	xpuPiece = 4 * gib
)

// absurd reports a size or counter that cannot be true.
func (m *message) absurd() bool {
	f := m.figures
	if m.words["impossible"] != "" {
		return true
	}
	if max(f[figAllocated], f[figReserved]) >= unreal {
		m.tag("wrapped")
		return true
	}
	device := uint64(largeDevice)
	if f.has(figTotal) && f[figTotal] > 0 {
		device = f[figTotal]
	}
	return f[figRequest] >= unreal || f[figRequest]/absurdFactor > device
}

// contradicts reports figures that cannot be true together, or a request for
// nothing.
func (m *message) contradicts() bool {
	f := m.figures
	switch {
	case f.has(figFree, figTotal) && f[figFree] > f[figTotal]+f[figTotal]/100:
		m.tag("overfull")
	case f.has(figRequest) && f[figRequest] == 0:
		m.tag("nothing")
	}
	return m.is("overfull") || m.is("nothing")
}

// huge reports a request that no usual device holds, where the device's size
// is not known.
func (m *message) huge() bool { return !m.figures.has(figTotal) && m.figures[figRequest] > largeDevice }

// judgePool applies the rules for a caching allocator, in their order; the
// first that holds decides. What a cut message does not say is left out of the
// rules that need it.
func judgePool(m *message) Verdict {
	if serving.MatchString(m.context) {
		m.tag("server")
	}
	m.complete()
	f := m.figures
	switch {
	case m.secondary():
		return Symptom
	case m.absurd() || m.contradicts():
		return Corrupt
	case m.limited():
		return Limit
	case f[figOver] > 0 || f[figPaged] > 0 || m.huge():
		return OversizeRequest
	case !f.has(figRequest):
		return Unknown
	case f.has(figExtra):
		return Platform
	case m.heldOutside():
		if f[figHeld] < f[figTotal]/10 {
			return OtherProcess
		}
		return OutsidePool
	case f.has(figSpare) && f[figCached] >= f[figReserved]/10:
		return Fragmentation
	case !f.has(figRoom):
		return Unknown
	case f[figAvail] >= f[figRequest]:
		return Tight
	}
	return Capacity
}

// limited reports that a limit in the message is what stopped the request,
// rather than a full device below that limit.
func (m *message) limited() bool {
	f := m.figures
	if m.is("xpu") && f[figRequest] >= xpuPiece && f.has(figExtra) {
		m.tag("piece")
		f[figLimit] = xpuPiece
		return true
	}
	if !f.has(figLimit) {
		return false
	}
	below := f[figHeld] < unreal && f[figHeld]+f[figRequest]+f[figLimit]/100 < f[figLimit]
	full := f.has(figFree, figRequest) && f[figFree] < f[figRequest]
	return !(below && full)
}

// heldOutside reports that the device would have room if it were not for what
// is held outside the pool, a usual context of 1 GiB excepted.
func (m *message) heldOutside() bool {
	f := m.figures
	if !f.has(figOutside, figTotal, figAvail) || f[figOutside] <= max(3*gib/2, f[figTotal]/20) {
		return false
	}
	m.tag("outside")
	return f[figAvail]+f[figOutside]-gib >= f[figRequest]
}

// serving matches what the logs of vLLM and SGLang have around PyTorch's message. The
// names of their settings are not enough: trainings that sample with them print those.
var serving = regexp.MustCompile(`\bEngineCore|\bvllm/|\bsglang/srt|when initializing the engine`)

// secondaryTo matches what must stand near a message that only follows from it.
var secondaryTo = regexp.MustCompile(`NCCL|[Ww]atchdog|[Tt]imed? ?out`)

// secondary reports a garbage request in the wake of a failed collective.
func (m *message) secondary() bool {
	return m.figures[figRequest] >= unreal && secondaryTo.MatchString(m.context)
}

// always gives the verdict that a wording has by itself.
func always(v Verdict) func(*message) Verdict {
	return func(m *message) Verdict { m.complete(); return v }
}

// judgeLimit is for messages that only a limit causes.
func judgeLimit(m *message) Verdict {
	m.complete()
	if m.absurd() {
		return Corrupt
	}
	return Limit
}

// judgeNeed is for messages of which the request is all that is known.
func judgeNeed(m *message) Verdict {
	m.complete()
	switch {
	case m.absurd():
		return Corrupt
	case m.huge():
		return OversizeRequest
	}
	return Capacity
}

// xlaPool matches what only XLA's own pool writes.
var xlaPool = regexp.MustCompile(`request for|cuMemAllocAsync`)

// judgeXLA tells a compiled program that is too large from a pool that XLA
// limited at the start (75 % of the device unless set otherwise).
func judgeXLA(m *message) Verdict {
	f := m.figures
	switch v := judgeNeed(m); {
	case v != Capacity:
		return v
	case !f.has(figRequest):
		return Unknown
	case f[figProgram] >= gib:
		return Capacity
	case xlaPool.MatchString(m.text) || f[figRequest] < gib || f.has(figProgram):
		return Limit
	}
	return Capacity
}

// judgeTPU compares the request with what is free.
func judgeTPU(m *message) Verdict {
	m.complete()
	if m.figures.has(figExtra) {
		return Fragmentation
	}
	return Capacity
}

// judgeCuPy sees only CuPy's pool, which never gives memory back by itself:
// one that holds several times the request keeps what nobody needs.
func judgeCuPy(m *message) Verdict {
	switch v := judgeNeed(m); {
	case v != Capacity:
		return v
	case m.figures.has(figLimit):
		return Limit
	case m.figures.has(figRequest) && m.figures[figAllocated]/4 >= m.figures[figRequest]:
		return Leak
	}
	return Capacity
}

// judgeJulia knows CUDA.jl's cap or the figures of its pool.
func judgeJulia(m *message) Verdict {
	m.figures.difference(figFree, figTotal, figInUse)
	if m.figures.has(figLimit) {
		return judgeLimit(m)
	}
	return judgePool(m)
}

func judgeRMM(m *message) Verdict {
	if v := judgeNeed(m); v != Capacity || !strings.Contains(m.text, "Maximum pool size") {
		return v
	}
	return Limit
}

// judgeONNX knows what its arena may still take only when a limit is set.
func judgeONNX(m *message) Verdict {
	if m.figures.has(figFree) {
		return judgeLimit(m)
	}
	return judgeNeed(m)
}

// judgeTensorFlow compares the request with the pool, where the log has it.
func judgeTensorFlow(m *message) Verdict {
	f := m.figures
	f.difference(figRoom, figLimit, figAllocated)
	switch v := judgeNeed(m); {
	case v != Capacity:
		return v
	case f.has(figLimit) && f[figRequest] > f[figLimit]:
		return OversizeRequest
	case f.has(figExtra):
		return Fragmentation
	}
	return Capacity
}

// judgeDriver reads a refused request for a whole pool as a device that is
// already in use.
func judgeDriver(m *message) Verdict {
	if v := judgeNeed(m); v != Capacity || m.figures[figRequest] < gib {
		return v
	}
	return OtherProcess
}

func judgeNCCL(m *message) Verdict {
	if judgeNeed(m) == Corrupt {
		return Corrupt
	}
	return OutsidePool
}

// judgeOllama compares what the whole model needs with what there is.
func judgeOllama(m *message) Verdict {
	m.complete()
	if m.figures.has(figShort) && m.figures[figShort] > 0 {
		return Capacity
	}
	return Benign
}

// judgeScaler tells a collapsing loss scale from the first steps of a dynamic
// one, which always overflow: it is a collapse when the scale is at its end or
// down to 128, or when it was halved three times and is below its usual start
// of 32768.
func judgeScaler(m *message) Verdict {
	steps, _ := strconv.Atoi(m.words["drops"])
	scale, err := strconv.ParseFloat(m.words["scale"], 64)
	if m.is("end") || err != nil || scale <= 128 || steps >= 3 && scale < 32768 {
		return Numeric
	}
	return Benign
}
