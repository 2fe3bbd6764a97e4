package inspect

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// wording is how one program says that memory ran out: a row of the table.
type wording struct {
	framework string
	keys      []string // one of these must occur, as it stands
	must      string   // and this pattern
	start     string   // where each message starts; without it a text is one message
	skip      string   // in a message that belongs to another row
	tags      []string
	decimal   bool // MB and GB are powers of 1000
	phrases   []phrase
	detail    func(*message) // fills in what phrases cannot
	judge     func(*message) Verdict

	mustRE, startRE, skipRE *regexp.Regexp
}

// phrase is a part of a message with one figure. <size> stands for a number
// with a unit, <n> for a whole number; the first group that takes part is the
// figure. The first phrase of a figure that occurs counts.
type phrase struct {
	figure  figure
	pattern string
	re      *regexp.Regexp
}

// maxMessage is where a message ends when no other starts before.
const maxMessage = 16 << 10

// pytorchPhrases are the figures of PyTorch's caching allocator in all ages:
// 1.0 to 1.3 print cached as reserved minus allocated, 1.4 to 2.0 reserved as
// the total, 2.1 (with the typo "capacty") and later cached again.
var pytorchPhrases = []phrase{
	{figure: figRequest, pattern: `Tried to allocate(?: more than)? <size>`},
	{figure: figTotal, pattern: `<size> total capac\w*|total capac\w* of <size>`},
	{figure: figFree, pattern: `<size> (?:is )?free\b`},
	{figure: figAllocated, pattern: `<size> already allocated|<size> is allocated by PyTorch`},
	{figure: figReserved, pattern: `<size> reserved in total`},
	{figure: figCached, pattern: `<size> cached\b|<size> is reserved by PyTorch but unallocated`},
	{figure: figPrivate, pattern: `<size> allocated in private pools`},
	{figure: figLimit, pattern: `<size> allowed\b|size larger than <size>`},
	{figure: figInUse, pattern: `this process has <size> memory in use`},
}

// rawWordings is the table, the message that tells most first.
var rawWordings = []wording{
	{framework: "PyTorch", tags: []string{"pytorch", "mps"}, judge: judgeLimit,
		keys:  []string{"MPS backend out of memory", "Invalid buffer size"},
		start: `MPS backend out of memory|Invalid buffer size`,
		phrases: []phrase{
			{figure: figRequest, pattern: `Tried to allocate <size>|Invalid buffer size: <size>`},
			{figure: figAllocated, pattern: `MPS allocated: <size>`},
			{figure: figOutside, pattern: `other allocations: <size>`},
			{figure: figLimit, pattern: `max allowed: <size>`},
		}, detail: func(m *message) { m.device = "MPS" }},
	{framework: "PyTorch", tags: []string{"pytorch", "pool"}, judge: judgePool,
		keys:    []string{"Tried to allocate"},
		start:   `(?:[A-Z]{3,5} out of memory\. ?|size larger than \S+ )?Tried to allocate`,
		phrases: pytorchPhrases, detail: detailPyTorch},
	{framework: "PyTorch", tags: []string{"pytorch", "pool"}, judge: judgePool, // its beginning was cut off
		keys:    []string{"reserved in total by PyTorch", "is allocated by PyTorch"},
		phrases: pytorchPhrases, detail: detailPyTorch},
	{framework: "PyTorch", tags: []string{"pytorch", "async", "pool"}, judge: judgePool,
		keys:  []string{"would exceed allowed memory"},
		start: `Allocation on device \d* ?would exceed allowed memory`,
		phrases: []phrase{
			{figure: figAllocated, pattern: `Currently allocated ?: ?<size>`},
			{figure: figRequest, pattern: `Requested ?: ?<size>`},
			{figure: figTotal, pattern: `Device limit ?: ?<size>`},
			{figure: figFree, pattern: `Free \(according to CUDA\) ?: ?<size>`},
			{figure: figLimit, pattern: `PyTorch limit \(set by[^)]*\) ?: ?<size>`},
		}},
	{framework: "XLA on a TPU", tags: []string{"jax", "tpu"}, judge: judgeTPU,
		keys: []string{"in memory space hbm", "That was not possible"},
		phrases: []phrase{
			{figure: figRequest, pattern: `Used <size> of \S+ hbm|Attempting to (?:allocate|reserve) <size>`},
			{figure: figTotal, pattern: `Used \S+ of <size> hbm|HBM capacity <size>`},
			{figure: figFree, pattern: `There are <size> free`},
			{figure: figAllocated, pattern: `Currently allocated: <size>`},
		}, detail: func(m *message) { m.device = cmp.Or(m.device, "TPU") }},
	{framework: "JAX", tags: []string{"jax"}, judge: judgeXLA,
		keys: []string{"Out of memory while trying to allocate", "Failed to allocate request for", "cuMemAllocAsync failed to allocate"},
		phrases: []phrase{
			{figure: figRequest, pattern: `cuMemAllocAsync failed to allocate <size>|request for \S+ \(<n>B\)|while trying to allocate <size>|request for <size>`},
			{figure: figParameters, pattern: `parameter allocation: <size>`},
			{figure: figOutputs, pattern: `maybe_live_out allocation: <size>`},
			{figure: figTemporaries, pattern: `temp allocation: <size>`},
			{figure: figProgram, pattern: `total allocation: <size>`},
		}},
	{framework: "llama.cpp", tags: []string{"llama"}, judge: judgeNeed,
		keys: []string{"ggml", "llama_params_fit", "failed to allocate compute buffers", "unable to allocate"},
		must: `allocating \S+ MiB on device|failed to allocate \w+ buffer of size|unable to allocate \w+ buffer|` +
			`out of memory.{0,300}?ggml|ggml\S*: out of memory|failed to allocate compute buffers|llama_params_fit: projected`,
		phrases: []phrase{
			{figure: figRequest, pattern: `buffer of size <n>|allocating <size>|projected to use <size>`},
			{figure: figTotal, pattern: `vs\. a total of <size>`},
			{figure: figMissing, pattern: `need to use <size> less`},
		}, detail: detailLlama},
	{framework: "vLLM", tags: []string{"vllm"}, judge: always(OtherProcess),
		keys: []string{"on startup is less than desired"},
		phrases: []phrase{
			{figure: figTotal, pattern: `\([\d.]+(?: GiB)?/<size>\) on startup`},
			{figure: figRequest, pattern: `utilization \([\d.]+, <size>\)`},
		}, detail: detailStartup},
	{framework: "vLLM", tags: []string{"vllm"}, judge: always(KVConfig),
		keys: []string{"KV cache is needed", "stored in KV cache", "available KV cache memory", "No available memory for the cache blocks"},
		phrases: []phrase{
			{figure: figRequest, pattern: `<size> KV cache is needed`},
			{figure: figFree, pattern: `available KV cache memory \(<size>\)`},
			{figure: figTokensAsked, pattern: `max seq len \(<n>\)`},
			{figure: figTokensFit, pattern: `stored in KV cache \(<n>\)|maximum model length is <n>`},
		}},
	{framework: "SGLang", tags: []string{"sglang"}, judge: always(KVConfig),
		keys: []string{"mem-fraction-static", "mem_fraction_static"}, must: `[Nn]ot enough memory|leaves? no (?:GPU )?memory`},
	{framework: "Text Generation Inference", tags: []string{"tgi"}, judge: always(KVConfig),
		keys: []string{"Not enough memory to handle", "max-batch-prefill-tokens", "ot enough memory for KV cache"},
		must: `[Nn]ot enough memory`,
		phrases: []phrase{
			{figure: figTokensAsked, pattern: `to handle <n>`},
		}},
	{framework: "Paddle", tags: []string{"paddle"}, judge: judgePool,
		keys: []string{"Out of memory error on GPU", "allocating <= available failed"},
		phrases: []phrase{
			{figure: figRequest, pattern: `Cannot allocate <size> memory|available failed, <n> >`},
			{figure: figAllocated, pattern: `<size> memory has been allocated`},
			{figure: figFree, pattern: `available memory is only <size>|available failed, \d+ > <n>`},
		}},
	{framework: "CuPy", tags: []string{"cupy"}, judge: judgeCuPy,
		keys:  []string{"out of memory to allocate", "Out of memory allocating"},
		start: `[oO]ut of memory (?:to allocate|allocating)`,
		phrases: []phrase{
			{figure: figRequest, pattern: `[oO]ut of memory (?:to allocate|allocating) <size>`},
			{figure: figAllocated, pattern: `allocated so far: <size>`},
			{figure: figProgram, pattern: `\(total <size>`},
			{figure: figLimit, pattern: `limit set to:? <size>`},
		}, detail: detailCuPy},
	{framework: "CUDA.jl", tags: []string{"julia"}, judge: judgeJulia,
		keys: []string{"Out of GPU memory trying to allocate", "Effective GPU memory usage"},
		phrases: []phrase{
			{figure: figRequest, pattern: `Out of GPU memory trying to allocate <size>`},
			{figure: figInUse, pattern: `Effective GPU memory usage: [\d.]+% \(<size>/`},
			{figure: figTotal, pattern: `Effective GPU memory usage: [\d.]+% \([^/]*/<size>\)`},
			{figure: figAllocated, pattern: `allocator usage: <size>|pool usage: <size>`},
			{figure: figReserved, pattern: `\(<size> reserved\)`},
			{figure: figLimit, pattern: `\(capped at <size>\)`},
		}},
	{framework: "RMM", tags: []string{"rmm"}, judge: judgeRMM,
		keys: []string{"rmm", "RMM"}, must: `bad_alloc|out_of_memory|Maximum pool size exceeded|RMM_ERROR_OUT_OF_MEMORY`,
		phrases: []phrase{
			{figure: figRequest, pattern: `failed to allocate <size>`},
			{figure: figLimit, pattern: `current/max/try size = [^,]*, <size>`},
		}},
	{framework: "ONNX Runtime", tags: []string{"onnx"}, judge: judgeONNX,
		keys: []string{"BFCArena", "bfc_arena"}, start: `requested buffer of size|Available memory of`,
		phrases: []phrase{
			{figure: figRequest, pattern: `requested buffer of size <n>|requested bytes of <n>`},
			{figure: figFree, pattern: `Available memory of <n>`},
		}},
	{framework: "HAMi", tags: []string{"hami"}, judge: judgeLimit,
		keys: []string{"HAMI-core"}, start: `Device \d+ OOM`,
		phrases: []phrase{
			{figure: figAllocated, pattern: `OOM <n> /`},
			{figure: figLimit, pattern: `OOM \d+ / <n>`},
		}},
	{framework: "nvidia-smi", tags: []string{"smi"}, judge: judgeLimit,
		keys: []string{"1759218"}, start: `\b1759218\d{7} ?MiB`,
		phrases: []phrase{
			{figure: figAllocated, pattern: `(1759218\d{7} ?MiB)`},
			{figure: figTotal, pattern: `1759218\d{7} ?MiB / <size>`},
		}},
	{framework: "MXNet", tags: []string{"mxnet"}, judge: judgeNeed,
		keys: []string{"pooled_storage_manager", "cudaMalloc retry failed", "mshadow"}, must: `out of memory`},
	{framework: "Deeplearning4j", tags: []string{"dl4j"}, judge: judgeLimit,
		keys: []string{"maxPhysicalBytes"},
		phrases: []phrase{
			{figure: figAllocated, pattern: `[^x]physicalBytes \(<size>\)|physicalBytes = <size>`},
			{figure: figLimit, pattern: `maxPhysicalBytes \(<size>\)|maxPhysicalBytes = <size>`},
		}},
	{framework: "Deeplearning4j", tags: []string{"dl4j"}, judge: judgeNeed,
		keys: []string{"[DEVICE]", "from DEVICE"}, must: `\[DEVICE\]|Failed to allocate \[?\d+\]? bytes from \[?DEVICE`,
		phrases: []phrase{
			{figure: figRequest, pattern: `Failed to allocate \[?<n>\]? bytes|requested bytes: \[<n>\]`},
		}},
	{framework: "TensorFlow", tags: []string{"tf"}, judge: judgeTensorFlow,
		keys: []string{"OOM when allocating tensor", "ran out of memory trying to allocate", "Ran out of memory trying to allocate"},
		skip: `freed_by_count|caller indicates|not a ?failure|performance gains|cuda_host_bfc`, start: `OOM when allocating tensor|Allocator \(\w+\) ran out of memory|[rR]an out of memory trying to allocate`,
		phrases: []phrase{
			{figure: figRequest, pattern: `\(rounded to <n>\)|trying to allocate <size>`},
			{figure: figLimit, pattern: `\bLimit: <n>`},
			{figure: figAllocated, pattern: `\bInUse: <n>`},
		}, detail: detailTensorFlow},
	{framework: "TensorFlow", tags: []string{"tf"}, judge: judgeDriver,
		keys: []string{"from device: CUDA_ERROR_OUT_OF_MEMORY", "from device: hipError"}, start: `failed to allocate \S+ \(`,
		phrases: []phrase{
			{figure: figRequest, pattern: `failed to allocate \S+ \(<n> bytes\)|failed to allocate <size>`},
		}},
	{framework: "NCCL", tags: []string{"nccl"}, judge: judgeNCCL,
		keys: []string{"Failed to CUDA calloc", "NCCL WARN Cuda failure", "ncclUnhandledCudaError"},
		must: `Failed to CUDA (?:calloc|malloc)|Cuda failure (?:\d+ )?'out of memory'|ncclUnhandledCudaError.{0,400}out of memory`,
		phrases: []phrase{
			{figure: figRequest, pattern: `Failed to CUDA \w+(?: async)? <n> bytes`},
		}},
	{framework: "Ollama", tags: []string{"ollama"}, judge: judgeOllama, decimal: true,
		keys: []string{"memory.required.full"},
		phrases: []phrase{
			{figure: figRequest, pattern: `memory\.required\.full="?(<size>)`},
			{figure: figFree, pattern: `memory\.available="?\[?([^\]]*)`},
			{figure: figCacheKV, pattern: `memory\.required\.kv="?(<size>)`},
			{figure: figGraph, pattern: `memory\.graph\.full="?(<size>)`},
		}},
	{framework: "the operating system", tags: []string{"host"}, judge: always(HostMemory), detail: func(m *message) { m.device = "host" },
		keys: []string{"Out of memory: Kill", "out of memory: Kill", "oom-kill", "oom_kill event", "oom_reaper", "OOMKilled", "OOM Killed", "CPUAllocator", "requires more system memory", "ArrayMemoryError", "for an array with shape", "total-vm:",
			"killed by signal", "insufficient shared memory", "cuda_host_bfc", "on host: CUDA_ERROR", "pinned host memory", "[HOST]",
			"from HOST memory", "std::bad_alloc", "Cannot allocate memory"},
		phrases: []phrase{
			{figure: figRequest, pattern: `tried to allocate <size>|system memory \(<size>\)|Unable to allocate <size>|alloc(?:ate)? <size> (?:on host|from HOST)|memory of size: <n>|memory: <n>;`},
			{figure: figFree, pattern: `than is available \(<size>\)`},
			{figure: figResident, pattern: `anon-rss:<size>`},
		}},
	{framework: "a CUDA library", tags: []string{"library"}, judge: always(Symptom),
		keys: []string{"STATUS_ALLOC_FAILED", "STATUS_NOT_INITIALIZED", "STATUS_ALLOCATION_FAILED", "STATUS_INITIALIZATION_FAILED",
			"ublas handle failed", "cublas handle", "udnn handle", "reating cuRAND", "reate cuRAND", "Dst tensor is not initialized",
			"status_memory_error", "CURAND_STATUS"}},
	{framework: "CUDA", tags: []string{"cuda"}, judge: always(Unknown),
		keys: []string{"out of memory", "OutOfMemoryError", "Out of memory", "_OUT_OF_MEMORY", "ErrorMemoryAllocation", "ErrorOutOfMemory",
			"cuMemoryAllocate failed res=2", "RESOURCE_EXHAUSTED", "ResourceExhaustedError"},
		start: `[oO]ut of memory|OutOfMemory|OUT_OF_MEMORY|MemoryAllocation|failed res=2|RESOURCE_EXHAUSTED|ResourceExhausted`, skip: `freed_by_count|caller indicates|not a ?failure|performance gains`},
	{framework: "PyTorch", tags: []string{"pytorch", "table"}, judge: always(Unknown), // what one without figures is asked for
		keys: []string{"CUDA memory summary"},
		phrases: []phrase{
			{figure: figAllocated, pattern: `Allocated memory \| ?<size>`},
			{figure: figReserved, pattern: `GPU reserved memory \| ?<size>`},
		}},
	{framework: "Python", tags: []string{"host"}, judge: always(HostMemory), detail: func(m *message) { m.device = "host" },
		keys: []string{"MemoryError"}, must: `(?:^|\s)MemoryError\b`},
	{framework: "mixed precision", tags: []string{"scaler"}, detail: detailScaler, judge: judgeScaler,
		keys: []string{"loss scale", "OVERFLOW!", "radient overflow", "Grad overflow", "without overflow", "oss is nan", "oss is inf"},
		must: `[oO]verflow|OVERFLOW|already at minimum|inimum loss scale|oss (?:scale)?(?: is|:|=)? ?(?:inf|nan|0\.0\b)`},
	{framework: "the operating system", tags: []string{"host", "killed"}, judge: always(HostMemory), detail: func(m *message) { m.device = "host" },
		keys: []string{"Killed", "zsh: killed"}, must: `(?:^ ?|: line \d+: ?\d* ?|\] ?\+? ?)Killed\b|zsh: killed\b|\bKilled ?$`},
	{framework: "TensorFlow", tags: []string{"tf"}, judge: always(Benign),
		keys: []string{"this is not a failure"},
		phrases: []phrase{
			{figure: figRequest, pattern: `trying to allocate <size>`},
		}},
}

// wordings is the table with its patterns compiled.
var wordings = sync.OnceValue(func() []wording {
	table := slices.Clone(rawWordings)
	fill := strings.NewReplacer("<size>", "("+sizePattern+")", "(<size>)", "("+sizePattern+")", "<n>", "("+countPattern+")")
	for i := range table {
		w := &table[i]
		w.phrases = slices.Clone(w.phrases)
		for j := range w.phrases {
			w.phrases[j].re = regexp.MustCompile(fill.Replace(w.phrases[j].pattern))
		}
		w.mustRE, w.startRE, w.skipRE = compile(w.must), compile(w.start), compile(w.skip)
	}
	return table
})

// compile is nil for the empty pattern.
func compile(pattern string) *regexp.Regexp {
	if pattern == "" {
		return nil
	}
	return regexp.MustCompile(pattern)
}

// allKeys lists the key words of all wordings in the table's order.
func allKeys() []string {
	var keys []string
	for i := range rawWordings {
		keys = append(keys, rawWordings[i].keys...)
	}
	return keys
}

// occurs says whether one of the key words stands in text.
func (w *wording) occurs(text string) bool {
	return slices.ContainsFunc(w.keys, func(key string) bool { return strings.Contains(text, key) })
}

// parts cuts text into the messages of this wording.
func (w *wording) parts(text string) []string {
	if w.mustRE != nil && !w.mustRE.MatchString(text) {
		return nil
	}
	if w.startRE == nil {
		return []string{text}
	}
	var parts []string
	starts := w.startRE.FindAllStringIndex(text, -1)
	for i, at := range starts {
		to := len(text)
		if i+1 < len(starts) {
			to = starts[i+1][0]
		}
		part := text[at[0]:min(to, at[0]+maxMessage)]
		if w.skipRE == nil || !w.skipRE.MatchString(part) {
			parts = append(parts, part)
		}
	}
	return parts
}

var (
	deviceName = regexp.MustCompile(`\b(?:(NPU|GPU|XPU) {0,2}|GPU[_:]|[dD]evice(?: ordinal)?[: ]{1,2}|(?:deviceId:|DEVICE) \[|cuda:|CUDA|ROCm)(\d{1,3})(?:\b|_)`)
	processes  = regexp.MustCompile(`Process (\d+) has (` + sizePattern + `) memory in use`)
)

// deviceIn is the first device that a text names, empty if there is none.
func deviceIn(text string) string {
	groups := deviceName.FindStringSubmatch(text)
	if groups == nil {
		return ""
	}
	return strings.ReplaceAll(cmp.Or(groups[1], "GPU"), "XPU", "GPU") + " " + groups[2]
}

// read takes the figures out of one message.
func (w *wording) read(text string, rank int) *message {
	m := &message{wording: w, rank: rank, text: text, figures: amounts{}, words: map[string]string{}, tags: w.tags}
	for _, p := range w.phrases {
		if groups := p.re.FindStringSubmatch(text); groups != nil && !m.figures.has(p.figure) {
			i := 1 + slices.IndexFunc(groups[1:], func(g string) bool { return g != "" })
			if noSize.MatchString(groups[i]) {
				m.words["impossible"] = groups[i]
				continue
			}
			m.figures[p.figure] = sumBytes(groups[i], w.decimal)
		}
	}
	m.device = deviceIn(text)
	for _, groups := range processes.FindAllStringSubmatch(text, 64) {
		if n := parseBytes(groups[2], false); n < unreal {
			m.others = append(m.others, process{groups[1], n})
		}
	}
	m.figures.dropUnreal()
	if w.detail != nil {
		w.detail(m)
	}
	return m
}
