// What all kernels share: CUDA's words, which come from no header of CUDA's,
// the parameter, packs of elements, sums over warps and blocks, and functions.
//
// Every kernel takes a Launch: the arguments of device.Launch as Go lays them
// out (device.cudaParams). Its comment says what they are, by the host's
// version of the kernel where nothing else is said. Kernels are templates over
// the element type T; arithmetic is float.
//
// Results depend on the arguments alone: no kernel adds with atomics, and
// grids follow from shapes.
#pragma once

#define DEV __attribute__((device, always_inline)) inline
#define KERNEL(threads) extern "C" __attribute__((global, launch_bounds(threads))) void
#define UNROLL _Pragma("unroll")
#define SHARED __attribute__((shared))

typedef long long i64;
typedef unsigned long long u64;
typedef unsigned u32;

struct Launch {
	u64 ptr[12];
	i64 n[32];
	float f[8];
};

// at is a place in the device's memory. Saying which memory gives faster loads.
template <class T> DEV T *at(u64 address) { return (T *)(__attribute__((address_space(1))) T *)address; }

DEV int threadX() { return __nvvm_read_ptx_sreg_tid_x(); }
DEV int blockX() { return __nvvm_read_ptx_sreg_ctaid_x(); }
DEV int blockY() { return __nvvm_read_ptx_sreg_ctaid_y(); }
DEV int blockZ() { return __nvvm_read_ptx_sreg_ctaid_z(); }
DEV int blockLen() { return __nvvm_read_ptx_sreg_ntid_x(); }
DEV int gridLen() { return __nvvm_read_ptx_sreg_nctaid_x(); }
DEV void barrier() { __syncthreads(); }

// The thread's number in the grid, and their number.
DEV i64 globalThread() { return (i64)blockX() * blockLen() + threadX(); }
DEV i64 globalThreads() { return (i64)gridLen() * blockLen(); }

// Pack is W elements that are loaded and stored at once, up to 16 bytes.
template <class T, int W> struct alignas(sizeof(T) * W) Pack {
	T v[W];
};

template <int W, class T> DEV Pack<T, W> load(const T *p) { return *(const Pack<T, W> *)p; }
template <int W, class T> DEV void store(T *p, const Pack<T, W> &x) { *(Pack<T, W> *)p = x; }

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

const float infinity = __builtin_inff();
const float notANumber = __builtin_nanf("");
const float greatest = 3.40282347e+38f;

DEV float shuffle(float x, int lane) { return __nvvm_shfl_sync_bfly_f32(~0u, x, lane, 31); }

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

DEV float exp2Of(float x) {
	float y;
	asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}
DEV float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEV float rootOf(float x) { return __nvvm_sqrt_rn_f(x); }
DEV float absOf(float x) { return __builtin_fabsf(x); }

// expOf is eˣ to about an ulp: 2 to the nearest power, times 2 to what is left.
DEV float expOf(float x) {
	x = x < -150 ? -150 : x > 150 ? 150 : x; // keeps NaN
	float t = __builtin_rintf(x * 1.44269504f);
	float r = fma(t, -1.42860677e-6f, fma(t, -0.693145752f, x));
	float half = __builtin_truncf(t * 0.5f);
	return exp2Of(r * 1.44269504f) * exp2Of(half) * exp2Of(t - half);
}

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

DEV float sigmoidOf(float x) { return 1 / (1 + expOf(-x)); }

// normalOf is the normal distribution's Φ(x), by the host's formula.
DEV float normalOf(float x) {
	float z = absOf(x) * 0.70710678f, t = 1 / (1 + z / 2), p = 0;
	const float terms[] = {0.17087277f, -0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f,
		-0.18628806f, 0.09678418f, 0.37409196f, 1.00002368f, -1.26551223f};
#pragma unroll
	for (int i = 0; i < 10; i++) p = fma(p, t, terms[i]);
	float half = 0.5f - t * expOf(p - z * z) / 2;
	return 0.5f + __builtin_copysignf(half, x);
}

// Dropout is the host's choice of elements to keep, bit for bit.
struct Dropout {
	u64 seed;
	u32 below;
	float scale;

	DEV Dropout(float p, i64 high, i64 low)
		: seed((u64)high << 32 | (u32)low), below((u32)((double)p * 4294967296.0)), scale(1 / (1 - p)) {}

	// factor is what element i is multiplied by.
	DEV float factor(u64 i) const {
		u64 z = seed + (i / 2 + 1) * 0x9e3779b97f4a7c15ull;
		z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
		z = (z ^ z >> 27) * 0x94d049bb133111ebull;
		z ^= z >> 31;
		return (i % 2 ? (u32)(z >> 32) : (u32)z) < below ? 0 : scale;
	}
};
