#include "attention.cuh"

// Attention on 16-bit operands with tensor cores: the method of attention.cu,
// for GPUs of compute capability 8.0 or newer. Q, K, V and dO have one 16-bit
// type, rows of D ≤ 64 or 128 elements (a multiple of 8) at multiples of 16
// bytes. Scores, softmax and sums are float; probabilities and the scores'
// gradients are rounded to the operands' type before they are multiplied.
//
// A block of four warps owns 64 rows of one head, a warp 16 of them, and goes
// over the other side N rows at a time. The products are those of mma.m16n8k16,
// whose fragments lie in the threads like this (g = lane / 4, q = lane % 4):
//
//	C, 16×8:   c0 c1 at row g, columns 2q and 2q+1; c2 c3 at row g + 8
//	A, 16×16:  a0 as c0 c1; a1 as c2 c3; a2, a3 the same eight columns on
//	B, 16×8:   b0 at rows 2q and 2q+1, column g; b1 eight rows on
//
// So two neighbouring C of scores are, rounded, one A of probabilities. Rows in
// shared memory have eight elements more than D, so that the rows of an 8×8
// block lie in different banks.

template <bool BF_, int D_, int N_> struct Shape {
	static const bool BF = BF_; // bfloat16, not float16
	static const int D = D_, N = N_, LD = D + 8, M = 64;
};

// loadA gives the A at row r and column k of a tile.
template <class S> DEV void loadA(u32 (&a)[4], const u16 *tile, int r, int k) {
	int lane = threadX() % 32;
	loadMatrices(a, tile + (r + lane % 16) * S::LD + k + lane / 16 * 8);
}

// loadB gives two B, of columns n and n + 8, from a tile whose rows are columns
// of B; loadBT from one whose rows are rows of B.
template <class S> DEV void loadB(u32 (&b)[4], const u16 *tile, int n, int k) {
	int lane = threadX() % 32;
	loadMatrices(b, tile + (n + lane % 8 + lane / 16 * 8) * S::LD + k + lane / 8 % 2 * 8);
}
template <class S> DEV void loadBT(u32 (&b)[4], const u16 *tile, int n, int k) {
	int lane = threadX() % 32;
	loadTransposed(b, tile + (k + lane % 16) * S::LD + n + lane / 16 * 8);
}

// multiply adds a·b to c.
template <class S> DEV void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
	S::BF ? multiplyBF16(c, a, b0, b1) : multiplyF16(c, a, b0, b1);
}

// pair rounds two numbers, the first to the lower half.
template <class S> DEV u32 pair(float x, float y) { return S::BF ? pairBF16(x, y) : pairF16(x, y); }

// across: c = rows r … r+15 of a, times the N rows of b, transposed.
template <class S> DEV void across(float (&c)[S::N / 8][4], const u16 *a, int r, const u16 *b) {
UNROLL
	for (int n = 0; n < S::N / 8; n++)
	UNROLL
		for (int i = 0; i < 4; i++) c[n][i] = 0;
UNROLL
	for (int k = 0; k < S::D; k += 16) {
		u32 x[4];
		loadA<S>(x, a, r, k);
	UNROLL
		for (int n = 0; n < S::N; n += 16) {
			u32 y[4];
			loadB<S>(y, b, n, k);
			multiply<S>(c[n / 8], x, y[0], y[1]);
			multiply<S>(c[n / 8 + 1], x, y[2], y[3]);
		}
	}
}

// along: c += p, rounded, times the N rows of b.
template <class S> DEV void along(float (&c)[S::D / 8][4], const float (&p)[S::N / 8][4], const u16 *b) {
UNROLL
	for (int k = 0; k < S::N / 8; k += 2) {
		u32 x[4] = {pair<S>(p[k][0], p[k][1]), pair<S>(p[k][2], p[k][3]), pair<S>(p[k + 1][0], p[k + 1][1]), pair<S>(p[k + 1][2], p[k + 1][3])};
	UNROLL
		for (int d = 0; d < S::D; d += 16) {
			u32 y[4];
			loadBT<S>(y, b, d, 8 * k);
			multiply<S>(c[d / 8], x, y[0], y[1]);
			multiply<S>(c[d / 8 + 1], x, y[2], y[3]);
		}
	}
}

// Head is one operand of one head.
struct Head {
	Array data;
	i64 stride;
	int rows;
};

// head gives operand i of the launch with the strides of `which` (0 … 3: Q, K,
// V, O).
DEV Head head(const Launch &l, int i, int which) {
	i64 heads = l.n[1], b = blockY() / heads, h = blockY() % heads;
	i64 first = b * l.n[6 + 3 * which] + h * l.n[7 + 3 * which];
	return {Array(l, i).from(first), l.n[8 + 3 * which], (int)(which == 0 || which == 3 ? l.n[2] : l.n[3])};
}

// fetch starts the copy of n rows from `first` on to shared memory, with zeros
// around.
template <class S> DEV void fetch(u16 *to, const Head &h, int first, int n, int d) {
	const int D8 = S::D / 8;
	for (int e = threadX(); e < n * D8; e += 128) {
		int row = e / D8, col = e % D8 * 8;
		bool there = first + row < h.rows && col < d;
		i64 offset = there ? (i64)(first + row) * h.stride + col : 0;
		startCopy(to + row * S::LD + col, h.data.address + 2 * offset, there);
	}
}

// put writes the block's rows, times their factors, through shared memory that
// nobody needs any more: there are 4·M·(D + 4) bytes.
template <class S> DEV void put(void *room, const Head &h, const float (&c)[S::D / 8][4], float upper, float lower, int first, int d, bool accumulate) {
	const int LD = S::D + 4, D4 = S::D / 4;
	float *rows = (float *)room;
	int lane = threadX() % 32, row = threadX() / 32 * 16 + lane / 4;
	endCopies();
	barrier();
UNROLL
	for (int n = 0; n < S::D / 8; n++) {
		float *to = rows + row * LD + 8 * n + lane % 4 * 2;
		store<2>(to, {{c[n][0] * upper, c[n][1] * upper}});
		store<2>(to + 8 * LD, {{c[n][2] * lower, c[n][3] * lower}});
	}
	barrier();
	for (int e = threadX(); e < S::M * D4; e += 128) {
		int r = e / D4, col = e % D4 * 4;
		if (first + r >= h.rows || col >= d) continue;
		i64 i = (i64)(first + r) * h.stride + col;
		Pack<float, 4> x = load<4>(rows + r * LD + col);
		if (accumulate) {
			Pack<float, 4> old = h.data.load<4>(i);
		UNROLL
			for (int k = 0; k < 4; k++) x.v[k] += old.v[k];
		}
		h.data.store<4>(i, x);
	}
	barrier();
}

const float log2e = 1.44269504f;

template <class S> DEV void forward(const Launch &l) {
	SHARED_OF_LAUNCH(u16, tiles);
	u16 *q = tiles, *k = q + S::M * S::LD, *v = k + S::N * S::LD;
	int lane = threadX() % 32, warp = threadX() / 32, d = (int)l.n[4], first = (gridLen() - 1 - blockX()) * S::M;
	float scale = l.f[0] * log2e;
	Sight see(l);
	Dropout drop(l.f[1], l.n[18], l.n[19]);
	Head Q = head(l, 0, 0), K = head(l, 1, 1), V = head(l, 2, 2), O = head(l, 3, 3);
	float o[S::D / 8][4] = {}, top[2] = {-infinity, -infinity}, sum[2] = {0, 0};
	int last = first + S::M - 1 < see.T ? first + S::M - 1 : see.T - 1, end = see.visible(last), t = first + 16 * warp + lane / 4;
	fetch<S>(q, Q, first, S::M, d);
	if (end > 0) fetch<S>(k, K, 0, S::N, d);
	for (int key = 0; key < end; key += S::N) {
		endCopies();
		barrier(); // the keys are there, and all are done with the values
		fetch<S>(v, V, key, S::N, d);
		float s[S::N / 8][4];
		across<S>(s, q, 16 * warp, k);
		if (!see.all(first + 16 * warp, 16, key, S::N))
		UNROLL
			for (int n = 0; n < S::N / 8; n++)
			UNROLL
				for (int i = 0; i < 4; i++)
					if (!see.sees(t + i / 2 * 8, key + 8 * n + lane % 4 * 2 + i % 2)) s[n][i] = -infinity;
	UNROLL
		for (int half = 0; half < 2; half++) {
			float most = top[half];
		UNROLL
			for (int n = 0; n < S::N / 8; n++)
			UNROLL
				for (int i = 0; i < 2; i++) {
					float x = s[n][2 * half + i];
					most = x > most || x != x ? x : most;
				}
			most = warpMax<4>(most);
			float shift = most < -greatest ? 0 : most * scale, shrink = exp2Of(top[half] * scale - shift), added = 0;
			top[half] = most;
		UNROLL
			for (int n = 0; n < S::N / 8; n++)
			UNROLL
				for (int i = 0; i < 2; i++) {
					float x = exp2Of(fma(s[n][2 * half + i], scale, -shift));
					added += x;
					s[n][2 * half + i] = l.f[1] > 0 ? x * drop.rare(chance(see, t + 8 * half, key + 8 * n + lane % 4 * 2 + i)) : x;
				}
			sum[half] = sum[half] * shrink + warpSum<4>(added);
		UNROLL
			for (int n = 0; n < S::D / 8; n++) o[n][2 * half] *= shrink, o[n][2 * half + 1] *= shrink;
		}
		endCopies();
		barrier(); // the values are there, and all are done with the keys
		if (key + S::N < end) fetch<S>(k, K, key + S::N, S::N, d);
		along<S>(o, s, v);
	}
	endCopies();
UNROLL
	for (int half = 0; half < 2; half++)
		if (lane % 4 == 0 && t + 8 * half < see.T)
			at<float>(l.ptr[4])[(i64)blockY() * see.T + t + 8 * half] = sum[half] == 0 ? -infinity : fma(top[half], l.f[0], logOf(sum[half]));
	put<S>(tiles, O, o, sum[0] == 0 ? 0 : 1 / sum[0], sum[1] == 0 ? 0 : 1 / sum[1], first, d, false);
}

// rowOf is a number of each query, or 0 past the last.
DEV float rowOf(const Launch &l, int i, const Sight &see, int t) { return t < see.T ? at<float>(l.ptr[i])[(i64)blockY() * see.T + t] : 0; }

// finite keeps the −Inf of a query that sees nothing from making NaN.
DEV float finite(float lse) { return lse < -greatest ? 0 : lse * log2e; }

// gradQ: a block of queries goes over the keys.
template <class S> DEV void gradQ(const Launch &l) {
	SHARED_OF_LAUNCH(u16, tiles);
	u16 *q = tiles, *dout = q + S::M * S::LD, *k = dout + S::M * S::LD, *v = k + S::N * S::LD;
	int lane = threadX() % 32, warp = threadX() / 32, d = (int)l.n[4], first = (gridLen() - 1 - blockX()) * S::M;
	float scale = l.f[0] * log2e;
	Sight see(l);
	Dropout drop(l.f[1], l.n[18], l.n[19]);
	Head Q = head(l, 0, 0), K = head(l, 1, 1), V = head(l, 2, 2), dO = head(l, 5, 3), dQ = head(l, 6, 0);
	float dq[S::D / 8][4] = {}, lse[2], delta[2];
	int last = first + S::M - 1 < see.T ? first + S::M - 1 : see.T - 1, end = see.visible(last), t = first + 16 * warp + lane / 4;
UNROLL
	for (int half = 0; half < 2; half++) lse[half] = finite(rowOf(l, 4, see, t + 8 * half)), delta[half] = rowOf(l, 9, see, t + 8 * half);
	fetch<S>(q, Q, first, S::M, d);
	fetch<S>(dout, dO, first, S::M, d);
	for (int key = 0; key < end; key += S::N) {
		barrier();
		fetch<S>(k, K, key, S::N, d);
		fetch<S>(v, V, key, S::N, d);
		endCopies();
		barrier();
		float s[S::N / 8][4], dp[S::N / 8][4];
		across<S>(s, q, 16 * warp, k);
		across<S>(dp, dout, 16 * warp, v);
		bool all = see.all(first + 16 * warp, 16, key, S::N);
	UNROLL
		for (int n = 0; n < S::N / 8; n++)
		UNROLL
			for (int i = 0; i < 4; i++) {
				int row = t + i / 2 * 8, c = key + 8 * n + lane % 4 * 2 + i % 2;
				float p = exp2Of(fma(s[n][i], scale, -lse[i / 2])), x = dp[n][i];
				if (l.f[1] > 0) x *= drop.rare(chance(see, row, c));
				s[n][i] = all || see.sees(row, c) ? p * (x - delta[i / 2]) : 0;
			}
		along<S>(dq, s, k);
	}
	put<S>(tiles, dQ, dq, l.f[0], l.f[0], first, d, l.n[20]);
}

// gradKV: a block of keys goes over the queries. Scores are transposed here.
template <class S> DEV void gradKV(const Launch &l) {
	SHARED_OF_LAUNCH(u16, tiles);
	SHARED float lses[S::N], deltas[S::N];
	u16 *k = tiles, *v = k + S::M * S::LD, *q = v + S::M * S::LD, *dout = q + S::N * S::LD;
	int lane = threadX() % 32, warp = threadX() / 32, d = (int)l.n[4], first = blockX() * S::M;
	float scale = l.f[0] * log2e;
	Sight see(l);
	Dropout drop(l.f[1], l.n[18], l.n[19]);
	Head Q = head(l, 0, 0), K = head(l, 1, 1), V = head(l, 2, 2), dO = head(l, 5, 3), dK = head(l, 7, 1), dV = head(l, 8, 2);
	float dk[S::D / 8][4] = {}, dv[S::D / 8][4] = {};
	fetch<S>(k, K, first, S::M, d);
	fetch<S>(v, V, first, S::M, d);
	for (int t0 = see.start(first) / S::N * S::N; t0 < see.T; t0 += S::N) {
		barrier();
		fetch<S>(q, Q, t0, S::N, d);
		fetch<S>(dout, dO, t0, S::N, d);
		if (threadX() < S::N) lses[threadX()] = finite(rowOf(l, 4, see, t0 + threadX())), deltas[threadX()] = rowOf(l, 9, see, t0 + threadX());
		endCopies();
		barrier();
		float s[S::N / 8][4], dp[S::N / 8][4];
		across<S>(s, k, 16 * warp, q);
		across<S>(dp, v, 16 * warp, dout);
		bool all = see.all(t0, S::N, first + 16 * warp, 16);
	UNROLL
		for (int n = 0; n < S::N / 8; n++)
		UNROLL
			for (int i = 0; i < 4; i++) {
				int col = 8 * n + lane % 4 * 2 + i % 2, t = t0 + col, c = first + 16 * warp + lane / 4 + i / 2 * 8;
				float p = exp2Of(fma(s[n][i], scale, -lses[col])), f = 1;
				if (!all && !see.sees(t, c)) p = 0;
				if (l.f[1] > 0) f = drop.rare(chance(see, t, c));
				s[n][i] = p * f;
				dp[n][i] = p * (dp[n][i] * f - deltas[col]);
			}
		along<S>(dv, s, dout);
		along<S>(dk, dp, q);
	}
	put<S>(tiles, dK, dk, l.f[0], l.f[0], first, d, l.n[20]);
	put<S>(tiles, dV, dv, 1, 1, first, d, l.n[20]);
}

#define EACH(type, bf) \
	KERNEL(128) forward_64_##type(Launch l) { forward<Shape<bf, 64, 64>>(l); } \
	KERNEL(128) forward_128_##type(Launch l) { forward<Shape<bf, 128, 64>>(l); } \
	KERNEL(128) grad_q_64_##type(Launch l) { gradQ<Shape<bf, 64, 64>>(l); } \
	KERNEL(128) grad_q_128_##type(Launch l) { gradQ<Shape<bf, 128, 32>>(l); } \
	KERNEL(128) grad_kv_64_##type(Launch l) { gradKV<Shape<bf, 64, 64>>(l); } \
	KERNEL(128) grad_kv_128_##type(Launch l) { gradKV<Shape<bf, 128, 32>>(l); }

EACH(bfloat16, true)
EACH(float16, false)
