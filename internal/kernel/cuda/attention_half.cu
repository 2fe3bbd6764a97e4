#include "attention.cuh"

// Attention on 16-bit operands with tensor cores: the method of attention.cu,
// for GPUs of compute capability 8.0 or newer. Q, K, V and dO have one 16-bit
// type, rows of D ≤ 64 or 128 elements (a multiple of 8) at multiples of 16
// bytes. Scores, softmax and sums are float; probabilities and the scores'
// gradients are rounded to the operands' type before they are multiplied.
//
// A block of four warps owns M rows of one head, a warp 16·R of them, and goes
// over the other side N rows at a time: while it computes with these, the next
// are on their way. The products are those of mma.m16n8k16, whose fragments lie
// in the threads like this (g = lane / 4, q = lane % 4):
//
//	C, 16×8:   c0 c1 at row g, columns 2q and 2q+1; c2 c3 at row g + 8
//	A, 16×16:  a0 as c0 c1; a1 as c2 c3; a2, a3 the same eight columns on
//	B, 16×8:   b0 at rows 2q and 2q+1, column g; b1 eight rows on
//
// So two neighbouring C of scores are, rounded, one A of probabilities. Rows in
// shared memory have eight elements more than D, so that the rows of an 8×8
// block lie in different banks. A B that was loaded is multiplied with R A:
// shared memory gives a warp one B in the time of two products.
//
// What dropout keeps is decided once for a launch, by dropout_bits, since to
// decide takes longer than the products do.

template <bool BF_, int D_, int N_, int R_> struct Shape {
	static const bool BF = BF_; // bfloat16, not float16
	static const int D = D_, N = N_, R = R_, LD = D + 8, M = 64 * R, W = 16 * R;
};

// Scores are a warp's, of its W rows and N of the other side, and Rows a D of its rows.
template <class S> using Scores = float[S::R][S::N / 8][4];
template <class S> using Rows = float[S::R][S::D / 8][4];

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

// across: c = the warp's rows of a, times the N rows of b, transposed.
template <class S> DEV void across(Scores<S> &c, const u16 *a, const u16 *b) {
	int r = threadX() / 32 * S::W;
UNROLL
	for (int m = 0; m < S::R; m++)
	UNROLL
		for (int n = 0; n < S::N / 8; n++)
		UNROLL
			for (int i = 0; i < 4; i++) c[m][n][i] = 0;
UNROLL
	for (int k = 0; k < S::D; k += 16) {
		u32 x[S::R][4];
	UNROLL
		for (int m = 0; m < S::R; m++) loadA<S>(x[m], a, r + 16 * m, k);
	UNROLL
		for (int n = 0; n < S::N; n += 16) {
			u32 y[4];
			loadB<S>(y, b, n, k);
		UNROLL
			for (int m = 0; m < S::R; m++) {
				multiply<S>(c[m][n / 8], x[m], y[0], y[1]);
				multiply<S>(c[m][n / 8 + 1], x[m], y[2], y[3]);
			}
		}
	}
}

// along: c += p, rounded, times the N rows of b.
template <class S> DEV void along(Rows<S> &c, const Scores<S> &p, const u16 *b) {
UNROLL
	for (int k = 0; k < S::N / 8; k += 2) {
		u32 x[S::R][4];
	UNROLL
		for (int m = 0; m < S::R; m++)
		UNROLL
			for (int i = 0; i < 4; i++) x[m][i] = pair<S>(p[m][k + i / 2][i % 2 * 2], p[m][k + i / 2][i % 2 * 2 + 1]);
	UNROLL
		for (int d = 0; d < S::D; d += 16) {
			u32 y[4];
			loadBT<S>(y, b, d, 8 * k);
		UNROLL
			for (int m = 0; m < S::R; m++) {
				multiply<S>(c[m][d / 8], x[m], y[0], y[1]);
				multiply<S>(c[m][d / 8 + 1], x[m], y[2], y[3]);
			}
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
	i64 heads = l.n[1], b = headNumber(l) / heads, h = headNumber(l) % heads;
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
template <class S> DEV void put(void *room, const Head &h, const Rows<S> &c, const float (&factor)[S::R][2], int first, int d, bool accumulate) {
	const int LD = S::D + 4, D4 = S::D / 4;
	float *rows = (float *)room;
	int lane = threadX() % 32, row = threadX() / 32 * S::W + lane / 4;
	endCopies();
	barrier();
UNROLL
	for (int m = 0; m < S::R; m++)
	UNROLL
		for (int n = 0; n < S::D / 8; n++) {
			float *to = rows + (row + 16 * m) * LD + 8 * n + lane % 4 * 2;
			store<2>(to, {{c[m][n][0] * factor[m][0], c[m][n][1] * factor[m][0]}});
			store<2>(to + 8 * LD, {{c[m][n][2] * factor[m][1], c[m][n][3] * factor[m][1]}});
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

// all fills a factor for put.
template <class S> DEV void all(float (&factor)[S::R][2], float x) {
UNROLL
	for (int m = 0; m < S::R; m++) factor[m][0] = factor[m][1] = x;
}

// What dropout keeps, in bits. Of a query's keys there are two words for each 64,
// of the even ones and of the odd ones; behind all heads', of a key's queries, a
// word for each 32.
struct Kept {
	const u32 *queries, *keys; // of the block's head
	int groups, words;         // of a query, in twos, and of a key

	DEV Kept(const Launch &l, const Sight &see) : groups((see.S + 63) / 64), words((see.T + 31) / 32) {
		i64 each = (i64)2 * groups * see.T;
		queries = at<u32>(l.ptr[11]) + blockY() * each;
		keys = at<u32>(l.ptr[11]) + l.n[22] * each + blockY() * (i64)see.S * words;
	}
};

// dropout_bits decides for n[22] heads, from number n[21] on, of which n[23] says
// whether keys' words are wanted, too. A warp has 32 queries and 64 keys, a thread
// two of these, whose numbers are most often those of one pair.
KERNEL(256) dropout_bits(Launch l) {
	int T = (int)l.n[2], S = (int)l.n[3], lane = threadX() % 32;
	Sight see(l);
	Kept to(l, see);
	int tile = blockX() * 8 + threadX() / 32, group = tile % to.groups, t0 = tile / to.groups * 32, key = 64 * group + 2 * lane;
	if (t0 >= T) return;
	Dropout drop(l.f[1], l.n[18], l.n[19]);
	u64 first = (headNumber(l) * T + t0) * S + key;
	u32 even = 0, odd = 0, queryEven = 0, queryOdd = 0;
	auto decide = [&](int i, u32 a, u32 b) {
		bool keepA = a >= drop.below, keepB = b >= drop.below;
		u32 ballotA = ballot(keepA), ballotB = ballot(keepB);
		if (lane == i) queryEven = ballotA, queryOdd = ballotB;
		even |= (u32)keepA << i, odd |= (u32)keepB << i;
	};
	if (S % 2 == 0) {
		u64 state = drop.seed + (first / 2 + 1) * Dropout::step, row = (u64)(S / 2) * Dropout::step;
	UNROLL
		for (int i = 0; i < 32; i++, state += row) {
			u64 z = Dropout::mixed(state);
			decide(i, (u32)z, z >> 32);
		}
	} else {
		for (int i = 0; i < 32; i++, first += S) decide(i, Dropout::chosen(drop.seed, first), Dropout::chosen(drop.seed, first + 1));
	}
	if (t0 + lane < T) {
		u32 *words = (u32 *)to.queries + ((i64)(t0 + lane) * to.groups + group) * 2;
		words[0] = queryEven, words[1] = queryOdd;
	}
	if (!l.n[23]) return;
	u32 *words = (u32 *)to.keys + (i64)key * to.words + t0 / 32;
	if (key < S) words[0] = even;
	if (key + 1 < S) words[to.words] = odd;
}

// A Warp's thread: its place, and what it asks of the other side.
template <class S> struct Thread {
	int lane, first, row; // the block's first row, and the thread's of the first A

	DEV Thread(int block) : lane(threadX() % 32), first(block * S::M), row(first + threadX() / 32 * S::W + lane / 4) {}
	DEV int warpRow() const { return row - lane / 4; }
	DEV int rowOf(int m, int i) const { return row + 16 * m + i / 2 * 8; } // of c_i
	DEV int colOf(int n, int i) const { return 8 * n + lane % 4 * 2 + i % 2; }

	// each calls f for all scores: c_i of the n-th C of the m-th A.
	template <class F> DEV void each(F f) const {
	UNROLL
		for (int m = 0; m < S::R; m++)
		UNROLL
			for (int n = 0; n < S::N / 8; n++)
			UNROLL
				for (int i = 0; i < 4; i++) f(m, n, i);
	}
	// hide leaves the scores that are seen, by row and by column of the tile.
	template <class F> DEV void hide(Scores<S> &s, F seen) const {
		each([&](int m, int n, int i) { s[m][n][i] = seen(rowOf(m, i), colOf(n, i)) ? s[m][n][i] : -infinity; });
	}

	// queryWords are those of the thread's queries for keys from `key` on: its own
	// columns are bits 4n of the first for c0, c2 and of the second for c1, c3.
	DEV void queryWords(u32 (&w)[S::R][2][2], const Kept &kept, const Sight &see, int key) const {
	UNROLL
		for (int m = 0; m < S::R; m++)
		UNROLL
			for (int half = 0; half < 2; half++) {
				int t = rowOf(m, 2 * half), shift = key % 64 / 2 + lane % 4;
				w[m][half][0] = w[m][half][1] = 0;
				if (t >= see.T) continue;
				const u32 *at = kept.queries + ((i64)t * kept.groups + key / 64) * 2;
				w[m][half][0] = at[0] >> shift, w[m][half][1] = at[1] >> shift;
			}
	}
	// keyWords are those of the thread's keys for queries from t on, a multiple of
	// N: bit 8n + i is column colOf(n, i).
	DEV void keyWords(u32 (&w)[S::R][2], const Kept &kept, const Sight &see, int t) const {
	UNROLL
		for (int m = 0; m < S::R; m++)
		UNROLL
			for (int half = 0; half < 2; half++) {
				int key = rowOf(m, 2 * half);
				w[m][half] = key < see.S ? kept.keys[(i64)key * kept.words + t / 32] >> (t % 32 + lane % 4 * 2) : 0;
			}
	}
};

template <class S> DEV void forward(const Launch &l) {
	SHARED_OF_LAUNCH(u16, tiles);
	const int each = S::N * S::LD;
	u16 *q = tiles, *others = q + S::M * S::LD; // keys and values, twice
	Thread<S> me(gridLen() - 1 - blockX());
	int d = (int)l.n[4];
	float scale = l.f[0] * log2e, gain = 1 / (1 - l.f[1]);
	bool drops = l.f[1] > 0;
	Sight see(l);
	Kept kept(l, see);
	Head Q = head(l, 0, 0), K = head(l, 1, 1), V = head(l, 2, 2), O = head(l, 3, 3);
	Rows<S> o = {};
	float top[S::R][2], sum[S::R][2];
	all<S>(top, -infinity), all<S>(sum, 0);
	int last = me.first + S::M - 1 < see.T ? me.first + S::M - 1 : see.T - 1, end = see.visible(last);
	auto next = [&](int key) {
		u16 *to = others + key / S::N % 2 * 2 * each;
		fetch<S>(to, K, key, S::N, d);
		fetch<S>(to + each, V, key, S::N, d);
	};
	fetch<S>(q, Q, me.first, S::M, d);
	if (end > 0) next(0);
	for (int key = 0; key < end; key += S::N) {
		const u16 *k = others + key / S::N % 2 * 2 * each, *v = k + each;
		endCopies();
		barrier(); // these are there, and all are done with those before
		if (key + S::N < end) next(key + S::N);
		u32 words[S::R][2][2];
		if (drops) me.queryWords(words, kept, see, key);
		Scores<S> s;
		across<S>(s, q, k);
		if (!see.all(me.warpRow(), S::W, key, S::N)) me.hide(s, [&](int row, int col) { return see.sees(row, key + col); });
	UNROLL
		for (int m = 0; m < S::R; m++)
		UNROLL
			for (int half = 0; half < 2; half++) {
				float most = top[m][half];
			UNROLL
				for (int n = 0; n < S::N / 8; n++)
				UNROLL
					for (int i = 0; i < 2; i++) {
						float x = s[m][n][2 * half + i];
						most = x > most || x != x ? x : most;
					}
				most = warpMax<4>(most);
				float shift = most < -greatest ? 0 : most * scale, shrink = exp2Of(top[m][half] * scale - shift), added = 0;
				top[m][half] = most;
			UNROLL
				for (int n = 0; n < S::N / 8; n++)
				UNROLL
					for (int i = 0; i < 2; i++) {
						float x = exp2Of(fma(s[m][n][2 * half + i], scale, -shift));
						added += x;
						s[m][n][2 * half + i] = drops && !(words[m][half][i] >> 4 * n & 1) ? 0 : x;
					}
				sum[m][half] = sum[m][half] * shrink + warpSum<4>(added);
			UNROLL
				for (int n = 0; n < S::D / 8; n++) o[m][n][2 * half] *= shrink, o[m][n][2 * half + 1] *= shrink;
			}
		along<S>(o, s, v);
	}
	float factor[S::R][2];
UNROLL
	for (int m = 0; m < S::R; m++)
	UNROLL
		for (int half = 0; half < 2; half++) {
			int t = me.rowOf(m, 2 * half);
			float x = sum[m][half];
			if (me.lane % 4 == 0 && t < see.T)
				at<float>(l.ptr[4])[headNumber(l) * see.T + t] = x == 0 ? -infinity : fma(top[m][half], l.f[0], logOf(x));
			factor[m][half] = x == 0 ? 0 : gain / x;
		}
	put<S>(tiles, O, o, factor, me.first, d, false);
}

// queryNumber is a number of each query, or 0 past the last.
DEV float queryNumber(const Launch &l, int i, const Sight &see, int t) { return t < see.T ? at<float>(l.ptr[i])[headNumber(l) * see.T + t] : 0; }

// finite keeps the −Inf of a query that sees nothing from making NaN.
DEV float finite(float lse) { return lse < -greatest ? 0 : lse * log2e; }

// gradQ: a block of queries goes over the keys.
template <class S> DEV void gradQ(const Launch &l) {
	SHARED_OF_LAUNCH(u16, tiles);
	const int each = S::N * S::LD;
	u16 *q = tiles, *dout = q + S::M * S::LD, *others = dout + S::M * S::LD; // keys and values, twice
	Thread<S> me(gridLen() - 1 - blockX());
	int d = (int)l.n[4];
	float scale = l.f[0] * log2e, gain = 1 / (1 - l.f[1]);
	bool drops = l.f[1] > 0;
	Sight see(l);
	Kept kept(l, see);
	Head Q = head(l, 0, 0), K = head(l, 1, 1), V = head(l, 2, 2), dO = head(l, 5, 3), dQ = head(l, 6, 0);
	Rows<S> dq = {};
	float lse[S::R][2], delta[S::R][2];
	int last = me.first + S::M - 1 < see.T ? me.first + S::M - 1 : see.T - 1, end = see.visible(last);
UNROLL
	for (int m = 0; m < S::R; m++)
	UNROLL
		for (int half = 0; half < 2; half++) {
			int t = me.rowOf(m, 2 * half);
			lse[m][half] = finite(queryNumber(l, 4, see, t)), delta[m][half] = queryNumber(l, 9, see, t);
		}
	auto next = [&](int key) {
		u16 *to = others + key / S::N % 2 * 2 * each;
		fetch<S>(to, K, key, S::N, d);
		fetch<S>(to + each, V, key, S::N, d);
	};
	fetch<S>(q, Q, me.first, S::M, d);
	fetch<S>(dout, dO, me.first, S::M, d);
	if (end > 0) next(0);
	for (int key = 0; key < end; key += S::N) {
		const u16 *k = others + key / S::N % 2 * 2 * each, *v = k + each;
		endCopies();
		barrier();
		if (key + S::N < end) next(key + S::N);
		u32 words[S::R][2][2];
		if (drops) me.queryWords(words, kept, see, key);
		Scores<S> s, dp;
		across<S>(s, q, k);
		across<S>(dp, dout, v);
		if (!see.all(me.warpRow(), S::W, key, S::N)) me.hide(s, [&](int row, int col) { return see.sees(row, key + col); });
		if (drops)
			me.each([&](int m, int n, int i) { dp[m][n][i] = words[m][i / 2][i % 2] >> 4 * n & 1 ? dp[m][n][i] * gain : 0; });
		me.each([&](int m, int n, int i) {
			s[m][n][i] = exp2Of(fma(s[m][n][i], scale, -lse[m][i / 2])) * (dp[m][n][i] - delta[m][i / 2]);
		});
		along<S>(dq, s, k);
	}
	float factor[S::R][2];
	::all<S>(factor, l.f[0]);
	put<S>(tiles, dQ, dq, factor, me.first, d, l.n[20]);
}

// gradKV: a block of keys goes over the queries. Scores are transposed here.
template <class S> DEV void gradKV(const Launch &l) {
	SHARED_OF_LAUNCH(u16, tiles);
	static_assert(S::N == 32, "keyWords gives what a word has");
	SHARED float lses[2][S::N], deltas[2][S::N];
	const int each = S::N * S::LD;
	u16 *k = tiles, *v = k + S::M * S::LD, *others = v + S::M * S::LD; // queries and gradients, twice
	Thread<S> me(blockX());
	int d = (int)l.n[4];
	float scale = l.f[0] * log2e, gain = 1 / (1 - l.f[1]);
	bool drops = l.f[1] > 0;
	Sight see(l);
	Kept kept(l, see);
	Head Q = head(l, 0, 0), K = head(l, 1, 1), V = head(l, 2, 2), dO = head(l, 5, 3), dK = head(l, 7, 1), dV = head(l, 8, 2);
	Rows<S> dk = {}, dv = {};
	auto next = [&](int t) {
		int stage = t / S::N % 2, x = threadX();
		u16 *to = others + stage * 2 * each;
		fetch<S>(to, Q, t, S::N, d);
		fetch<S>(to + each, dO, t, S::N, d);
		if (x < S::N) lses[stage][x] = finite(queryNumber(l, 4, see, t + x)), deltas[stage][x] = queryNumber(l, 9, see, t + x);
	};
	fetch<S>(k, K, me.first, S::M, d);
	fetch<S>(v, V, me.first, S::M, d);
	int start = see.start(me.first) / S::N * S::N;
	if (start < see.T) next(start);
	for (int t0 = start; t0 < see.T; t0 += S::N) {
		int stage = t0 / S::N % 2;
		const u16 *q = others + stage * 2 * each, *dout = q + each;
		endCopies();
		barrier();
		if (t0 + S::N < see.T) next(t0 + S::N);
		u32 words[S::R][2];
		if (drops) me.keyWords(words, kept, see, t0);
		Scores<S> s, dp;
		across<S>(s, k, q);
		across<S>(dp, v, dout);
		if (!see.all(t0, S::N, me.warpRow(), S::W)) me.hide(s, [&](int row, int col) { return see.sees(t0 + col, row); });
		me.each([&](int m, int n, int i) { s[m][n][i] = exp2Of(fma(s[m][n][i], scale, -lses[stage][me.colOf(n, i)])); });
		if (drops) {
			me.each([&](int m, int n, int i) {
				bool keep = words[m][i / 2] >> (8 * n + i % 2) & 1;
				float x = keep ? dp[m][n][i] * gain : 0;
				dp[m][n][i] = s[m][n][i] * (x - deltas[stage][me.colOf(n, i)]);
				s[m][n][i] = keep ? s[m][n][i] : 0;
			});
		} else {
			me.each([&](int m, int n, int i) { dp[m][n][i] = s[m][n][i] * (dp[m][n][i] - deltas[stage][me.colOf(n, i)]); });
		}
		along<S>(dv, s, dout);
		along<S>(dk, dp, q);
	}
	float factor[S::R][2];
	::all<S>(factor, l.f[0]);
	put<S>(tiles, dK, dk, factor, me.first, d, l.n[20]);
	::all<S>(factor, gain);
	put<S>(tiles, dV, dv, factor, me.first, d, l.n[20]);
}

#define EACH(type, bf) \
	KERNEL(128, 2) forward_64_##type(Launch l) { forward<Shape<bf, 64, 64, 2>>(l); } \
	KERNEL(128, 2) forward_128_##type(Launch l) { forward<Shape<bf, 128, 64, 1>>(l); } \
	KERNEL(128, 3) grad_q_64_##type(Launch l) { gradQ<Shape<bf, 64, 64, 1>>(l); } \
	KERNEL(128, 2) grad_q_128_##type(Launch l) { gradQ<Shape<bf, 128, 32, 1>>(l); } \
	KERNEL(128, 3) grad_kv_64_##type(Launch l) { gradKV<Shape<bf, 64, 32, 1>>(l); } \
	KERNEL(128, 2) grad_kv_128_##type(Launch l) { gradKV<Shape<bf, 128, 32, 1>>(l); }

EACH(bfloat16, true)
EACH(float16, false)
