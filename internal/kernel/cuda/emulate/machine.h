// The machine of the emulated driver: what machine.cuh is to a GPU. It includes
// nothing, so that kernels may have names of C's.
#pragma once

#define DEV __attribute__((always_inline)) inline
#define DEVCALL __attribute__((noinline))
#define KERNEL(...) extern "C" void
#define UNROLL _Pragma("unroll")
#define SHARED static
#define SHARED_OF_LAUNCH(type, name) type *name = (type *)machine::shared

namespace machine {

// Where the running thread is, as kernels see it.
extern int thread, block[3], threads, blocks;
extern char *shared; // of a block, as the launch has asked for

// All memory of the device lies between these addresses.
extern u64 memory, memoryEnd;

// run runs a kernel, block by block, with members if it takes them. It gives what
// failed, and 0 if nothing did.
// After a failure nothing can be run any more.
const char *run(void (*kernel)(Launch), const Launch &launch, const Members *members, const int *grid, int threads, int shared);

void fail(const char *what); // ends the launch
void barrier();
bool anyOf(bool x);

// A Warp is where 32 threads meet for an instruction that they do together: each
// gives its operand, and the last to come does the work for all.
struct Warp {
	int arrived, ended, turn;
	void (*work)(Warp &);
	alignas(16) char operands[32][48], results[32][16];
};
Warp &warp();
void meet(void (*work)(Warp &)); // returns when the work is done

// together does f(lane, operands), which gives the lane's result.
template <class R, class T, class F> DEV R together(const T &operand, F) {
	static_assert(sizeof(T) <= 48 && sizeof(R) <= 16);
	Warp &w = warp();
	int lane = thread % 32;
	((T *)w.operands)[lane] = operand;
	meet([](Warp &w) {
		for (int i = 0; i < 32; i++) ((R *)w.results)[i] = F()(i, (const T *)w.operands);
	});
	return ((R *)w.results)[lane];
}

// A Copy to shared memory is done when the thread waits for it, so that nothing
// works without.
struct Copy {
	void *to;
	u64 from; // 0 for zeros
};
struct Copies {
	int n;
	Copy list[128];
};
Copies &copies();

struct Four {
	u32 v[4];
};
struct Factors {
	float a[8], b[4];
};
struct Sums {
	float v[4];
};

// multiply gives a thread what a product of a warp adds to its elements of c.
// Lane l has in a.a[i] row l/4 + 8·(i/2%2) and column 2·(l%4) + i%2 + 8·(i/4),
// and in b.b[i] row 2·(l%4) + i%2 + 8·(i/2) and column l/4.
inline Sums multiply(const Factors &f) {
	return together<Sums>(f, [](int lane, const Factors *all) {
		Sums c = {};
		for (int k = 0; k < 16; k++) {
			int from = k % 8 / 2, i = k % 2 + k / 8 * 4, j = k % 2 + k / 8 * 2;
			float upper = all[lane / 4 * 4 + from].a[i], lower = all[lane / 4 * 4 + from].a[i + 2];
			float left = all[lane % 4 * 8 + from].b[j], right = all[lane % 4 * 8 + 4 + from].b[j];
			c.v[0] += upper * left, c.v[1] += upper * right;
			c.v[2] += lower * left, c.v[3] += lower * right;
		}
		return c;
	});
}

DEV float fromBF16(u32 h) { return __builtin_bit_cast(float, h << 16); }
DEV float fromF16(u32 h) { return (float)__builtin_bit_cast(_Float16, (unsigned short)h); }
DEV u32 toBF16(float x) {
	u32 b = __builtin_bit_cast(u32, x);
	return x != x ? 0x7fff : (b + 0x7fff + (b >> 16 & 1)) >> 16;
}

template <class F> inline void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, F number) {
	Factors f;
	for (int i = 0; i < 8; i++) f.a[i] = number(a[i / 2] >> i % 2 * 16 & 0xffff);
	for (int i = 0; i < 4; i++) f.b[i] = number((i < 2 ? b0 : b1) >> i % 2 * 16 & 0xffff);
	Sums s = multiply(f);
	for (int i = 0; i < 4; i++) c[i] += s.v[i];
}

}

template <class T> DEV T *at(u64 address) {
	if (address && (address < machine::memory || address >= machine::memoryEnd)) machine::fail("uses an address that is not the device's");
	return (T *)address;
}

DEV int threadX() { return machine::thread; }
DEV int blockX() { return machine::block[0]; }
DEV int blockY() { return machine::block[1]; }
DEV int blockZ() { return machine::block[2]; }
DEV int blockLen() { return machine::threads; }
DEV int gridLen() { return machine::blocks; }

DEV void barrier() { machine::barrier(); }
DEV bool anyOf(int x) { return machine::anyOf(x); }

struct Moved {
	int x, by;
};
inline int shuffle(int x, int bits) {
	return machine::together<int>(Moved{x, bits}, [](int lane, const Moved *all) { return all[lane ^ all[lane].by].x; });
}
inline int shuffleUp(int x, int less) {
	return machine::together<int>(Moved{x, less}, [](int lane, const Moved *all) { return all[lane < all[lane].by ? lane : lane - all[lane].by].x; });
}
inline int shuffleFrom(int x, int lane) {
	return machine::together<int>(Moved{x, lane}, [](int lane, const Moved *all) { return all[all[lane].by].x; });
}
DEV float shuffle(float x, int bits) { return __builtin_bit_cast(float, shuffle(__builtin_bit_cast(int, x), bits)); }
inline u32 ballot(bool x) {
	return machine::together<u32>(x, [](int, const bool *all) {
		u32 bits = 0;
		for (int i = 0; i < 32; i++) bits |= (u32)all[i] << i;
		return bits;
	});
}

DEV float exp2Of(float x) { return __builtin_exp2f(x); }
DEV float exp2Flushed(float x) { return __builtin_exp2f(x); }
DEV float inverseOf(float x) { return 1 / x; }
DEV float rootOf(float x) { return __builtin_sqrtf(x); }

DEV u32 pairBF16(float x, float y) { return machine::toBF16(x) | machine::toBF16(y) << 16; }
DEV u32 pairF16(float x, float y) {
	return __builtin_bit_cast(unsigned short, (_Float16)x) | (u32) __builtin_bit_cast(unsigned short, (_Float16)y) << 16;
}

DEV void startCopy(void *to, u64 from, bool there) {
	machine::Copies &c = machine::copies();
	if (c.n == 128) machine::fail("starts more copies than the emulator remembers");
	c.list[c.n++] = {to, there ? from : 0};
}
DEV void endCopies() {
	machine::Copies &c = machine::copies();
	for (int i = 0; i < c.n; i++) *(machine::Four *)c.list[i].to = c.list[i].from ? *at<machine::Four>(c.list[i].from) : machine::Four{};
	c.n = 0;
}

inline void loadMatrices(u32 (&a)[4], const unsigned short *p) {
	machine::Four f = machine::together<machine::Four>(p, [](int lane, const unsigned short *const *rows) {
		machine::Four f;
		for (int i = 0; i < 4; i++) {
			const unsigned short *row = rows[8 * i + lane / 4] + lane % 4 * 2;
			f.v[i] = row[0] | (u32)row[1] << 16;
		}
		return f;
	});
	for (int i = 0; i < 4; i++) a[i] = f.v[i];
}
inline void loadTransposed(u32 (&a)[4], const unsigned short *p) {
	machine::Four f = machine::together<machine::Four>(p, [](int lane, const unsigned short *const *rows) {
		machine::Four f;
		for (int i = 0; i < 4; i++) f.v[i] = rows[8 * i + lane % 4 * 2][lane / 4] | (u32)rows[8 * i + lane % 4 * 2 + 1][lane / 4] << 16;
		return f;
	});
	for (int i = 0; i < 4; i++) a[i] = f.v[i];
}

DEV void multiplyBF16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { machine::multiply(c, a, b0, b1, machine::fromBF16); }
DEV void multiplyF16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { machine::multiply(c, a, b0, b1, machine::fromF16); }
