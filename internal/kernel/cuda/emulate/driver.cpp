// A CUDA driver that computes on the processor: libcuda.so.1 with the functions
// that internal/cuda calls, for GPUs of compute capability 9.0. Of the PTX
// that it is given it takes the names of the kernels, which are in the library
// as functions. It lends real memory, with addresses around that have none, and
// refuses what a real driver would not forgive.
//
// Streams are queues that run as late as they may: when somebody waits for
// them, or looks at their events, or where one waits for a count that another
// one sets. New memory is full of NaN. A kernel that
// fails is the end of the context, as on a GPU; the text of the error says what
// it did.
#include "../launch.cuh"

#include <deque>
#include <dlfcn.h>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <vector>

namespace {

enum {
	invalidValue = 1, outOfMemory = 2, invalidContext = 201, invalidImage = 200, invalidHandle = 400, notFound = 500, notReady = 600,
	illegalState = 401, illegalAddress = 700, tooLarge = 701, captureUnsupported = 900, updateFailed = 910
};

const int gpus = 8;
const u64 granule = 2 << 20, page = 4 << 10, gpuMemory = 16ull << 30, addresses = 1ull << 43;

typedef std::vector<std::function<void()>> Graph;

struct Stream;

// A Mark is where an event was recorded last.
struct Mark {
	std::shared_ptr<Stream> stream;
	u64 number;
	double seconds;
};

// Work can be done when the mark is passed, and the count is n or more.
struct Work {
	std::function<void()> f;
	std::shared_ptr<Mark> after;
	const u64 *count;
	u64 n;
};

struct Stream {
	int gpu;
	std::deque<Work> work;
	u64 done = 0;
	bool captures = false;
	Graph captured;

	void add(std::function<void()> f) {
		if (captures)
			captured.push_back(std::move(f));
		else
			work.push_back({std::move(f)});
	}
	u64 end() const { return done + work.size(); }
	bool passed(const Mark &m) const { return done >= m.number; }

	// step does the first piece of work, if it can be done.
	bool step() {
		if (work.empty()) return false;
		Work &w = work.front();
		if (w.after && !w.after->stream->passed(*w.after) || w.count && __atomic_load_n(w.count, __ATOMIC_ACQUIRE) < w.n) return false;
		auto f = std::move(w.f);
		work.pop_front();
		done++;
		if (f) f();
		return true;
	}
	void run(u64 n);
};

struct Event {
	std::shared_ptr<Mark> mark;
	bool timing;
};

struct Function {
	std::string name;
	void (*code)(Launch);
	int threads, shared;
	bool members; // takes them
};
struct Entry {
	int threads; // of a block at most
	bool members;
};
typedef std::map<std::string, Entry> Module;

struct Handle {
	int file; // the device's, or its own if it can be exported
	u64 offset, size;
	int mappings = 0;
	bool released = false, imported = false;
};
struct Mapping {
	u64 size;
	std::shared_ptr<Handle> handle;
};

std::mutex mutex;
std::string lost; // what went wrong; then all calls fail
int retained[gpus];
thread_local int current = -1; // the GPU of the thread's context
u64 used, nextAddress, nextHandle = 1, fileEnd;
int file;
std::map<u64, u64> allocations, ranges; // sizes by address
std::map<u64, Mapping> mappings;
std::map<u64, std::shared_ptr<Handle>> handles;
std::multimap<u64, u64> freed; // places in the file, by size
std::map<void *, u64> pinned;
std::map<u64, std::shared_ptr<Stream>> streams;
std::map<u64, Event> events;
std::map<u64, Module> modules;
std::map<u64, Function> functions;
std::map<u64, Graph> graphs, execs;

// A Call is entered with the driver for itself. code is why it can't be made.
struct Call {
	std::lock_guard<std::mutex> lock{mutex};
	int code = !lost.empty() ? illegalAddress : current < 0 || !retained[current] ? invalidContext : 0;
};
#define CALL \
	Call call; \
	if (call.code) return call.code

template <class M> auto find(M &m, u64 key) -> decltype(&m.begin()->second) {
	auto it = m.find(key);
	return it == m.end() ? nullptr : &it->second;
}

// A call to the driver about stream that may not be captured.
#define QUEUE \
	CALL; \
	auto s = find(streams, stream); \
	if (!s) return invalidHandle; \
	if ((*s)->captures) return captureUnsupported

double now() {
	timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

u64 roundUp(u64 n, u64 unit) { return (n + unit - 1) / unit * unit; }

// take gives addresses that were never used, with a gap behind.
u64 take(u64 size) {
	u64 p = nextAddress, end = p + roundUp(size, granule) + granule;
	if (size > gpuMemory * 64 || end > machine::memoryEnd) return 0;
	nextAddress = end;
	return p;
}

void clearRange(u64 p, u64 size) { mmap((void *)p, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0); }

// run runs a kernel now.
void run(const std::string &name, void (*code)(Launch), const Launch &l, const Members *m, const int *grid, int threads, int shared) {
	if (!lost.empty()) return;
	if (const char *failure = machine::run(code, l, m, grid, threads, shared)) lost = name + ": " + failure;
}

// copy queues a copy, as a kernel of one thread, so that bad addresses are found
// like a kernel's. here and there say which places are the device's.
template <bool here, bool there> int copy(u64 to, u64 from, u64 n, u64 stream) {
	auto s = find(streams, stream);
	if (!s) return invalidHandle;
	if ((*s)->captures) return captureUnsupported; // nothing of ours captures copies
	Launch l = {};
	l.ptr[0] = to, l.ptr[1] = from, l.n[0] = (i64)n;
	(*s)->add([=] {
		const int one[3] = {1, 1, 1};
		run("copy", [](Launch l) { memcpy(here ? at<char>(l.ptr[0]) : (char *)l.ptr[0], there ? at<char>(l.ptr[1]) : (char *)l.ptr[1], l.n[0]); }, l, 0, one, 1, 0);
	});
	return 0;
}

// others does a piece of work of each stream but one, where it can, and says
// whether any could.
bool others(const Stream *but) {
	bool any = false;
	for (auto &s : streams)
		if (s.second.get() != but && s.second->step()) any = true;
	return any;
}

// run runs the work up to number n. Where it waits for another stream, that goes
// on; where for what nobody has queued yet, the driver is left to others.
void Stream::run(u64 n) {
	while (done < n) {
		if (step()) continue;
		if (auto m = work.front().after; m && !m->stream->passed(*m)) {
			m->stream->run(m->number);
		} else if (!others(this)) {
			mutex.unlock();
			usleep(20);
			mutex.lock();
		}
	}
}

// runAll runs what is queued on the GPU.
void runAll() {
	auto all = streams;
	for (auto &s : all)
		if (s.second->gpu == current) s.second->run(s.second->end());
}

// code is the result of a call that has waited for work.
int code() { return lost.empty() ? 0 : illegalAddress; }

// kernel finds a kernel in this library.
void (*kernel(const char *name))(Launch) {
	static void *self = [] {
		Dl_info info;
		dladdr((void *)code, &info);
		return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
	}();
	return (void (*)(Launch))dlsym(self, name);
}

// parse finds the functions of a module, and what they are made for.
Module parse(const std::string &ptx) {
	const std::string entry = ".visible .entry ", bound = ".maxntid ";
	Module m;
	for (size_t i = ptx.find(entry); i != std::string::npos; i = ptx.find(entry, i)) {
		i += entry.size();
		std::string name = ptx.substr(i, ptx.find('(', i) - i);
		size_t end = ptx.find(bound, i);
		bool members = ptx.substr(i, end - i).find(name + "_param_1") != std::string::npos;
		m[name] = {std::stoi(ptx.substr(end + bound.size(), 10)), members};
	}
	return m;
}

// allWait says whether all of so many kernels wait for what is before them.
bool allWait(const std::string &ptx, size_t kernels) {
	const std::string wait = "\tgriddepcontrol.wait;\n";
	size_t n = 0;
	for (size_t i = ptx.find(wait); i != std::string::npos; i = ptx.find(wait, i + 1)) n++;
	return n == kernels;
}

template <class M, class V> u64 keep(M &m, V value) {
	m[++nextHandle] = std::move(value);
	return nextHandle;
}

void drop(const std::shared_ptr<Handle> &h) {
	if (!h->released || h->mappings) return;
	if (h->file == file)
		freed.insert({h->size, h->offset});
	else
		close(h->file);
	used -= h->size;
}

}

#define API extern "C" int

API cuInit(unsigned) { return 0; }
API cuDriverGetVersion(int *v) { return *v = 13000, 0; }
API cuGetErrorName(int code, const char **s) {
	static const std::map<int, const char *> names = {{invalidValue, "CUDA_ERROR_INVALID_VALUE"}, {outOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
		{invalidContext, "CUDA_ERROR_INVALID_CONTEXT"}, {invalidImage, "CUDA_ERROR_INVALID_IMAGE"}, {invalidHandle, "CUDA_ERROR_INVALID_HANDLE"},
		{notFound, "CUDA_ERROR_NOT_FOUND"}, {notReady, "CUDA_ERROR_NOT_READY"}, {illegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS"},
		{tooLarge, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"}, {illegalState, "CUDA_ERROR_ILLEGAL_STATE"},
		{captureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"}};
	auto it = names.find(code);
	return it == names.end() ? invalidValue : (*s = it->second, 0);
}
API cuGetErrorString(int code, const char **s) {
	std::lock_guard<std::mutex> lock(mutex);
	return *s = code == illegalAddress ? lost.c_str() : "the emulated driver refuses it", 0;
}
API cuDeviceGetCount(int *n) { return *n = gpus, 0; }
API cuDeviceGet(int *d, int i) { return *d = i, i < 0 || i >= gpus ? 101 : 0; }
API cuDeviceCanAccessPeer(int *can, int a, int b) { return *can = a != b, 0; }
API cuDeviceGetName(char *s, int n, int) { return strncpy(s, "emulated", n), 0; }
API cuDeviceGetPCIBusId(char *s, int n, int) { return strncpy(s, "0000:00:00.0", n), 0; }
API cuDeviceGetAttribute(int *v, int attribute, int) {
	static const std::map<int, int> values = {{16, 1}, {75, 9}, {76, 0}, {81, 228 << 10}, {98, 0}, {102, 1}, {103, 1}, {122, 1}};
	auto it = values.find(attribute);
	return it == values.end() ? invalidValue : (*v = it->second, 0);
}

API cuDevicePrimaryCtxRetain(void **c, int gpu) {
	std::lock_guard<std::mutex> lock(mutex);
	if (!file) {
		file = memfd_create("device memory", 0);
		void *all = mmap(0, addresses, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (file < 0 || all == MAP_FAILED) return outOfMemory;
		machine::memory = nextAddress = roundUp((u64)all, granule);
		machine::memoryEnd = (u64)all + addresses;
	}
	retained[gpu]++;
	return *c = &retained[gpu], 0;
}
API cuDevicePrimaryCtxRelease_v2(int gpu) {
	std::lock_guard<std::mutex> lock(mutex);
	return retained[gpu] ? retained[gpu]--, 0 : invalidContext;
}
API cuCtxSetCurrent(void *c) {
	current = (int *)c - retained;
	return current < 0 || current >= gpus ? current = -1, invalidContext : 0;
}

API cuMemGetInfo_v2(u64 *free, u64 *total) {
	CALL;
	return *free = gpuMemory - used, *total = gpuMemory, 0;
}
API cuMemAlloc_v2(u64 *p, u64 n) {
	CALL;
	u64 whole = roundUp(n, page), room = whole ? take(whole) : 0;
	if (!n) return invalidValue;
	if (used + whole > gpuMemory || !room || mprotect((void *)room, whole, PROT_READ | PROT_WRITE)) return outOfMemory;
	memset((void *)room, 0xff, whole);
	used += whole;
	*p = room + (whole - roundUp(n, 512)); // its end is the page's
	allocations[*p] = n;
	return 0;
}
API cuMemFree_v2(u64 p) {
	CALL;
	auto n = find(allocations, p);
	if (!n) return invalidValue;
	runAll();
	u64 whole = roundUp(*n, page);
	clearRange(p / page * page, whole);
	used -= whole;
	allocations.erase(p);
	return code();
}
API cuMemHostAlloc(void **p, u64 n, unsigned) {
	CALL;
	*p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (*p == MAP_FAILED) return outOfMemory;
	pinned[*p] = n;
	return 0;
}
API cuMemFreeHost(void *p) {
	CALL;
	if (!pinned.count(p)) return invalidValue;
	runAll();
	munmap(p, pinned[p]);
	pinned.erase(p);
	return code();
}

API cuMemGetAllocationGranularity(u64 *n, void *, int) {
	CALL;
	return *n = granule, 0;
}
API cuMemAddressReserve(u64 *p, u64 n, u64 align, u64, u64) {
	CALL;
	if (!n || n % granule || align > granule) return invalidValue;
	if (!(*p = take(n))) return outOfMemory;
	ranges[*p] = n;
	return 0;
}
API cuMemAddressFree(u64 p, u64 n) {
	CALL;
	auto mapped = mappings.lower_bound(p);
	if (!ranges.count(p) || ranges[p] != n || mapped != mappings.end() && mapped->first < p + n) return invalidValue;
	ranges.erase(p);
	return 0;
}
// place finds room for a new handle in the device's file.
static bool place(Handle &h) {
	h.file = file, h.offset = fileEnd;
	if (auto old = freed.find(h.size); old != freed.end()) {
		h.offset = old->second;
		freed.erase(old);
		return true;
	}
	return !ftruncate(file, fileEnd += h.size);
}
// placeAlone gives a new handle a file of its own.
static bool placeAlone(Handle &h) {
	h.file = memfd_create("exported memory", 0), h.offset = 0;
	return h.file >= 0 && !ftruncate(h.file, h.size);
}
API cuMemCreate(u64 *out, u64 n, const int *prop, u64) {
	CALL;
	if (!n || n % granule) return invalidValue;
	if (used + n > gpuMemory) return outOfMemory;
	Handle h = {0, 0, n};
	if (!(prop[1] ? placeAlone(h) : place(h))) return outOfMemory;
	void *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_SHARED, h.file, h.offset);
	if (p == MAP_FAILED) return outOfMemory;
	memset(p, 0xff, n);
	munmap(p, n);
	used += n;
	*out = keep(handles, std::make_shared<Handle>(h));
	return 0;
}
API cuMemRelease(u64 handle) {
	CALL;
	auto h = find(handles, handle);
	if (!h) return invalidValue;
	(*h)->released = true;
	drop(*h);
	handles.erase(handle);
	return 0;
}
API cuMemExportToShareableHandle(int *fd, u64 handle, int kind, u64) {
	CALL;
	auto h = find(handles, handle);
	if (!h || (*h)->file == file || (*h)->imported || kind != 1) return invalidValue;
	return (*fd = dup((*h)->file)) < 0 ? outOfMemory : 0;
}
API cuMemImportFromShareableHandle(u64 *out, u64 fd, int kind) {
	CALL;
	struct stat s;
	if (kind != 1 || fstat((int)fd, &s) || s.st_nlink || !s.st_size || s.st_size % granule) return invalidValue;
	Handle h = {dup((int)fd), 0, (u64)s.st_size};
	if (h.file < 0) return outOfMemory;
	h.imported = true;
	used += h.size;
	*out = keep(handles, std::make_shared<Handle>(h));
	return 0;
}
API cuMemMap(u64 p, u64 n, u64 offset, u64 handle, u64) {
	CALL;
	auto h = find(handles, handle);
	auto range = ranges.upper_bound(p), next = ranges.end();
	auto mapped = mappings.lower_bound(p);
	bool inside = range != ranges.begin() && (--range, p + n <= range->first + range->second);
	bool taken = mapped != mappings.end() && mapped->first < p + n || mapped != mappings.begin() && (--mapped, mapped->first + mapped->second.size > p);
	if (!h || offset || n != (*h)->size || p % granule || !inside || taken || range == next) return invalidValue;
	if (mmap((void *)p, n, PROT_NONE, MAP_SHARED | MAP_FIXED, (*h)->file, (*h)->offset) == MAP_FAILED) return outOfMemory;
	(*h)->mappings++;
	mappings[p] = {n, *h};
	return 0;
}

// whole says whether mappings cover n bytes from p on, and nothing beside.
static bool whole(u64 p, u64 n) {
	u64 end = p + n;
	while (p < end) {
		auto m = find(mappings, p);
		if (!m) return false;
		p += m->size;
	}
	return p == end;
}
API cuMemUnmap(u64 p, u64 n) {
	CALL;
	if (!whole(p, n)) return invalidValue;
	for (u64 end = p + n; p < end;) {
		Mapping m = mappings[p];
		clearRange(p, m.size);
		m.handle->mappings--;
		drop(m.handle);
		mappings.erase(p);
		p += m.size;
	}
	return 0;
}
API cuMemSetAccess(u64 p, u64 n, void *, u64) {
	CALL;
	if (!whole(p, n)) return invalidValue;
	return mprotect((void *)p, n, PROT_READ | PROT_WRITE) ? outOfMemory : 0;
}

API cuMemcpyDtoDAsync_v2(u64 to, u64 from, u64 n, u64 stream) {
	CALL;
	return copy<true, true>(to, from, n, stream);
}
API cuMemcpyHtoDAsync_v2(u64 to, u64 from, u64 n, u64 stream) {
	CALL;
	return copy<true, false>(to, from, n, stream);
}
API cuMemcpyDtoHAsync_v2(u64 to, u64 from, u64 n, u64 stream) {
	CALL;
	return copy<false, true>(to, from, n, stream);
}

API cuStreamCreate(u64 *s, unsigned) {
	CALL;
	return *s = keep(streams, std::make_shared<Stream>(Stream{current})), 0;
}
API cuStreamSynchronize(u64 stream) {
	QUEUE;
	(*s)->run((*s)->end());
	return code();
}
API cuStreamDestroy_v2(u64 stream) {
	QUEUE;
	(*s)->run((*s)->end());
	streams.erase(stream);
	return code();
}
API cuStreamWaitEvent(u64 stream, u64 event, unsigned) {
	CALL;
	auto s = find(streams, stream);
	auto e = find(events, event);
	if (!s || !e) return invalidHandle;
	if ((*s)->captures) return captureUnsupported;
	if (e->mark) (*s)->work.push_back({{}, e->mark});
	return 0;
}

// count is the 64 bits at p, which are page-locked memory; 0 if they are not.
static u64 *count(u64 p) {
	auto m = pinned.upper_bound((void *)p);
	if (p % 8 || m == pinned.begin() || (--m, p + 8 > (u64)m->first + m->second)) return 0;
	return (u64 *)p;
}
API cuStreamWaitValue64_v2(u64 stream, u64 p, u64 n, unsigned flags) {
	QUEUE;
	if (!count(p) || flags) return invalidValue;
	(*s)->work.push_back({{}, nullptr, count(p), n});
	return 0;
}
API cuStreamWriteValue64_v2(u64 stream, u64 p, u64 n, unsigned flags) {
	QUEUE;
	if (!count(p) || flags) return invalidValue;
	(*s)->add([=] { __atomic_store_n((u64 *)p, n, __ATOMIC_RELEASE); });
	return 0;
}

API cuEventCreate(u64 *e, unsigned flags) {
	CALL;
	return *e = keep(events, Event{nullptr, !(flags & 2)}), 0;
}
API cuEventDestroy_v2(u64 event) {
	CALL;
	return events.erase(event) ? 0 : invalidHandle;
}
API cuEventRecord(u64 event, u64 stream) {
	CALL;
	auto s = find(streams, stream);
	auto e = find(events, event);
	if (!s || !e) return invalidHandle;
	if ((*s)->captures) return captureUnsupported;
	auto m = e->mark = std::make_shared<Mark>(Mark{*s, (*s)->end() + 1, 0});
	(*s)->add([m] { m->seconds = now(); });
	return 0;
}
// Each look at an event lets one piece of the work before it be done.
API cuEventQuery(u64 event) {
	CALL;
	auto e = find(events, event);
	if (!e) return invalidHandle;
	auto m = e->mark;
	if (!m || m->stream->done >= m->number) return 0;
	m->stream->step() || others(m->stream.get());
	return lost.empty() ? notReady : illegalAddress;
}
API cuEventSynchronize(u64 event) {
	CALL;
	auto e = find(events, event);
	if (!e) return invalidHandle;
	if (auto m = e->mark) m->stream->run(m->number);
	return code();
}
API cuEventElapsedTime(float *ms, u64 from, u64 to) {
	CALL;
	auto a = find(events, from), b = find(events, to);
	if (!a || !b || !a->timing || !b->timing || !a->mark || !b->mark) return invalidHandle;
	if (!a->mark->seconds || !b->mark->seconds) return notReady;
	return *ms = (float)((b->mark->seconds - a->mark->seconds) * 1e3), 0;
}

API cuStreamBeginCapture_v2(u64 stream, int mode) {
	CALL;
	auto s = find(streams, stream);
	if (!s) return invalidHandle;
	if ((*s)->captures || mode != 2) return illegalState;
	return (*s)->captures = true, 0;
}
API cuStreamEndCapture(u64 stream, u64 *graph) {
	CALL;
	auto s = find(streams, stream);
	if (!s) return invalidHandle;
	if (!(*s)->captures) return illegalState;
	(*s)->captures = false;
	*graph = keep(graphs, std::move((*s)->captured));
	return (*s)->captured.clear(), 0;
}
API cuGraphInstantiateWithFlags(u64 *exec, u64 graph, u64) {
	CALL;
	auto g = find(graphs, graph);
	return g ? *exec = keep(execs, *g), 0 : invalidValue;
}
API cuGraphExecUpdate_v2(u64 exec, u64 graph, u64 *) {
	CALL;
	auto e = find(execs, exec);
	auto g = find(graphs, graph);
	if (!e || !g) return invalidValue;
	if (e->size() != g->size()) return updateFailed;
	return *e = *g, 0;
}
API cuGraphLaunch(u64 exec, u64 stream) {
	CALL;
	auto e = find(execs, exec);
	auto s = find(streams, stream);
	if (!e || !s) return invalidHandle;
	if ((*s)->captures) return captureUnsupported;
	for (auto &f : *e) (*s)->add(f);
	return 0;
}
API cuGraphDestroy(u64 graph) {
	CALL;
	return graphs.erase(graph) ? 0 : invalidValue;
}
API cuGraphExecDestroy(u64 exec) {
	CALL;
	return execs.erase(exec) ? 0 : invalidValue;
}

API cuModuleLoadDataEx(u64 *m, const char *ptx, unsigned, void *, void *) {
	CALL;
	Module functions = parse(ptx);
	if (functions.empty() || !allWait(ptx, functions.size())) return invalidImage;
	return *m = keep(modules, functions), 0;
}
API cuModuleUnload(u64 m) {
	CALL;
	return modules.erase(m) ? 0 : invalidHandle;
}
API cuModuleGetFunction(u64 *f, u64 module, const char *name) {
	CALL;
	auto m = find(modules, module);
	if (!m) return invalidHandle;
	auto code = kernel(name);
	if (!m->count(name) || !code) return notFound;
	return *f = keep(functions, Function{name, code, (*m)[name].threads, 48 << 10, (*m)[name].members}), 0;
}
API cuFuncSetAttribute(u64 function, int attribute, int value) {
	CALL;
	auto f = find(functions, function);
	if (!f) return invalidHandle;
	if (attribute != 8 || value > 227 << 10) return invalidValue;
	return f->shared = value, 0;
}
API cuLaunchKernel(u64 function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned, unsigned shared, u64 stream, void **, void **extra) {
	CALL;
	auto f = find(functions, function);
	auto s = find(streams, stream);
	if (!f || !s) return invalidHandle;
	if (*(u64 *)extra[3] != sizeof(Launch) + (f->members ? sizeof(Members) : 0)) return invalidValue;
	if (!x || !y || !z || x > 0x7fffffff || y > 0xffff || z > 0xffff || !threads || shared > (unsigned)f->shared) return invalidValue;
	if (threads > (unsigned)f->threads) return tooLarge;
	Launch l = *(Launch *)extra[1];
	auto m = f->members ? std::make_shared<Members>(*(Members *)((Launch *)extra[1] + 1)) : nullptr;
	(*s)->add([=, f = *f] {
		const int grid[3] = {(int)x, (int)y, (int)z};
		run(f.name, f.code, l, m.get(), grid, (int)threads, (int)shared);
	});
	return 0;
}

struct Config {
	unsigned grid[3], block[3], shared;
	u64 stream;
	const u64 *attribute;
	unsigned attributes;
};
// The attribute, that the kernel may start early, changes nothing here.
API cuLaunchKernelEx(const Config *c, u64 function, void **params, void **extra) {
	if (c->attributes != 1 || *c->attribute != 6) return invalidValue;
	return cuLaunchKernel(function, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared, c->stream, params, extra);
}
