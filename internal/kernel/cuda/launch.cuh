// What all kernels share: CUDA's words, which come from no header of CUDA's
// (machine.cuh), the parameter, packs of elements, sums over warps and blocks, and functions.
//
// Every kernel takes a Launch: the arguments of device.Launch as Go lays them
// out (device.cudaParams). Its comment says what they are, by the host's
// version of the kernel where nothing else is said. Operands are Arrays, which
// know the type of their elements: kernels read and write float, in which they
// compute, and the branch by type is the same for all threads.
//
// Results depend on the arguments alone: no kernel adds with atomics, and
// grids follow from shapes.
#pragma once

typedef long long i64;
typedef unsigned long long u64;
typedef unsigned u32;

struct Launch {
	u64 ptr[12];
	i64 n[32];
	float f[8];
	unsigned char type[12];
};

// Members are the second parameter of kernels that go over groups of arrays, as
// device.Members: only the arrays at ptr[0] have a type. The elements are cut
// into chunks, of which each block has one; first is the number of a member's
// first one.
struct Member {
	u64 ptr[5];
	i64 n;
	int first;
	unsigned char type;
};

struct Members {
	i64 n;
	Member of[64];
};

#ifdef EMULATED
#include "emulate/machine.h"
#else
#include "machine.cuh"
#endif

// The thread's number in the grid, and their number.
DEV i64 globalThread() { return (i64)blockX() * blockLen() + threadX(); }
DEV i64 globalThreads() { return (i64)gridLen() * blockLen(); }

// Pack is W elements that are loaded and stored at once, 16 bytes at a time.
template <class T, int W> struct alignas(sizeof(T) * W < 16 ? sizeof(T) * W : 16) Pack {
	T v[W];
};

template <int W, class T> DEV Pack<T, W> load(const T *p) { return *(const Pack<T, W> *)p; }
template <int W, class T> DEV void store(T *p, const Pack<T, W> &x) { *(Pack<T, W> *)p = x; }

// Element types, as device.DType has them.
enum { F32, I32, BF16, F16 };

typedef unsigned short u16;

DEV float fromBF16(u16 h) { return __builtin_bit_cast(float, (u32)h << 16); }
DEV float fromF16(u16 h) { return (float)__builtin_bit_cast(_Float16, h); }

// Numbers are rounded to nearest even; NaN stays NaN.
DEV u16 toBF16(float x) {
	u32 b = __builtin_bit_cast(u32, x);
	return x != x ? b >> 16 | 0x40 : (b + 0x7fff + (b >> 16 & 1)) >> 16;
}
DEV u16 toF16(float x) { return __builtin_bit_cast(u16, (_Float16)x); }

// packBF16 rounds a pack; GPUs from 8.0 on do two numbers at once.
template <int W> DEV Pack<u16, W> packBF16(const Pack<float, W> &x) {
	Pack<u16, W> h;
#if __CUDA_ARCH__ >= 800
	if (W > 1) {
	UNROLL
		for (int k = 0; k < W; k += 2) {
			u32 two = pairBF16(x.v[k], x.v[k + 1]);
			h.v[k] = (u16)two, h.v[k + 1] = two >> 16;
		}
		return h;
	}
#endif
UNROLL
	for (int k = 0; k < W; k++) h.v[k] = toBF16(x.v[k]);
	return h;
}

// Typed is an operand of a known type. Kernels that load several packs before
// they use the first take these: a branch by type between loads would wait.
template <int type> struct Typed {
	u64 address;

	DEV bool given() const { return address != 0; }
	DEV Typed from(i64 n) const { return {address + n * (type == F32 ? 4 : 2)}; }

	template <int W> DEV Pack<float, W> load(i64 i) const {
		if (type == F32) return ::load<W>(at<float>(address) + i);
		Pack<u16, W> h = ::load<W>(at<u16>(address) + i);
		Pack<float, W> x;
	UNROLL
		for (int k = 0; k < W; k++) x.v[k] = type == BF16 ? fromBF16(h.v[k]) : fromF16(h.v[k]);
		return x;
	}

	template <int W> DEV void store(i64 i, const Pack<float, W> &x) const {
		if (type == F32) return ::store<W>(at<float>(address) + i, x);
		if (type == BF16) return ::store<W>(at<u16>(address) + i, packBF16(x));
		Pack<u16, W> h;
	UNROLL
		for (int k = 0; k < W; k++) h.v[k] = toF16(x.v[k]);
		::store<W>(at<u16>(address) + i, h);
	}
};

// Array is an operand. Elements of int32 that kernels only move pass for float.
struct Array {
	u64 address;
	int type;

	DEV Array(const Launch &l, int i) : address(l.ptr[i]), type(l.type[i]) {}
	DEV Array(u64 address, int type) : address(address), type(type) {}

	DEV bool given() const { return address != 0; }
	DEV bool half() const { return type >= BF16; }
	DEV Array from(i64 n) const { return Array(address + n * (half() ? 2 : 4), type); }

	// as is the operand as one of its type.
	template <int type> DEV Typed<type> as() const { return {address}; }

	template <int W> DEV Pack<float, W> load(i64 i) const {
		return !half() ? as<F32>().load<W>(i) : type == BF16 ? as<BF16>().load<W>(i) : as<F16>().load<W>(i);
	}
	template <int W> DEV void store(i64 i, const Pack<float, W> &x) const {
		if (!half()) return as<F32>().store<W>(i, x);
		type == BF16 ? as<BF16>().store<W>(i, x) : as<F16>().store<W>(i, x);
	}

	// rounded is x as the array would hold it.
	DEV float rounded(float x) const { return type == BF16 ? fromBF16(toBF16(x)) : type == F16 ? fromF16(toF16(x)) : x; }

	DEV float get(i64 i) const { return load<1>(i).v[0]; }
	DEV void set(i64 i, float x) const { store<1>(i, {{x}}); }
	// put sets an element, or adds to it.
	DEV void put(i64 i, float x, bool add) const { set(i, add ? get(i) + x : x); }
};

// wide says whether all addresses are multiples of 16.
DEV bool wide(u64 a, u64 b = 0, u64 c = 0, u64 d = 0, u64 e = 0) { return ((a | b | c | d | e) & 15) == 0; }

// sweep calls f<W>(i) for packs of W elements from i on, and f<1>(i) for the
// elements that are left, which together are those of [0, n) that belong to
// thread number of so many.
template <int W, class F> DEV void sweep(i64 n, i64 number, i64 threads, bool packs, F f) {
	i64 whole = packs ? n / W * W : 0;
	for (i64 i = number * W; i < whole; i += threads * W) f.template operator()<W>(i);
	for (i64 i = whole + number; i < n; i += threads) f.template operator()<1>(i);
}

// every is a sweep by all threads of the grid.
template <int W, class F> DEV void every(i64 n, bool packs, F f) { sweep<W>(n, globalThread(), globalThreads(), packs, f); }

// Chunk is the block's: n elements, from number `from` on, of a member.
struct Chunk {
	int member;
	i64 from, n;

	DEV Chunk(const Members &m, i64 elements) : member(0) {
		for (int after = (int)m.n; after - member > 1;) { // the last member that begins here or before
			int middle = (member + after) / 2;
			(m.of[middle].first <= blockX() ? member : after) = middle;
		}
		from = (blockX() - m.of[member].first) * elements;
		n = m.of[member].n - from;
		if (n > elements) n = elements;
	}
};

const float infinity = __builtin_inff();
const float notANumber = __builtin_nanf("");
const float greatest = 3.40282347e+38f;

// Sums and maxima over the lanes of a warp, or over groups of `lanes` of them.
template <int lanes = 32> DEV float warpSum(float x) {
	for (int i = lanes / 2; i > 0; i /= 2) x += shuffle(x, i);
	return x;
}
template <int lanes = 32> DEV float warpMax(float x) {
	for (int i = lanes / 2; i > 0; i /= 2) {
		float y = shuffle(x, i);
		x = y > x || y != y ? y : x;
	}
	return x;
}

// blockSum is the sum over a block of whole warps, for all its threads. room
// has space for 32 numbers.
DEV float blockSum(float x, float *room) {
	x = warpSum(x);
	barrier();
	if (threadX() % 32 == 0) room[threadX() / 32] = x;
	barrier();
	float sum = 0;
	for (int i = 0; i < blockLen() / 32; i++) sum += room[i];
	return sum;
}

// sumOf adds up f(i) for every step-th i from first on, below n. Eight are loaded
// at a time: the next of a loop of additions would wait for the one before.
template <class F> DEV float sumOf(i64 first, i64 n, i64 step, F f) {
	float sum = 0;
	for (; first < n; first += 8 * step) {
		float x[8];
	UNROLL
		for (int k = 0; k < 8; k++) x[k] = f(first + k * step < n ? first + k * step : first);
	UNROLL
		for (int k = 0; k < 8; k++) sum += first + k * step < n ? x[k] : 0;
	}
	return sum;
}

DEV float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEV float absOf(float x) { return __builtin_fabsf(x); }

const float log2e = 1.44269504f;

// expOf is eˣ to about two ulps: 2 to the power of x·log₂e, and what that
// product's rounding lost. The clamp keeps NaN, and the loss finite.
DEV float expOf(float x) {
	x = x < -150 ? -150 : x > 150 ? 150 : x;
	float t = x * log2e, lost = fma(x, 1.92596303e-8f, fma(x, log2e, -t));
	return exp2Of(t) * fma(lost, 0.69314718f, 1);
}

// expBelow is eˣ where that is compared with 1, or added to it: its error is
// that of an exponent's last digit.
DEV float expBelow(float x) { return exp2Flushed(x * log2e); }

// logOf is the natural logarithm to about an ulp (Cephes, logf).
DEV float logOf(float x) {
	if (!(x > 0)) return x == 0 ? -infinity : notANumber;
	if (x == infinity) return x;
	float e = 0;
	if (x < 1.17549435e-38f) x *= 8388608, e = -23;
	int bits = __builtin_bit_cast(int, x);
	int up = bits - 0x3f3504f3; // √½
	e += up >> 23;
	x = __builtin_bit_cast(float, 0x3f3504f3 + (up & 0x7fffff)) - 1;
	float z = x * x, p = 7.0376836292e-2f;
	p = fma(p, x, -1.1514610310e-1f);
	p = fma(p, x, 1.1676998740e-1f);
	p = fma(p, x, -1.2420140846e-1f);
	p = fma(p, x, 1.4249322787e-1f);
	p = fma(p, x, -1.6668057665e-1f);
	p = fma(p, x, 2.0000714765e-1f);
	p = fma(p, x, -2.4999993993e-1f);
	p = fma(p, x, 3.3333331174e-1f);
	float y = fma(p * x, z, fma(e, -2.12194440e-4f, -0.5f * z));
	return fma(e, 0.693359375f, x + y);
}

// tanhOf is the hyperbolic tangent to about an ulp (Cephes, tanhf).
DEV float tanhOf(float x) {
	float a = absOf(x);
	if (a >= 0.625f) return __builtin_copysignf(1 - 2 / (expOf(2 * a) + 1), x);
	float z = x * x, p = -5.70498872745e-3f;
	p = fma(p, z, 2.06390887954e-2f);
	p = fma(p, z, -5.37397155531e-2f);
	p = fma(p, z, 1.33314422036e-1f);
	p = fma(p, z, -3.33332819422e-1f);
	return fma(p * z, x, x); // NaN goes this way
}

DEV float sigmoidOf(float x) { return inverseOf(1 + expOf(-x)); }

// Sigmoid is 1/(1 + e⁻ˣ) and what it lacks of 1, which near 1 a difference
// would not give.
struct Sigmoid {
	float value, rest;

	DEV Sigmoid(float x) {
		float e = expOf(x < -80 ? 80 : -x); // finite, so that rest is a number
		value = inverseOf(1 + e);
		rest = e * value;
	}
};

// Normal is the normal distribution's Φ(x), and bell = exp(−x²/2), its density
// times √2π. For x < 0 Φ is bell times a polynomial in 1/(1 + 0.3·|x|), a form
// of Hastings's («Approximations for Digital Computers», 1955) fitted to a
// relative error of 8e-8. It has no branch.
struct Normal {
	float value, bell;

	DEV Normal(float x) : bell(exp2Flushed(x * x * -0.72134752f)) {
		float t = inverseOf(fma(absOf(x), 0.3f, 1)), p = 0.03674199539f;
		const float terms[] = {-0.1616810582f, 0.2141358665f, -0.06092260637f, 0.1324415228f, 0.098718841f, 0.1209491282f, 0.11961627f};
	UNROLL
		for (int i = 0; i < 7; i++) p = fma(p, t, terms[i]);
		float tail = p * t * bell;
		value = x > 0 ? 1 - tail : tail;
	}
};

// Dropout is the host's choice of elements to keep, bit for bit.
struct Dropout {
	static const u64 step = 0x9e3779b97f4a7c15ull;
	u64 seed;
	u32 below;
	float scale;

	DEV Dropout(float p, i64 high, i64 low)
		: seed((u64)high << 32 | (u32)low), below((u32)((double)p * 4294967296.0)), scale(1 / (1 - p)) {}

	// factor is what element i is multiplied by. rare is the same as a call, for
	// code that has many of them and seldom needs it.
	DEV float factor(u64 i) const { return chosen(seed, i) < below ? 0 : scale; }
	DEV float rare(u64 i) const { return calledChosen(seed, i) < below ? 0 : scale; }

	// chosen is the bits that decide about element i, and pair those about
	// elements 2i and 2i + 1, the first in the lower half.
	DEV static u32 chosen(u64 seed, u64 i) {
		u64 z = pair(seed, i / 2);
		return i % 2 ? (u32)(z >> 32) : (u32)z;
	}
	DEV static u64 pair(u64 seed, u64 i) { return mixed(seed + (i + 1) * step); }
	DEV static u64 mixed(u64 z) {
		z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
		z = (z ^ z >> 27) * 0x94d049bb133111ebull;
		return z ^ z >> 31;
	}
	// apply multiplies K elements from number i on, which is even unless K is 1.
	template <int K> DEV void apply(u64 i, float (&x)[K]) const {
		if (K == 1) {
			x[0] *= factor(i);
			return;
		}
	UNROLL
		for (int k = 0; k + 1 < K; k += 2) {
			u64 z = pair(seed, i / 2 + k / 2);
			x[k] *= (u32)z < below ? 0 : scale;
			x[k + 1] *= (u32)(z >> 32) < below ? 0 : scale;
		}
	}

	DEVCALL static u32 calledChosen(u64 seed, u64 i) { return chosen(seed, i); }
};
