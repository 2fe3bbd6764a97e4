#include "launch.cuh"

// map sets y = f(x), or adds that.
template <class T, class F> DEV void map(i64 n, u64 to, u64 from, bool accumulate, F f) {
	const int W = 16 / sizeof(T);
	T *y = at<T>(to);
	const T *x = at<T>(from);
	every<W>(n, wide(to, from), [&]<int K>(i64 i) {
		Pack<T, K> a = load<K>(x + i), sum;
		if (accumulate) sum = load<K>(y + i);
		UNROLL for (int k = 0; k < K; k++) {
			float v = f((float)a.v[k], i + k);
			a.v[k] = (T)(accumulate ? (float)sum.v[k] + v : v);
		}
		store<K>(y + i, a);
	});
}

// map2 sets y = f(a, b), or adds that.
template <class T, class F> DEV void map2(i64 n, u64 to, u64 fromA, u64 fromB, bool accumulate, F f) {
	const int W = 16 / sizeof(T);
	T *y = at<T>(to);
	const T *a = at<T>(fromA), *b = at<T>(fromB);
	every<W>(n, wide(to, fromA, fromB), [&]<int K>(i64 i) {
		Pack<T, K> p = load<K>(a + i), q = load<K>(b + i), sum;
		if (accumulate) sum = load<K>(y + i);
		UNROLL for (int k = 0; k < K; k++) {
			float v = f((float)p.v[k], (float)q.v[k]);
			p.v[k] = (T)(accumulate ? (float)sum.v[k] + v : v);
		}
		store<K>(y + i, p);
	});
}

KERNEL(256) fill_f32(Launch l) {
	float *y = at<float>(l.ptr[0]);
	every<4>(l.n[0], wide(l.ptr[0]), [&]<int K>(i64 i) {
		Pack<float, K> p;
		UNROLL for (int k = 0; k < K; k++) p.v[k] = l.f[0];
		store<K>(y + i, p);
	});
}

KERNEL(256) scale_f32(Launch l) {
	float s = l.f[0];
	map<float>(l.n[0], l.ptr[0], l.ptr[1], l.n[1], [=](float x, i64) { return s * x; });
}

// The functions of UnaryOp, in its order, each with its derivative times dy.
const float geluScale = 1.5957691216f, geluCubic = 0.044715f; // 2·√(2/π)

template <int op> DEV float unary(float x) {
	switch (op) {
	case 0: return -x;
	case 1: return expOf(x);
	case 2: return logOf(x);
	case 3: return rootOf(x);
	case 4: return tanhOf(x);
	case 5: return x > 0 || x != x ? x : 0;
	case 6: return x * sigmoidOf(geluScale * (x + geluCubic * x * x * x));
	case 7: return x * normalOf(x);
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

template <int op> DEV float unaryGrad(float dy, float x) {
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
		float s = sigmoidOf(geluScale * (x + geluCubic * x * x * x));
		return dy * (s + x * s * (1 - s) * geluScale * (1 + 3 * geluCubic * x * x));
	}
	case 7: return dy * (normalOf(x) + x * expOf(-0.5f * x * x) * 0.39894228f);
	case 8: {
		float s = sigmoidOf(x);
		return dy * (s + x * s * (1 - s));
	}
	case 9: {
		float s = sigmoidOf(x);
		return dy * (s * (1 - s));
	}
	case 10: return dy * sigmoidOf(x);
	case 11: return x > 0 ? dy : x < 0 ? -dy : dy * x;
	default: return -0.5f * (dy / (rootOf(x) * x));
	}
}

#define EACH_UNARY(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12)

KERNEL(256) unary_f32(Launch l) {
	switch (l.n[1]) {
#define DO(op) case op: return map<float>(l.n[0], l.ptr[0], l.ptr[1], false, [](float x, i64) { return unary<op>(x); });
		EACH_UNARY(DO)
#undef DO
	}
}

KERNEL(256) unary_grad_f32(Launch l) {
	switch (l.n[1]) {
#define DO(op) case op: return map2<float>(l.n[0], l.ptr[0], l.ptr[1], l.ptr[2], l.n[2], [](float dy, float x) { return unaryGrad<op>(dy, x); });
		EACH_UNARY(DO)
#undef DO
	}
}

KERNEL(256) dropout_f32(Launch l) {
	Dropout d(l.f[0], l.n[2], l.n[3]);
	map<float>(l.n[0], l.ptr[0], l.ptr[1], l.n[1], [=](float x, i64 i) { return x * d.factor(i); });
}

KERNEL(256) clamp_f32(Launch l) {
	float least = l.f[0], most = l.f[1];
	map<float>(l.n[0], l.ptr[0], l.ptr[1], false, [=](float x, i64) { return x < least ? least : x > most ? most : x; });
}

KERNEL(256) clamp_grad_f32(Launch l) {
	float least = l.f[0], most = l.f[1];
	map2<float>(l.n[0], l.ptr[0], l.ptr[1], l.ptr[2], l.n[1], [=](float dy, float x) { return x >= least && x <= most ? dy : 0; });
}

KERNEL(256) select_f32(Launch l) {
	float *y = at<float>(l.ptr[0]);
	const int *mask = at<int>(l.ptr[1]);
	const float *a = at<float>(l.ptr[2]), *b = at<float>(l.ptr[3]);
	every<1>(l.n[0], false, [&]<int K>(i64 i) {
		const float *from = mask[i] ? a : b;
		y[i] = from ? from[i] : l.f[0];
	});
}

KERNEL(256) equal_i32(Launch l) {
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
template <class T, int K, class I> DEV void copyNest(const Launch &l) {
	for (i64 i = globalThread(); i < l.n[21]; i += globalThreads()) {
		i64 a, b;
		offsets<I>(l, i, a, b);
		T *to = at<T>(l.ptr[0]) + a * K;
		Pack<T, K> x = load<K>(at<T>(l.ptr[1]) + b * K);
		if (l.n[19]) {
			Pack<T, K> sum = load<K>(to);
			UNROLL for (int k = 0; k < K; k++) x.v[k] = (T)((float)sum.v[k] + (float)x.v[k]);
		}
		store<K>(to, x);
	}
}

// n[20] is the number of elements of a pack: 1 or 4.
KERNEL(256) copy_f32(Launch l) {
	bool small = l.n[21] < 1ll << 31;
	if (l.n[20] == 4) return small ? copyNest<float, 4, u32>(l) : copyNest<float, 4, u64>(l);
	small ? copyNest<float, 1, u32>(l) : copyNest<float, 1, u64>(l);
}

template <class T, int K, class I, class F> DEV void binaryNest(const Launch &l, F f) {
	for (i64 i = globalThread(); i < l.n[21]; i += globalThreads()) {
		i64 p, q;
		offsets<I>(l, i, p, q);
		Pack<T, K> a = load<K>(at<T>(l.ptr[1]) + p * K), b = load<K>(at<T>(l.ptr[2]) + q * K);
		UNROLL for (int k = 0; k < K; k++) a.v[k] = (T)f((float)a.v[k], (float)b.v[k]);
		store<K>(at<T>(l.ptr[0]) + i * K, a);
	}
}

template <class T, class F> DEV void binary(const Launch &l, F f) {
	bool small = l.n[21] < 1ll << 31;
	if (l.n[20] == 4) return small ? binaryNest<T, 4, u32>(l, f) : binaryNest<T, 4, u64>(l, f);
	small ? binaryNest<T, 1, u32>(l, f) : binaryNest<T, 1, u64>(l, f);
}

// n[19] is the operation; packs are as for copy.
KERNEL(256) binary_f32(Launch l) {
	switch (l.n[19]) {
	case 0: return binary<float>(l, [](float a, float b) { return a + b; });
	case 1: return binary<float>(l, [](float a, float b) { return a - b; });
	case 2: return binary<float>(l, [](float a, float b) { return a * b; });
	default: return binary<float>(l, [](float a, float b) { return a / b; });
	}
}
