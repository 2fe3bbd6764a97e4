#include "launch.cuh"

// Operations on images, in their plain form: convolutions are sums for each
// element, which are right, and slow beside cuDNN's.

// An Order is how elements of images or kernels lie: with their channels one
// after the other, or last. from is the place of a channel's pixel in one.
struct Order {
	i64 channel, pixel;

	DEV Order(bool last, int channels, int pixels) : channel(last ? 1 : pixels), pixel(last ? channels : 1) {}
	DEV i64 from(int c, int p) const { return c * channel + p * pixel; }
};

// A ConvShape is a convolution as Conv.queue has it; ptr: X, Weight, Y, bias.
struct ConvShape {
	int N, C, H, W, M, KH, KW, cs, ms, sh, sw, ph, pw, dh, dw, OH, OW; // cs, ms: of a group
	bool last;

	DEV ConvShape(const Launch &l)
		: N((int)l.n[0]), C((int)l.n[1]), H((int)l.n[2]), W((int)l.n[3]), M((int)l.n[4]), KH((int)l.n[5]), KW((int)l.n[6]),
		  cs(C / (int)l.n[7]), ms(M / (int)l.n[7]), sh((int)l.n[8]), sw((int)l.n[9]), ph((int)l.n[10]), pw((int)l.n[11]), dh((int)l.n[12]), dw((int)l.n[13]),
		  OH((H + 2 * ph - dh * (KH - 1) - 1) / sh + 1), OW((W + 2 * pw - dw * (KW - 1) - 1) / sw + 1), last(l.n[15] != 0) {}

	// Places of elements in X, the weight and Y.
	DEV i64 x(i64 n, int c, int h, int v) const { return n * C * H * W + Order(last, C, H * W).from(c, h * W + v); }
	DEV i64 w(int m, int c, int ky, int kx) const { return (i64)m * cs * KH * KW + Order(last, cs, KH * KW).from(c, ky * KW + kx); }
	DEV i64 y(i64 n, int m, int oy, int ox) const { return n * M * OH * OW + Order(last, M, OH * OW).from(m, oy * OW + ox); }

	// split takes the number of an element of an image of so many channels and
	// pixels apart.
	DEV void split(i64 i, int channels, int pixels, i64 &n, int &c, int &p) const {
		n = i / channels / pixels;
		int rest = (int)(i - n * channels * pixels);
		c = last ? rest % channels : rest / pixels;
		p = last ? rest / channels : rest % pixels;
	}
};

KERNEL(256) conv(Launch l) {
	ConvShape s(l);
	Array x(l, 0), w(l, 1), y(l, 2), bias(l, 3);
	every<1>((i64)s.N * s.M * s.OH * s.OW, false, [&]<int K>(i64 i) {
		i64 n;
		int m, p;
		s.split(i, s.M, s.OH * s.OW, n, m, p);
		int ox = p % s.OW, oy = p / s.OW;
		float sum = 0;
		for (int c = 0; c < s.cs; c++)
			for (int ky = 0; ky < s.KH; ky++)
				for (int kx = 0; kx < s.KW; kx++) {
					int h = oy * s.sh - s.ph + ky * s.dh, v = ox * s.sw - s.pw + kx * s.dw;
					if (h < 0 || h >= s.H || v < 0 || v >= s.W) continue;
					sum = fma(x.get(s.x(n, m / s.ms * s.cs + c, h, v)), w.get(s.w(m, c, ky, kx)), sum);
				}
		y.set(i, bias.given() ? sum + bias.get(m) : sum);
	});
}

// conv_grad_input: ptr[0] is dX and ptr[2] dY.
KERNEL(256) conv_grad_input(Launch l) {
	ConvShape s(l);
	Array dx(l, 0), w(l, 1), dy(l, 2);
	every<1>((i64)s.N * s.C * s.H * s.W, false, [&]<int K>(i64 i) {
		i64 n;
		int c, p;
		s.split(i, s.C, s.H * s.W, n, c, p);
		int v = p % s.W, h = p / s.W, first = c / s.cs * s.ms;
		float sum = 0;
		for (int m = first; m < first + s.ms; m++)
			for (int ky = 0; ky < s.KH; ky++)
				for (int kx = 0; kx < s.KW; kx++) {
					int y = h + s.ph - ky * s.dh, x = v + s.pw - kx * s.dw;
					if (y < 0 || x < 0 || y % s.sh || x % s.sw || y / s.sh >= s.OH || x / s.sw >= s.OW) continue;
					sum = fma(dy.get(s.y(n, m, y / s.sh, x / s.sw)), w.get(s.w(m, c % s.cs, ky, kx)), sum);
				}
		dx.put(i, sum, l.n[14]);
	});
}

// conv_grad_weight: a block for each element of dW, ptr[1], from X and dY.
KERNEL(256) conv_grad_weight(Launch l) {
	SHARED float room[32];
	ConvShape s(l);
	Array x(l, 0), dw(l, 1), dy(l, 2);
	i64 m;
	int c, tap;
	s.split(blockX(), s.cs, s.KH * s.KW, m, c, tap);
	int kx = tap % s.KW, ky = tap / s.KW;
	float sum = 0;
	for (i64 p = threadX(); p < (i64)s.N * s.OH * s.OW; p += blockLen()) {
		int ox = (int)(p % s.OW), oy = (int)(p / s.OW % s.OH), h = oy * s.sh - s.ph + ky * s.dh, v = ox * s.sw - s.pw + kx * s.dw;
		i64 n = p / s.OW / s.OH;
		if (h < 0 || h >= s.H || v < 0 || v >= s.W) continue;
		sum = fma(x.get(s.x(n, (int)m / s.ms * s.cs + c, h, v)), dy.get(s.y(n, (int)m, oy, ox)), sum);
	}
	sum = blockSum(sum, room);
	if (threadX() == 0) dw.put(blockX(), sum, l.n[14]);
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

// A Line gives z of a channel, in one expression, so that it is the same bits
// wherever it is computed. ptr[10] is the residual.
struct Line {
	Array x, residual;
	float mean, rstd, gamma, beta;

	DEV Line(const Launch &l, i64 c)
		: x(l, 0), residual(l, 10), mean(at<float>(l.ptr[1])[c]), rstd(at<float>(l.ptr[2])[c]), gamma(Array(l, 3).get(c)),
		  beta(l.ptr[4] ? Array(l, 4).get(c) : 0) {}

	DEV float hat(i64 i) const { return (x.get(i) - mean) * rstd; }
	DEV float z(i64 i) const { return fma(hat(i), gamma, beta) + (residual.given() ? residual.get(i) : 0); }
};

// batch_norm_apply: n[9] says ReLU.
KERNEL(512) batch_norm_apply(Launch l) {
	Channel ch(l);
	Array y(l, 5);
	Line line(l, ch.c);
	ch.each([&](i64 i) {
		float z = line.z(i);
		y.set(i, l.n[9] && z <= 0 ? 0 : z); // NaN stays
	});
}

// batch_norm_grad: ptr[5] … ptr[8] are dx, dgamma, dbeta and dy, and ptr[11] the
// residual's gradient, which is added to by n[10], or by n[11] can be read as g.
KERNEL(512) batch_norm_grad(Launch l) {
	SHARED float room[32];
	Channel ch(l);
	Array dx(l, 5), dy(l, 8), dresidual(l, 11);
	Line line(l, ch.c);
	float sum = 0, sumX = 0;
	auto masked = [&](i64 i) { return l.n[9] && !(line.z(i) > 0) ? 0 : dy.get(i); };
	ch.each([&](i64 i) {
		float g = masked(i);
		sum += g;
		sumX = fma(g, line.hat(i), sumX);
		if (dresidual.given()) dresidual.put(i, g, l.n[10]);
	});
	sum = blockSum(sum, room), sumX = blockSum(sumX, room);
	if (threadX() == 0) {
		if (l.ptr[6]) Array(l, 6).put(ch.c, sumX, l.n[5]);
		if (l.ptr[7]) Array(l, 7).put(ch.c, sum, l.n[6]);
	}
	if (!dx.given()) return;
	float share = l.n[3] ? 0 : 1.0f / ch.count;
	ch.each([&](i64 i) {
		float g = l.n[11] ? dresidual.get(i) : masked(i);
		dx.put(i, line.gamma * line.rstd * (g - sum * share - line.hat(i) * sumX * share), l.n[4]);
	});
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

// A Place is a pixel of a plane in K channels: number i of [planes, sides,
// channels/K]. plane is where the first channel's elements of X begin, which are
// channels apart. Packs are few enough to be numbered by 32 bits, which are
// quicker to divide.
template <int K> struct Place {
	int h, w;
	i64 number, plane, channels, channel;

	DEV Place(const Launch &l, i64 i, int high, int wide) : channels(l.n[12]) {
		K > 1 ? split<u32>((u32)i, high, wide) : split<u64>(i, high, wide);
		plane = number * l.n[1] * l.n[2] * channels + channel;
	}
	template <class I> DEV void split(I i, I high, I wide) {
		I packs = (I)channels / K;
		channel = i % packs * K, i /= packs;
		w = (int)(i % wide), i /= wide;
		h = (int)(i % high), number = i / high;
	}
	DEV i64 at(int place) const { return plane + place * channels; }
	// window is the number of the first element of one in Y.
	DEV i64 window(const Side &down, const Side &across, int oy, int ox) const {
		return ((number * down.windows + oy) * across.windows + ox) * channels + channel;
	}
};

// places calls f for each pack of n[13] channels of high × wide pixels of all
// planes, with its place and the number of its first element.
template <class F> DEV void places(const Launch &l, int high, int wide, F f) {
	i64 elements = l.n[0] * high * wide * l.n[12];
	auto each = [&]<int K>() {
		for (i64 i = globalThread(); i < elements / K; i += globalThreads()) f.template operator()<K>(Place<K>(l, i, high, wide), i * K);
	};
	l.n[13] == 8 ? each.template operator()<8>() : each.template operator()<1>();
}

// Greatest is the first greatest elements of a window, with their places in a
// plane; NaN is the greatest.
template <int K> struct Greatest {
	Pack<float, K> value;
	Pack<int, K> place;

	template <class X> DEV Greatest(X x, const Place<K> &p, const Side &down, const Side &across, int oy, int ox) {
		int first = down.lo(oy) * across.size + across.lo(ox);
		value = x.template load<K>(p.at(first));
	UNROLL
		for (int k = 0; k < K; k++) place.v[k] = first;
		for (int h = down.lo(oy); h < down.hi(oy); h++)
			for (int w = across.lo(ox); w < across.hi(ox); w++) {
				int here = h * across.size + w;
				Pack<float, K> v = x.template load<K>(p.at(here));
			UNROLL
				for (int k = 0; k < K; k++) {
					bool more = v.v[k] > value.v[k] || v.v[k] != v.v[k];
					value.v[k] = more ? v.v[k] : value.v[k];
					place.v[k] = more ? here : place.v[k];
				}
			}
	}
};

template <class X> DEV void maxPool(const Launch &l, X x, X y) {
	Side down(l, 0), across(l, 1);
	places(l, down.windows, across.windows, [&]<int K>(const Place<K> &p, i64 i) {
		y.template store<K>(i, Greatest<K>(x, p, down, across, p.h, p.w).value);
	});
}

KERNEL(256) max_pool(Launch l) {
	Array x(l, 0), y(l, 1);
	if (x.type == BF16 && y.type == BF16) return maxPool(l, x.as<BF16>(), y.as<BF16>());
	maxPool(l, x, y);
}

KERNEL(256) avg_pool(Launch l) {
	Side down(l, 0), across(l, 1);
	Array x(l, 0), y(l, 1);
	places(l, down.windows, across.windows, [&]<int K>(const Place<K> &p, i64 i) {
		Pack<float, K> sum = {};
		for (int h = down.lo(p.h); h < down.hi(p.h); h++)
			for (int w = across.lo(p.w); w < across.hi(p.w); w++) {
				Pack<float, K> v = x.load<K>(p.at(h * across.size + w));
			UNROLL
				for (int k = 0; k < K; k++) sum.v[k] += v.v[k];
			}
		float count = (float)(down.count(p.h) * across.count(p.w));
	UNROLL
		for (int k = 0; k < K; k++) sum.v[k] /= count;
		y.store<K>(i, sum);
	});
}

// gather sets dx, or adds to it: each element gathers from the windows that cover
// it. share(p, oy, ox, g) makes of a window's gradients the parts of the elements
// at p.
template <class F> DEV void gather(const Launch &l, const Array &dx, const Array &dy, F share) {
	Side down(l, 0), across(l, 1);
	places(l, down.size, across.size, [&]<int K>(const Place<K> &p, i64 i) {
		Pack<float, K> sum = {};
		for (int oy = down.from(p.h); oy < down.to(p.h); oy++)
			for (int ox = across.from(p.w); ox < across.to(p.w); ox++) {
				if (!down.covers(oy, p.h) || !across.covers(ox, p.w)) continue;
				Pack<float, K> g = dy.load<K>(p.window(down, across, oy, ox));
				share.template operator()<K>(p, oy, ox, g);
			UNROLL
				for (int k = 0; k < K; k++) sum.v[k] += g.v[k];
			}
		if (l.n[11]) {
			Pack<float, K> old = dx.load<K>(i);
		UNROLL
			for (int k = 0; k < K; k++) sum.v[k] += old.v[k];
		}
		dx.store<K>(i, sum);
	});
}

// max_pool_places finds the places of the greatest elements of all windows,
// in the plane, for the gradient: ptr[3] has four bytes for each.
template <class X> DEV void greatestPlaces(const Launch &l, X x) {
	Side down(l, 0), across(l, 1);
	places(l, down.windows, across.windows, [&]<int K>(const Place<K> &p, i64 i) {
		store<K>(at<int>(l.ptr[3]) + i, Greatest<K>(x, p, down, across, p.h, p.w).place);
	});
}

KERNEL(256) max_pool_places(Launch l) {
	Array x(l, 0);
	if (x.type == BF16) return greatestPlaces(l, x.as<BF16>());
	greatestPlaces(l, x);
}

// max_pool_grad looks for them itself where ptr[3] is 0.
KERNEL(256) max_pool_grad(Launch l) {
	Side down(l, 0), across(l, 1);
	Array x(l, 0);
	gather(l, Array(l, 1), Array(l, 2), [&]<int K>(const Place<K> &p, int oy, int ox, Pack<float, K> &g) {
		Pack<int, K> places;
		if (l.ptr[3]) {
			places = load<K>(at<int>(l.ptr[3]) + p.window(down, across, oy, ox));
		} else {
			places = Greatest<K>(x, p, down, across, oy, ox).place;
		}
	UNROLL
		for (int k = 0; k < K; k++) g.v[k] = places.v[k] == p.h * across.size + p.w ? g.v[k] : 0;
	});
}

KERNEL(256) avg_pool_grad(Launch l) {
	Side down(l, 0), across(l, 1);
	gather(l, Array(l, 0), Array(l, 1), [&]<int K>(const Place<K> &, int oy, int ox, Pack<float, K> &g) {
		float count = (float)(down.count(oy) * across.count(ox));
	UNROLL
		for (int k = 0; k < K; k++) g.v[k] /= count;
	});
}
