#include "launch.cuh"

// map sets packs of y to f(x), or adds that: f(pack, i) changes the elements
// from number i on.
template <class Y, class X, class F> DEV void mapPacks(const Launch &l, bool accumulate, Y y, X x, F f) {
	every<8>(l.n[0], wide(y.address, x.address), [&]<int K>(i64 i) {
		Pack<float, K> a = x.template load<K>(i), sum = {};
		if (accumulate) sum = y.template load<K>(i);
		f.template operator()<K>(a.v, i);
	UNROLL
		for (int k = 0; k < K; k++) a.v[k] = accumulate ? sum.v[k] + a.v[k] : a.v[k];
		y.template store<K>(i, a);
	});
}

// map sets y = f(x), or adds that.
template <class Y, class X, class F> DEV void map(const Launch &l, bool accumulate, Y y, X x, F f) {
	mapPacks(l, accumulate, y, x, [=]<int K>(float (&a)[K], i64) {
	UNROLL
		for (int k = 0; k < K; k++) a[k] = f(a[k]);
	});
}
template <class F> DEV void map(const Launch &l, bool accumulate, F f) { map(l, accumulate, Array(l, 0), Array(l, 1), f); }

// map2 sets y = f(a, b), or adds that.
template <class T, class F> DEV void map2(const Launch &l, bool accumulate, T y, T a, T b, F f) {
	every<8>(l.n[0], wide(y.address, a.address, b.address), [&]<int K>(i64 i) {
		Pack<float, K> p = a.template load<K>(i), q = b.template load<K>(i), sum = {};
		if (accumulate) sum = y.template load<K>(i);
	UNROLL
		for (int k = 0; k < K; k++) {
			float v = f(p.v[k], q.v[k]);
			p.v[k] = accumulate ? sum.v[k] + v : v;
		}
		y.template store<K>(i, p);
	});
}
template <class F> DEV void map2(const Launch &l, bool accumulate, F f) { map2(l, accumulate, Array(l, 0), Array(l, 1), Array(l, 2), f); }

KERNEL(256) fill(Launch l) {
	Array y(l, 0);
	every<8>(l.n[0], wide(y.address), [&]<int K>(i64 i) {
		Pack<float, K> p;
	UNROLL
		for (int k = 0; k < K; k++) p.v[k] = l.f[0];
		y.store<K>(i, p);
	});
}

KERNEL(256) scale(Launch l) {
	float s = l.f[0];
	map(l, l.n[1], [=](float x) { return s * x; });
}

// The functions of UnaryOp, in its order, each with its derivative times dy.
const float geluScale = 1.5957691216f, geluCubic = 0.044715f; // 2·√(2/π)

template <int op> DEV float value(float x) {
	switch (op) {
	case 0: return -x;
	case 1: return expOf(x);
	case 2: return logOf(x);
	case 3: return rootOf(x);
	case 4: return tanhOf(x);
	case 5: return x > 0 || x != x ? x : 0;
	case 6: return x * inverseOf(1 + exp2Flushed(x * fma(x * x, -geluScale * geluCubic * log2e, -geluScale * log2e)));
	case 7: return x * Normal(x).value;
	case 8: return x * sigmoidOf(x);
	case 9: return sigmoidOf(x);
	case 10: {
		float e = expOf(-absOf(x)), u = 1 + e; // log(1 + e), with what rounding u lost
		return (x > 0 ? x : x != x ? x : 0) + (u == 1 ? e : logOf(u) * (e / (u - 1)));
	}
	case 11: return absOf(x);
	default: return 1 / rootOf(x);
	}
}

template <int op> DEV float gradient(float dy, float x) {
	switch (op) {
	case 0: return -dy;
	case 1: return dy * expOf(x);
	case 2: return dy / x;
	case 3: return dy / (2 * rootOf(x));
	case 4: {
		float t = tanhOf(x);
		return dy * (1 - t * t);
	}
	case 5: return x > 0 ? dy : x != x ? x : 0;
	case 6: {
		float square = x * x, u = x * fma(square, -geluScale * geluCubic * log2e, -geluScale * log2e);
		float e = exp2Flushed(u > 115 ? 115 : u), s = inverseOf(1 + e); // e finite, so that 1 − s is a number, e·s
		return dy * fma(x * fma(square, 3 * geluScale * geluCubic, geluScale), e * s * s, s);
	}
	case 7: {
		Normal n(x);
		return dy * fma(x * n.bell, 0.39894228f, n.value);
	}
	case 8: {
		Sigmoid s(x);
		return dy * (s.value + x * s.value * s.rest);
	}
	case 9: {
		Sigmoid s(x);
		return dy * (s.value * s.rest);
	}
	case 10: return dy * sigmoidOf(x);
	case 11: return x > 0 ? dy : x < 0 ? -dy : dy * x;
	default: return -0.5f * (dy / (rootOf(x) * x));
	}
}

#define EACH_UNARY(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12)

// Functions that models have between their layers have code of their own for
// bfloat16: a load behind a branch by type waits for the one before.
template <int op> const bool frequent = op >= 5 && op <= 7;

template <int op> DEV void unary(const Launch &l) {
	Array y(l, 0), x(l, 1);
	auto f = [](float x) { return value<op>(x); };
	if (frequent<op> && y.type == BF16 && x.type == BF16) return map(l, false, y.as<BF16>(), x.as<BF16>(), f);
	map(l, false, f);
}

template <int op> DEV void unaryGrad(const Launch &l) {
	Array y(l, 0), dy(l, 1), x(l, 2);
	auto f = [](float dy, float x) { return gradient<op>(dy, x); };
	if (frequent<op> && y.type == BF16 && dy.type == BF16 && x.type == BF16) return map2(l, l.n[2], y.as<BF16>(), dy.as<BF16>(), x.as<BF16>(), f);
	map2(l, l.n[2], f);
}

KERNEL(256) unary(Launch l) {
	switch (l.n[1]) {
#define DO(op) case op: return unary<op>(l);
		EACH_UNARY(DO)
#undef DO
	}
}

KERNEL(256) unary_grad(Launch l) {
	switch (l.n[1]) {
#define DO(op) case op: return unaryGrad<op>(l);
		EACH_UNARY(DO)
#undef DO
	}
}

// scale_by multiplies by a number on the device.
KERNEL(256) scale_by(Launch l) {
	Array y(l, 0);
	float factor = Array(l, 1).get(0);
	if (factor == 1) return;
	every<8>(l.n[0], wide(y.address), [&]<int K>(i64 i) {
		Pack<float, K> p = y.load<K>(i);
	UNROLL
		for (int k = 0; k < K; k++) p.v[k] *= factor;
		y.store<K>(i, p);
	});
}

KERNEL(256) dropout(Launch l) {
	Dropout d(l.f[0], l.n[2], l.n[3]);
	mapPacks(l, l.n[1], Array(l, 0), Array(l, 1), [=]<int K>(float (&x)[K], i64 i) { d.apply<K>(i, x); });
}

KERNEL(256) clamp(Launch l) {
	float least = l.f[0], most = l.f[1];
	map(l, false, [=](float x) { return x < least ? least : x > most ? most : x; });
}

KERNEL(256) clamp_grad(Launch l) {
	float least = l.f[0], most = l.f[1];
	map2(l, l.n[1], [=](float dy, float x) { return x >= least && x <= most ? dy : 0; });
}

KERNEL(256) select(Launch l) {
	Array y(l, 0), a(l, 2), b(l, 3);
	const int *mask = at<int>(l.ptr[1]);
	every<1>(l.n[0], false, [&]<int K>(i64 i) {
		if (mask[i] ? a.given() : b.given()) {
			y.set(i, mask[i] ? a.get(i) : b.get(i));
		} else {
			y.set(i, l.f[0]);
		}
	});
}

KERNEL(256) equal(Launch l) {
	int *y = at<int>(l.ptr[0]);
	const int *x = at<int>(l.ptr[1]);
	every<1>(l.n[0], false, [&]<int K>(i64 i) { y[i] = x[i] == l.n[1]; });
}

// A nest is a shape with strides of two operands, as nest.store has it. Offsets
// are found with division, by numbers of I's size.
template <class I> DEV void offsets(const Launch &l, i64 element, i64 &a, i64 &b) {
	I left = (I)element;
	a = b = 0;
#pragma unroll
	for (int d = 5; d >= 0; d--) {
		if (d >= l.n[0]) continue;
		I index = left;
		if (d > 0) {
			I size = (I)l.n[1 + d];
			left = index / size;
			index -= left * size;
		}
		a += (i64)index * l.n[7 + d];
		b += (i64)index * l.n[13 + d];
	}
}

// copyNest copies packs of K elements; sizes and strides count packs. n[19]
// says accumulate, n[21] how many packs there are.
template <int K, class I> DEV void copyNest(const Launch &l) {
	Array y(l, 0), x(l, 1);
	for (i64 i = globalThread(); i < l.n[21]; i += globalThreads()) {
		i64 to, from;
		offsets<I>(l, i, to, from);
		Pack<float, K> p = x.load<K>(from * K);
		if (l.n[19]) {
			Pack<float, K> sum = y.load<K>(to * K);
		UNROLL
			for (int k = 0; k < K; k++) p.v[k] += sum.v[k];
		}
		y.store<K>(to * K, p);
	}
}

// n[20] is the number of elements of a pack: 1 or 8.
KERNEL(256) copy(Launch l) {
	bool small = l.n[21] < 1ll << 31;
	if (l.n[20] == 8) return small ? copyNest<8, u32>(l) : copyNest<8, u64>(l);
	small ? copyNest<1, u32>(l) : copyNest<1, u64>(l);
}

template <int K, class I, class T, class F> DEV void binaryNest(const Launch &l, T y, T x, T z, F f) {
	for (i64 i = globalThread(); i < l.n[21]; i += globalThreads()) {
		i64 p, q;
		offsets<I>(l, i, p, q);
		Pack<float, K> a = x.template load<K>(p * K), b = z.template load<K>(q * K);
	UNROLL
		for (int k = 0; k < K; k++) a.v[k] = f(a.v[k], b.v[k]);
		y.template store<K>(i * K, a);
	}
}

template <class F> DEV void nested(const Launch &l, F f) {
	Array y(l, 0), x(l, 1), z(l, 2);
	bool small = l.n[21] < 1ll << 31, packs = l.n[20] == 8;
	if (small && packs && y.type == BF16 && x.type == BF16 && z.type == BF16)
		return binaryNest<8, u32>(l, y.as<BF16>(), x.as<BF16>(), z.as<BF16>(), f);
	if (packs) return small ? binaryNest<8, u32>(l, y, x, z, f) : binaryNest<8, u64>(l, y, x, z, f);
	small ? binaryNest<1, u32>(l, y, x, z, f) : binaryNest<1, u64>(l, y, x, z, f);
}

// n[19] is the operation; packs are as for copy.
KERNEL(256) binary(Launch l) {
	switch (l.n[19]) {
	case 0: return nested(l, [](float a, float b) { return a + b; });
	case 1: return nested(l, [](float a, float b) { return a - b; });
	case 2: return nested(l, [](float a, float b) { return a * b; });
	default: return nested(l, [](float a, float b) { return a / b; });
	}
}
