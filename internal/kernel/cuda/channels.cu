#include "launch.cuh"

// Batch normalisation of rows of channels, [N, C]: images whose channels lie
// last. ptr and n are as image.cu has them, and ptr[9] the workspace; n[7] is
// the number of parts, which are the grid's height, and n[8] says whether
// channels are taken in packs.
//
// A block has 64 channels of a part of the rows. What a part's rows come to is
// put into the workspace, [parts, 2, C], and added up in the order of the
// parts; where the sums are wanted again they stand behind, [2, C].

const int blockChannels = 64;

// A Column is a thread's W channels, from c on, in every lanes-th row of a part.
template <int W> struct Column {
	static const int across = blockChannels / W, lanes = 256 / across;
	i64 C, c, row, end;

	DEV Column(const Launch &l) : C(l.n[1]), c((i64)blockX() * blockChannels + threadX() % across * W) {
		i64 part = (l.n[0] + l.n[7] - 1) / l.n[7];
		row = blockY() * part + threadX() / across;
		end = (blockY() + 1) * part < l.n[0] ? (blockY() + 1) * part : l.n[0];
	}
	DEV bool has() const { return c < C; }

	// each calls f for the places of the thread's packs.
	template <class F> DEV void each(F f) const {
		if (has())
			for (i64 r = row; r < end; r += lanes) f(r * C + c);
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
		at<float>(l.ptr[9])[(blockY() * 2 + kind) * C + (i64)blockX() * blockChannels + channel] = sum;
	}
};

// shifted are the sums of x and of its square, less the channel's first element,
// so that little is lost where the mean is far from zero.
template <int W> DEV void shifted(const Launch &l, float *room) {
	Column<W> col(l);
	Array x(l, 0);
	Pack<float, W> a = {}, b = {}, first = {};
	if (col.has()) first = x.load<W>(col.c);
	col.each([&](i64 i) {
		Pack<float, W> p = x.load<W>(i);
	UNROLL
		for (int k = 0; k < W; k++) {
			float d = p.v[k] - first.v[k];
			a.v[k] += d, b.v[k] = fma(d, d, b.v[k]);
		}
	});
	col.put(l, a, b, room);
}

KERNEL(256) channel_sums(Launch l) {
	SHARED float room[2 * 32 * blockChannels];
	if (l.n[8])
		shifted<8>(l, room);
	else
		shifted<1>(l, room);
}

// Folded is the sums over all parts of one channel, for a block of 32 channels
// by 32 threads each. The first of these has them.
struct Folded {
	i64 c;
	float a, b;
	bool mine;

	DEV Folded(const Launch &l, float *room) : c((i64)blockX() * 32 + threadX() % 32), a(0), b(0) {
		const float *work = at<float>(l.ptr[9]);
		i64 C = l.n[1];
		int lane = threadX() / 32;
		if (c < C)
			for (i64 p = lane; p < l.n[7]; p += 32) a += work[2 * p * C + c], b += work[(2 * p + 1) * C + c];
		room[threadX()] = a, room[1024 + threadX()] = b;
		barrier();
		mine = lane == 0 && c < C;
		if (!mine) return;
		for (int i = 1; i < 32; i++) a += room[i * 32 + threadX()], b += room[1024 + i * 32 + threadX()];
	}
};

KERNEL(1024) channel_stats(Launch l) {
	SHARED float room[2048];
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

// A Norm is what normalises a thread's channels.
template <int W> struct Norm {
	Pack<float, W> mean, rstd, gamma, beta;

	DEV Norm(const Launch &l, const Column<W> &col) {
		if (!col.has()) return;
		mean = Array(l.ptr[1], F32).load<W>(col.c), rstd = Array(l.ptr[2], F32).load<W>(col.c), gamma = Array(l, 3).load<W>(col.c);
		if (l.ptr[4]) beta = Array(l, 4).load<W>(col.c);
	}
	DEV float hat(float x, int k) const { return (x - mean.v[k]) * rstd.v[k]; }
};

template <int W> DEV void apply(const Launch &l) {
	Column<W> col(l);
	Array x(l, 0), y(l, 5);
	Norm<W> norm(l, col);
	col.each([&](i64 i) {
		Pack<float, W> p = x.load<W>(i);
	UNROLL
		for (int k = 0; k < W; k++) p.v[k] = fma(norm.hat(p.v[k], k), norm.gamma.v[k], norm.beta.v[k]);
		y.store<W>(i, p);
	});
}

KERNEL(256) channel_apply(Launch l) {
	if (l.n[8])
		apply<8>(l);
	else
		apply<1>(l);
}

template <int W> DEV void gradSums(const Launch &l, float *room) {
	Column<W> col(l);
	Array x(l, 0), dy(l, 8);
	Norm<W> norm(l, col);
	Pack<float, W> a = {}, b = {};
	col.each([&](i64 i) {
		Pack<float, W> p = x.load<W>(i), g = dy.load<W>(i);
	UNROLL
		for (int k = 0; k < W; k++) a.v[k] += g.v[k], b.v[k] = fma(g.v[k], norm.hat(p.v[k], k), b.v[k]);
	});
	col.put(l, a, b, room);
}

KERNEL(256) channel_grad_sums(Launch l) {
	SHARED float room[2 * 32 * blockChannels];
	if (l.n[8])
		gradSums<8>(l, room);
	else
		gradSums<1>(l, room);
}

KERNEL(1024) channel_grad_fold(Launch l) {
	SHARED float room[2048];
	Folded f(l, room);
	if (!f.mine) return;
	if (l.ptr[6]) Array(l, 6).put(f.c, f.b, l.n[5]);
	if (l.ptr[7]) Array(l, 7).put(f.c, f.a, l.n[6]);
	float *sums = at<float>(l.ptr[9]) + 2 * l.n[7] * l.n[1], share = l.n[3] ? 0 : 1 / (float)l.n[0];
	sums[f.c] = f.a * share, sums[l.n[1] + f.c] = f.b * share;
}

template <int W> DEV void grad(const Launch &l) {
	Column<W> col(l);
	Array x(l, 0), dx(l, 5), dy(l, 8), sums(l.ptr[9] + 8 * l.n[7] * l.n[1], F32);
	Norm<W> norm(l, col);
	Pack<float, W> a = {}, b = {};
	if (col.has()) a = sums.load<W>(col.c), b = sums.load<W>(col.C + col.c);
	col.each([&](i64 i) {
		Pack<float, W> p = x.load<W>(i), g = dy.load<W>(i), old = {};
		if (l.n[4]) old = dx.load<W>(i);
	UNROLL
		for (int k = 0; k < W; k++) old.v[k] += norm.gamma.v[k] * norm.rstd.v[k] * (g.v[k] - a.v[k] - norm.hat(p.v[k], k) * b.v[k]);
		dx.store<W>(i, old);
	});
}

KERNEL(256) channel_grad(Launch l) {
	if (l.n[8])
		grad<8>(l);
	else
		grad<1>(l);
}
