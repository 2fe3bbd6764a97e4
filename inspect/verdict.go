package inspect

import "slices"

// Verdict is the one word that says why memory ran out, or what else a text or
// a snapshot shows.
type Verdict string

// The verdicts; Verdicts says what each of them means.
const (
	Capacity        Verdict = "CAPACITY"
	Tight           Verdict = "TIGHT"
	Fragmentation   Verdict = "FRAGMENTATION"
	Limit           Verdict = "LIMIT"
	OversizeRequest Verdict = "OVERSIZE_REQUEST"
	Platform        Verdict = "PLATFORM"
	OutsidePool     Verdict = "OUTSIDE_POOL"
	OtherProcess    Verdict = "OTHER_PROCESS"
	Corrupt         Verdict = "CORRUPT"
	Leak            Verdict = "LEAK"
	Imbalance       Verdict = "IMBALANCE"
	KVConfig        Verdict = "KV_CONFIG"
	HostMemory      Verdict = "HOST_MEMORY"
	Numeric         Verdict = "NUMERIC"
	Symptom         Verdict = "SYMPTOM"
	Benign          Verdict = "BENIGN"
	Healthy         Verdict = "HEALTHY"
	Unknown         Verdict = "UNKNOWN"
)

// VerdictInfo is a verdict with its meaning in one sentence.
type VerdictInfo struct {
	Verdict Verdict `json:"verdict"`
	Meaning string  `json:"meaning"`
}

// verdicts is the table of all verdicts, from the most to the least common.
var verdicts = []VerdictInfo{
	{Capacity, "The job needs more memory than there is: even perfect packing would not fit the request."},
	{Tight, "The memory is all but full: the cached bytes would just cover the request, and no setting can win more than those."},
	{Fragmentation, "Enough reserved memory is free, but in pieces that are each too small for the request."},
	{Limit, "A limit set in software was reached (a memory fraction, a cap, a pool's size, the largest single allocation) while the device may have more."},
	{OversizeRequest, "One request alone is larger than the device, or the live bytes already are."},
	{Platform, "The device had the memory and the system refused it: a host commit limit, a mapping limit or a virtual machine."},
	{OutsidePool, "Memory that the framework's pool does not hold is what is missing: the context, NCCL, other libraries, other processes."},
	{OtherProcess, "Somebody else holds the device; this process has hardly any of it."},
	{Corrupt, "A size or a counter in the message cannot be true: a wrong shape, an uninitialised value or an overflow."},
	{Leak, "Memory is kept that grows from step to step or that nothing needs any more."},
	{Imbalance, "Memory ran out on one rank of a job, which holds more than the others."},
	{KVConfig, "A server's settings leave too little memory for its key-value cache, or ask too much of it."},
	{HostMemory, "The computer's own memory ran out, not the accelerator's."},
	{Numeric, "Values overflowed or vanished in low precision; memory is not the problem."},
	{Symptom, "The message follows from another failure: the cause stands elsewhere."},
	{Benign, "Nothing failed: the message says that something would be faster, or that a retry is normal."},
	{Healthy, "Nothing failed and nothing grows."},
	{Unknown, "Memory ran out and the message does not hold the figures that would say why; or a snapshot is cut, contradicts itself, or holds no history."},
}

// Verdicts lists every verdict with its meaning.
func Verdicts() []VerdictInfo { return slices.Clone(verdicts) }

// meaning is the sentence of v in the table.
func meaning(v Verdict) string {
	i := slices.IndexFunc(verdicts, func(info VerdictInfo) bool { return info.Verdict == v })
	return verdicts[i].Meaning
}

// The kinds of input that a Report is about.
const (
	KindErrorText = "error_text"
	KindSnapshot  = "snapshot"
)

// Report is the answer of ExplainText and History.Explain: the verdict, the arithmetic behind it
// and what to do. A figure is nil when the input does not hold it and it cannot
// be computed from those that it holds.
type Report struct {
	Kind      string  `json:"kind"` // KindErrorText or KindSnapshot
	Verdict   Verdict `json:"verdict"`
	Summary   string  `json:"summary"`   // one or two sentences with the arithmetic
	Framework string  `json:"framework"` // who wrote the message: "PyTorch", "JAX", …
	Device    string  `json:"device"`    // such as "GPU 0", empty when unknown

	RequestBytes      *uint64 `json:"request_bytes"`       // what could not be had
	TotalBytes        *uint64 `json:"total_bytes"`         // of the device
	FreeBytes         *uint64 `json:"free_bytes"`          // of the device, by the driver
	AllocatedBytes    *uint64 `json:"allocated_bytes"`     // live: handed out by the framework
	ReservedBytes     *uint64 `json:"reserved_bytes"`      // taken from the device by the framework
	PeakReservedBytes *uint64 `json:"peak_reserved_bytes"` // the same at most; of a snapshot
	CachedBytes       *uint64 `json:"cached_bytes"`        // reserved and not live
	OutsideBytes      *uint64 `json:"outside_bytes"`       // neither free nor reserved by the framework
	LimitBytes        *uint64 `json:"limit_bytes"`         // allowed by a setting, or the largest single allocation

	Causes    []Cause  `json:"causes"`    // what the memory is, the one that matters first
	Actions   []string `json:"actions"`   // what to do, most useful first
	Unhelpful []string `json:"unhelpful"` // what will not help, and why
}

// Cause is a part of the memory that the verdict speaks of.
type Cause struct {
	What  string `json:"what"`
	Bytes uint64 `json:"bytes"`
	Where string `json:"where"` // a device, a process or a line of source
}
