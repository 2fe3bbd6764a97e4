#include "launch.cuh"

// Operations on images, in their plain form: convolutions are sums for each
// element, which are right, and slow beside cuDNN's.

// A ConvShape is a convolution as Conv.queue has it; ptr: X, Weight, Y, bias.
struct ConvShape {
	int N, C, H, W, M, KH, KW, cs, ms, sh, sw, ph, pw, dh, dw, OH, OW; // cs, ms: of a group

	DEV ConvShape(const Launch &l)
		: N((int)l.n[0]), C((int)l.n[1]), H((int)l.n[2]), W((int)l.n[3]), M((int)l.n[4]), KH((int)l.n[5]), KW((int)l.n[6]),
		  cs(C / (int)l.n[7]), ms(M / (int)l.n[7]), sh((int)l.n[8]), sw((int)l.n[9]), ph((int)l.n[10]), pw((int)l.n[11]), dh((int)l.n[12]), dw((int)l.n[13]),
		  OH((H + 2 * ph - dh * (KH - 1) - 1) / sh + 1), OW((W + 2 * pw - dw * (KW - 1) - 1) / sw + 1) {}
};

KERNEL(256) conv(Launch l) {
	ConvShape s(l);
	Array x(l, 0), w(l, 1), y(l, 2), bias(l, 3);
	every<1>((i64)s.N * s.M * s.OH * s.OW, false, [&]<int K>(i64 i) {
		int ox = (int)(i % s.OW), oy = (int)(i / s.OW % s.OH), m = (int)(i / s.OW / s.OH % s.M);
		i64 n = i / s.OW / s.OH / s.M;
		float sum = 0;
		for (int c = 0; c < s.cs; c++)
			for (int ky = 0; ky < s.KH; ky++)
				for (int kx = 0; kx < s.KW; kx++) {
					int h = oy * s.sh - s.ph + ky * s.dh, v = ox * s.sw - s.pw + kx * s.dw;
					if (h < 0 || h >= s.H || v < 0 || v >= s.W) continue;
					sum = fma(x.get(((n * s.C + m / s.ms * s.cs + c) * s.H + h) * s.W + v), w.get((((i64)m * s.cs + c) * s.KH + ky) * s.KW + kx), sum);
				}
		y.set(i, bias.given() ? sum + bias.get(m) : sum);
	});
}

// conv_grad_input: ptr[0] is dX and ptr[2] dY.
KERNEL(256) conv_grad_input(Launch l) {
	ConvShape s(l);
	Array dx(l, 0), w(l, 1), dy(l, 2);
	every<1>((i64)s.N * s.C * s.H * s.W, false, [&]<int K>(i64 i) {
		int v = (int)(i % s.W), h = (int)(i / s.W % s.H), c = (int)(i / s.W / s.H % s.C), first = c / s.cs * s.ms;
		i64 n = i / s.W / s.H / s.C;
		float sum = 0;
		for (int m = first; m < first + s.ms; m++)
			for (int ky = 0; ky < s.KH; ky++)
				for (int kx = 0; kx < s.KW; kx++) {
					int y = h + s.ph - ky * s.dh, x = v + s.pw - kx * s.dw;
					if (y < 0 || x < 0 || y % s.sh || x % s.sw || y / s.sh >= s.OH || x / s.sw >= s.OW) continue;
					sum = fma(dy.get(((n * s.M + m) * s.OH + y / s.sh) * s.OW + x / s.sw), w.get((((i64)m * s.cs + c % s.cs) * s.KH + ky) * s.KW + kx), sum);
				}
		dx.put(i, sum, l.n[14]);
	});
}

// conv_grad_weight: a block for each element of dW, ptr[1], from X and dY.
KERNEL(256) conv_grad_weight(Launch l) {
	SHARED float room[32];
	ConvShape s(l);
	Array x(l, 0), dw(l, 1), dy(l, 2);
	int i = blockX(), kx = i % s.KW, ky = i / s.KW % s.KH, c = i / s.KW / s.KH % s.cs, m = i / s.KW / s.KH / s.cs;
	float sum = 0;
	for (i64 p = threadX(); p < (i64)s.N * s.OH * s.OW; p += blockLen()) {
		int ox = (int)(p % s.OW), oy = (int)(p / s.OW % s.OH), h = oy * s.sh - s.ph + ky * s.dh, v = ox * s.sw - s.pw + kx * s.dw;
		i64 n = p / s.OW / s.OH;
		if (h < 0 || h >= s.H || v < 0 || v >= s.W) continue;
		sum = fma(x.get(((n * s.C + m / s.ms * s.cs + c) * s.H + h) * s.W + v), dy.get(((n * s.M + m) * s.OH + oy) * s.OW + ox), sum);
	}
	sum = blockSum(sum, room);
	if (threadX() == 0) dw.put(i, sum, l.n[14]);
}

// Batch normalisation: a block for each channel. ptr: X, mean, rstd, gamma,
// beta; n: N, C, P.
struct Channel {
	i64 c, C, P, count;

	DEV Channel(const Launch &l) : c(blockX()), C(l.n[1]), P(l.n[2]), count(l.n[0] * l.n[2]) {}

	// each calls f for the places of the channel's elements.
	template <class F> DEV void each(F f) const {
		for (i64 i = threadX(); i < count; i += blockLen()) f((i / P * C + c) * P + i % P);
	}
};

// batch_norm_stats: ptr[5], ptr[6] are the running mean and variance.
KERNEL(512) batch_norm_stats(Launch l) {
	SHARED float room[32];
	Channel ch(l);
	Array x(l, 0);
	float sum = 0, square = 0;
	ch.each([&](i64 i) { sum += x.get(i); });
	float mean = blockSum(sum, room) / ch.count;
	ch.each([&](i64 i) {
		float d = x.get(i) - mean;
		square = fma(d, d, square);
	});
	square = blockSum(square, room);
	if (threadX()) return;
	at<float>(l.ptr[1])[ch.c] = mean;
	at<float>(l.ptr[2])[ch.c] = 1 / rootOf(square / ch.count + l.f[1]);
	if (!l.ptr[5]) return;
	float *runMean = at<float>(l.ptr[5]) + ch.c, *runVar = at<float>(l.ptr[6]) + ch.c;
	*runMean += l.f[0] * (mean - *runMean);
	*runVar += l.f[0] * (square / (ch.count > 1 ? ch.count - 1 : 1) - *runVar);
}

KERNEL(512) batch_norm_apply(Launch l) {
	Channel ch(l);
	Array x(l, 0), y(l, 5);
	float mean = at<float>(l.ptr[1])[ch.c], rstd = at<float>(l.ptr[2])[ch.c], gamma = Array(l, 3).get(ch.c), beta = Array(l, 4).get(ch.c);
	ch.each([&](i64 i) { y.set(i, fma((x.get(i) - mean) * rstd, gamma, beta)); });
}

// batch_norm_grad: ptr[5] … ptr[8] are dx, dgamma, dbeta and dy.
KERNEL(512) batch_norm_grad(Launch l) {
	SHARED float room[32];
	Channel ch(l);
	Array x(l, 0), dx(l, 5), dy(l, 8);
	float mean = at<float>(l.ptr[1])[ch.c], rstd = at<float>(l.ptr[2])[ch.c], gamma = Array(l, 3).get(ch.c), sum = 0, sumX = 0;
	ch.each([&](i64 i) {
		float g = dy.get(i);
		sum += g;
		sumX = fma(g, (x.get(i) - mean) * rstd, sumX);
	});
	sum = blockSum(sum, room), sumX = blockSum(sumX, room);
	if (threadX() == 0) {
		if (l.ptr[6]) Array(l, 6).put(ch.c, sumX, l.n[5]);
		if (l.ptr[7]) Array(l, 7).put(ch.c, sum, l.n[6]);
	}
	if (!dx.given()) return;
	float share = l.n[3] ? 0 : 1.0f / ch.count;
	ch.each([&](i64 i) { dx.put(i, gamma * rstd * (dy.get(i) - sum * share - (x.get(i) - mean) * rstd * sumX * share), l.n[4]); });
}

KERNEL(256) inverse_deviation(Launch l) {
	every<1>(l.n[0], false, [&]<int K>(i64 i) { at<float>(l.ptr[0])[i] = 1 / rootOf(at<float>(l.ptr[1])[i] + l.f[0]); });
}

// Pools: n as Pool.launch has it. A Side is the windows along one side.
struct Side {
	int size, windows, kernel, stride, pad;

	DEV Side(const Launch &l, int i)
		: size((int)l.n[1 + i]), windows((int)l.n[3 + i]), kernel((int)l.n[5 + i]), stride((int)l.n[7 + i]), pad((int)l.n[9 + i]) {}

	// lo, hi and count are as the host's bounds.
	DEV int lo(int o) const {
		int first = kernel ? o * stride - pad : (int)((i64)o * size / windows);
		return first < 0 ? 0 : first;
	}
	DEV int hi(int o) const {
		int end = kernel ? o * stride - pad + kernel : (int)(((i64)(o + 1) * size + windows - 1) / windows);
		return end > size ? size : end;
	}
	DEV int count(int o) const {
		if (!kernel) return hi(o) - lo(o);
		int first = o * stride - pad, end = first + kernel;
		return (end > size + pad ? size + pad : end) - first;
	}
	// from and to bound the windows that may cover element x.
	DEV int from(int x) const {
		int o = kernel ? (x + pad - kernel) / stride : (int)((i64)x * windows / size) - 1;
		return o < 0 ? 0 : o;
	}
	DEV int to(int x) const {
		int o = kernel ? (x + pad) / stride + 1 : (int)((i64)(x + 1) * windows / size) + 1;
		return o > windows ? windows : o;
	}
	DEV bool covers(int o, int x) const { return x >= lo(o) && x < hi(o); }
};

// greatestOf is the place in a plane of the first greatest element of a window;
// NaN is the greatest.
DEV int greatestOf(const Array &x, i64 plane, const Side &down, const Side &across, int oy, int ox) {
	int place = down.lo(oy) * across.size + across.lo(ox);
	float most = x.get(plane + place);
	for (int h = down.lo(oy); h < down.hi(oy); h++)
		for (int w = across.lo(ox); w < across.hi(ox); w++) {
			float v = x.get(plane + h * across.size + w);
			if (v > most || v != v) most = v, place = h * across.size + w;
		}
	return place;
}

KERNEL(256) max_pool(Launch l) {
	Side down(l, 0), across(l, 1);
	Array x(l, 0), y(l, 1);
	every<1>(l.n[0] * down.windows * across.windows, false, [&]<int K>(i64 i) {
		i64 plane = i / across.windows / down.windows * down.size * across.size;
		y.set(i, x.get(plane + greatestOf(x, plane, down, across, (int)(i / across.windows % down.windows), (int)(i % across.windows))));
	});
}

KERNEL(256) avg_pool(Launch l) {
	Side down(l, 0), across(l, 1);
	Array x(l, 0), y(l, 1);
	every<1>(l.n[0] * down.windows * across.windows, false, [&]<int K>(i64 i) {
		i64 plane = i / across.windows / down.windows * down.size * across.size;
		int oy = (int)(i / across.windows % down.windows), ox = (int)(i % across.windows);
		float sum = 0;
		for (int h = down.lo(oy); h < down.hi(oy); h++)
			for (int w = across.lo(ox); w < across.hi(ox); w++) sum += x.get(plane + h * across.size + w);
		y.set(i, sum / (float)(down.count(oy) * across.count(ox)));
	});
}

// gradients: each element gathers from the windows that cover it. share(plane,
// place, oy, ox) is its part of a window's gradient.
template <class F> DEV void gather(const Launch &l, const Array &dx, const Array &dy, F share) {
	Side down(l, 0), across(l, 1);
	every<1>(l.n[0] * down.size * across.size, false, [&]<int K>(i64 i) {
		int w = (int)(i % across.size), h = (int)(i / across.size % down.size);
		i64 number = i / across.size / down.size, plane = number * down.size * across.size;
		float sum = 0;
		for (int oy = down.from(h); oy < down.to(h); oy++)
			for (int ox = across.from(w); ox < across.to(w); ox++)
				if (down.covers(oy, h) && across.covers(ox, w))
					sum += share(plane, h * across.size + w, oy, ox, dy.get((number * down.windows + oy) * across.windows + ox));
		dx.put(i, sum, l.n[11]);
	});
}

KERNEL(256) max_pool_grad(Launch l) {
	Side down(l, 0), across(l, 1);
	Array x(l, 0);
	gather(l, Array(l, 1), Array(l, 2), [&](i64 plane, int place, int oy, int ox, float g) {
		return greatestOf(x, plane, down, across, oy, ox) == place ? g : 0;
	});
}

KERNEL(256) avg_pool_grad(Launch l) {
	Side down(l, 0), across(l, 1);
	gather(l, Array(l, 0), Array(l, 1), [&](i64, int, int oy, int ox, float g) { return g / (float)(down.count(oy) * across.count(ox)); });
}
