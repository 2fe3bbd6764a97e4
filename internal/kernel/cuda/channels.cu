#include "launch.cuh"

// Batch normalisation of rows of channels, [N, C]: images whose channels lie
// last. ptr and n are as image.cu has them, and ptr[9] the workspace; n[7] is
// the number of parts, which are the grid's height, n[8] of what elements are
// taken (Way), and n[12] the rows of a part.
//
// A block has 64 channels of a part of the rows. What a part's rows come to is
// put into the workspace, [parts, 2, C], and added up in the order of the
// parts; where the sums are wanted again they stand behind, [2, C].
//
// All of these are bound by memory. So a thread loads several rows before it
// uses the first, for which the types must be known; and passes go through the
// rows in turns, sums from the last part, what follows from the first, so that
// each finds in the cache what the one before it has read or written last.

const int blockChannels = 64;

// A Way is how a function takes its operands: any types, by elements or by
// packs, or packs of bfloat16 alone, with ReLU and a residual or without.
enum { ELEMENTS, PACKS, PLAIN16, RELU16, RESIDUAL16 };

template <int way_> struct Way {
	static const int way = way_, W = way == ELEMENTS ? 1 : 8;
	static const int ahead = way < PLAIN16 ? 1 : 4; // rows that are loaded at once

	DEV static bool relu(const Launch &l) { return way < PLAIN16 ? l.n[9] : way != PLAIN16; }
	DEV static bool residual(const Launch &l) { return way < PLAIN16 ? l.ptr[10] : way == RESIDUAL16; }
	DEV static bool adds(const Launch &l, int i) { return way < PLAIN16 && l.n[i]; } // by flag i

	DEV static auto operand(const Launch &l, int i) {
		if constexpr (way < PLAIN16)
			return Array(l, i);
		else
			return Typed<BF16>{l.ptr[i]};
	}
};

// run calls f with the launch's Way.
template <class F> DEV void run(const Launch &l, F f) {
	switch (l.n[8]) {
	case ELEMENTS: return f(Way<ELEMENTS>());
	case PACKS: return f(Way<PACKS>());
	case PLAIN16: return f(Way<PLAIN16>());
	case RELU16: return f(Way<RELU16>());
	default: return f(Way<RESIDUAL16>());
	}
}

// A Column is a thread's W channels, from c on, in every lanes-th row of a part.
template <class Way> struct Column {
	static const int W = Way::W, across = blockChannels / W, lanes = 256 / across, ahead = Way::ahead;
	i64 C, c, row, end;
	int part;

	DEV Column(const Launch &l, bool fromLast) : C(l.n[1]), c((i64)blockX() * blockChannels + threadX() % across * W) {
		part = fromLast ? (int)l.n[7] - 1 - blockY() : blockY();
		row = part * l.n[12] + threadX() / across;
		end = (part + 1) * l.n[12] < l.n[0] ? (part + 1) * l.n[12] : l.n[0];
	}
	DEV bool has() const { return c < C; }

	// load gives the thread's packs of n rows, the first of them at i.
	template <int n> struct Packs {
		Pack<float, W> row[n];
	};
	template <int n, class A> DEV Packs<n> load(const A &a, i64 i) const {
		Packs<n> p;
	UNROLL
		for (int j = 0; j < n; j++) p.row[j] = a.template load<W>(i + j * lanes * C);
		return p;
	}
	template <int n, class A> DEV void store(const A &a, i64 i, const Packs<n> &p) const {
	UNROLL
		for (int j = 0; j < n; j++) a.template store<W>(i + j * lanes * C, p.row[j]);
	}

	// each calls f<n>(i) for the places of the first of n packs, until all are done.
	template <class F> DEV void each(F f) const {
		if (!has()) return;
		i64 r = row;
		if (ahead > 1)
			for (; r + (ahead - 1) * lanes < end; r += ahead * lanes) f.template operator()<ahead>(r * C + c);
		for (; r < end; r += lanes) f.template operator()<1>(r * C + c);
	}

	// put adds the lanes' sums of two kinds up, and puts them into the workspace.
	DEV void put(const Launch &l, const Pack<float, W> &a, const Pack<float, W> &b, float *room) const {
		int place = threadX() / across * blockChannels + threadX() % across * W;
	UNROLL
		for (int k = 0; k < W; k++) room[place + k] = a.v[k], room[lanes * blockChannels + place + k] = b.v[k];
		barrier();
		int kind = threadX() / blockChannels, channel = threadX() % blockChannels;
		if (kind > 1 || (i64)blockX() * blockChannels + channel >= C) return;
		float sum = 0;
		for (int i = 0; i < lanes; i++) sum += room[(kind * lanes + i) * blockChannels + channel];
		at<float>(l.ptr[9])[((i64)part * 2 + kind) * C + (i64)blockX() * blockChannels + channel] = sum;
	}
};

// shifted are the sums of x and of its square, less the channel's first element,
// so that little is lost where the mean is far from zero.
template <class Way> DEV void shifted(const Launch &l, float *room) {
	const int W = Way::W;
	Column<Way> col(l, true);
	auto x = Way::operand(l, 0);
	Pack<float, W> a = {}, b = {}, first = {};
	if (col.has()) first = x.template load<W>(col.c);
	col.each([&]<int n>(i64 i) {
		auto p = col.template load<n>(x, i);
	UNROLL
		for (int j = 0; j < n; j++)
		UNROLL
			for (int k = 0; k < W; k++) {
				float d = p.row[j].v[k] - first.v[k];
				a.v[k] += d, b.v[k] = fma(d, d, b.v[k]);
			}
	});
	col.put(l, a, b, room);
}

KERNEL(256) channel_sums(Launch l) {
	SHARED float room[2 * 32 * blockChannels];
	if (l.n[8] == ELEMENTS)
		shifted<Way<ELEMENTS>>(l, room);
	else if (l.n[8] == PACKS)
		shifted<Way<PACKS>>(l, room);
	else
		shifted<Way<PLAIN16>>(l, room);
}

// Folded is the sums over all parts of one channel, for a block of 8 channels by
// 128 threads each. The first of these has them.
struct Folded {
	i64 c;
	float a, b;
	bool mine;

	DEV Folded(const Launch &l, float *room) : c((i64)blockX() * 8 + threadX() % 8), a(0), b(0), mine(threadX() < 8 && c < l.n[1]) {
		const float *work = at<float>(l.ptr[9]);
		i64 C = l.n[1];
		if (c < C) {
#pragma unroll 4
			for (i64 p = threadX() / 8; p < l.n[7]; p += 128) a += work[2 * p * C + c], b += work[(2 * p + 1) * C + c];
		}
		a = overLanes(a), b = overLanes(b);
		int warp = threadX() / 32, lane = threadX() % 32;
		if (lane < 8) room[warp * 8 + lane] = a, room[256 + warp * 8 + lane] = b;
		barrier();
		if (warp > 0) return;
		a = b = 0;
		for (int i = lane / 8; i < 32; i += 4) a += room[i * 8 + lane % 8], b += room[256 + i * 8 + lane % 8];
		a = overLanes(a), b = overLanes(b);
	}
	// overLanes adds up what the warp's four threads of a channel have.
	DEV static float overLanes(float x) {
		x += shuffle(x, 8);
		return x + shuffle(x, 16);
	}
};

KERNEL(1024) channel_stats(Launch l) {
	SHARED float room[512];
	Folded f(l, room);
	if (!f.mine) return;
	float count = (float)l.n[0], d = f.a / count, mean = Array(l, 0).get(f.c) + d, square = f.b - f.a * d;
	square = square > 0 ? square : square == square ? 0 : square;
	at<float>(l.ptr[1])[f.c] = mean;
	at<float>(l.ptr[2])[f.c] = 1 / rootOf(square / count + l.f[1]);
	if (!l.ptr[5]) return;
	float *runMean = at<float>(l.ptr[5]) + f.c, *runVar = at<float>(l.ptr[6]) + f.c;
	*runMean += l.f[0] * (mean - *runMean);
	*runVar += l.f[0] * (square / (count > 1 ? count - 1 : 1) - *runVar);
}

// A Line gives z of a thread's channels, in one expression, so that it is the
// same bits wherever it is computed.
template <class Way> struct Line {
	static const int W = Way::W;
	Pack<float, W> mean, slope, beta; // slope is rstd·gamma

	DEV Line(const Launch &l, const Column<Way> &col) {
		if (!col.has()) return;
		mean = Array(l.ptr[1], F32).load<W>(col.c);
		Pack<float, W> rstd = Array(l.ptr[2], F32).load<W>(col.c);
		slope = Array(l, 3).load<W>(col.c);
	UNROLL
		for (int k = 0; k < W; k++) slope.v[k] *= rstd.v[k];
		if (l.ptr[4]) beta = Array(l, 4).load<W>(col.c);
	}
	DEV float z(float x, int k) const { return fma(x - mean.v[k], slope.v[k], beta.v[k]); }
};

template <class Way> DEV void apply(const Launch &l) {
	const int W = Way::W;
	Column<Way> col(l, false);
	auto x = Way::operand(l, 0), y = Way::operand(l, 5), residual = Way::operand(l, 10);
	Line<Way> line(l, col);
	col.each([&]<int n>(i64 i) {
		auto p = col.template load<n>(x, i);
		typename Column<Way>::template Packs<n> r = {};
		if (Way::residual(l)) r = col.template load<n>(residual, i);
	UNROLL
		for (int j = 0; j < n; j++)
		UNROLL
			for (int k = 0; k < W; k++) {
				float z = line.z(p.row[j].v[k], k) + r.row[j].v[k];
				p.row[j].v[k] = Way::relu(l) && z <= 0 ? 0 : z; // NaN stays
			}
		col.template store<n>(y, i, p);
	});
}

KERNEL(256) channel_apply(Launch l) {
	run(l, [&]<class Way>(Way) { apply<Way>(l); });
}

// Masked loads packs of x and of g, the gradient of z.
template <class Way, int n> struct Masked {
	static const int W = Way::W;
	typename Column<Way>::template Packs<n> x, g;

	DEV Masked(const Launch &l, const Column<Way> &col, const Line<Way> &line, i64 i)
		: x(col.template load<n>(Way::operand(l, 0), i)), g(col.template load<n>(Way::operand(l, 8), i)) {
		if (!Way::relu(l)) return;
		typename Column<Way>::template Packs<n> r = {};
		if (Way::residual(l)) r = col.template load<n>(Way::operand(l, 10), i);
	UNROLL
		for (int j = 0; j < n; j++)
		UNROLL
			for (int k = 0; k < W; k++)
				if (!(line.z(x.row[j].v[k], k) + r.row[j].v[k] > 0)) g.row[j].v[k] = 0;
	}
};

// gradSums leaves Σ g and Σ g·(x − mean), and g where it is wanted.
template <class Way> DEV void gradSums(const Launch &l, float *room) {
	const int W = Way::W;
	Column<Way> col(l, true);
	auto dresidual = Way::operand(l, 11);
	Line<Way> line(l, col);
	Pack<float, W> a = {}, b = {};
	col.each([&]<int n>(i64 i) {
		Masked<Way, n> m(l, col, line, i);
	UNROLL
		for (int j = 0; j < n; j++)
		UNROLL
			for (int k = 0; k < W; k++)
				a.v[k] += m.g.row[j].v[k], b.v[k] = fma(m.g.row[j].v[k], m.x.row[j].v[k] - line.mean.v[k], b.v[k]);
		if (!dresidual.given()) return;
		if (Way::adds(l, 10)) {
			auto old = col.template load<n>(dresidual, i);
		UNROLL
			for (int j = 0; j < n; j++)
			UNROLL
				for (int k = 0; k < W; k++) m.g.row[j].v[k] += old.row[j].v[k];
		}
		col.template store<n>(dresidual, i, m.g);
	});
	col.put(l, a, b, room);
}

KERNEL(256) channel_grad_sums(Launch l) {
	SHARED float room[2 * 32 * blockChannels];
	run(l, [&]<class Way>(Way) { gradSums<Way>(l, room); });
}

// channel_grad_fold leaves, behind the parts' sums, the means of g and, times
// rstd², of g·(x − mean): what grad takes from g, for x at the mean and for each
// by which it is above.
KERNEL(1024) channel_grad_fold(Launch l) {
	SHARED float room[512];
	Folded f(l, room);
	if (!f.mine) return;
	float rstd = at<float>(l.ptr[2])[f.c], sumX = f.b * rstd;
	if (l.ptr[6]) Array(l, 6).put(f.c, sumX, l.n[5]);
	if (l.ptr[7]) Array(l, 7).put(f.c, f.a, l.n[6]);
	float *sums = at<float>(l.ptr[9]) + 2 * l.n[7] * l.n[1], share = l.n[3] ? 0 : 1 / (float)l.n[0];
	sums[f.c] = f.a * share, sums[l.n[1] + f.c] = sumX * rstd * share;
}

// grad computes dx = slope·(g − a − (x − mean)·b), with a and b of the fold.
template <class Way> DEV void grad(const Launch &l) {
	const int W = Way::W;
	Column<Way> col(l, false);
	auto dx = Way::operand(l, 5);
	Array sums(l.ptr[9] + 8 * l.n[13] * l.n[1], F32);
	Line<Way> line(l, col);
	Pack<float, W> a = {}, b = {};
	if (col.has()) a = sums.load<W>(col.c), b = sums.load<W>(col.C + col.c);
	col.each([&]<int n>(i64 i) {
		Masked<Way, n> m(l, col, line, i);
		typename Column<Way>::template Packs<n> sum = {};
		if (Way::adds(l, 4)) sum = col.template load<n>(dx, i);
	UNROLL
		for (int j = 0; j < n; j++)
		UNROLL
			for (int k = 0; k < W; k++) {
				float above = m.x.row[j].v[k] - line.mean.v[k];
				sum.row[j].v[k] += line.slope.v[k] * (m.g.row[j].v[k] - a.v[k] - above * b.v[k]);
			}
		col.template store<n>(dx, i, sum);
	});
}

KERNEL(256) channel_grad(Launch l) {
	run(l, [&]<class Way>(Way) { grad<Way>(l); });
}
