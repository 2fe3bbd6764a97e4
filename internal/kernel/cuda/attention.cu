#include "attention.cuh"

// Attention after Dao et al., "FlashAttention" (2022), and its second version
// (2023): the matrix of scores exists only as tiles in shared memory. See
// kernel/attention.go for the operation.
//
// A block of 16×16 threads owns B = 16·R rows of one head (queries, or keys in
// attention_grad_kv) and goes over the other side tile by tile, B rows at a
// time. D is the length of rows in shared memory, with zeros after the head's.
// Two products are all there is:
//
//	across:  C[i][j] = Σ over d of a[i][d]·b[j][d]     i = ty + 16·…, j = tx + 16·…
//	along:   C[i][d] += Σ over j of p[i][j]·b[j][d]    i = ty + 16·…, d = 4·tx + 64·… + 0…3
//
// Rows have four numbers more than they need, so that the threads of a warp
// read different banks. The 16 threads of a row are neighbours in a warp.
//
// The gradient computes scores and probabilities twice, for dQ and for dK and
// dV, so that every sum belongs to one thread and has one order.

template <int R_, int D_> struct Shape {
	static const int R = R_, D = D_, B = 16 * R, LD = D + 4, LP = B + 4, DV = D / 64;
	typedef float Scores[R][R];
	typedef float Rows[R][D / 16];
};

// Head is one operand of one head.
struct Head {
	Array data;
	i64 stride;
	int rows;
	bool packs; // rows may be read in packs
};

// head gives operand i of the launch with the strides of `which` (0 … 3: Q, K,
// V, O).
DEV Head head(const Launch &l, int i, int which) {
	i64 heads = l.n[1], b = headNumber(l) / heads, h = headNumber(l) % heads;
	i64 first = b * l.n[6 + 3 * which] + h * l.n[7 + 3 * which], stride = l.n[8 + 3 * which];
	bool packs = wide(l.ptr[i]) && ((first | stride | l.n[4]) & 3) == 0;
	return {Array(l, i).from(first), stride, (int)(which == 0 || which == 3 ? l.n[2] : l.n[3]), packs};
}

// fetch copies B rows from `first` on to shared memory, with zeros around.
template <class S> DEV void fetch(float *to, const Head &h, int first, int d) {
	const int D4 = S::D / 4;
	for (int e = threadX(); e < S::B * D4; e += 256) {
		int row = e / D4, col = e % D4 * 4;
		Pack<float, 4> p = {};
		if (first + row < h.rows && col < d) {
			i64 from = (first + row) * h.stride + col;
			if (h.packs) {
				p = h.data.load<4>(from);
			} else {
			UNROLL
				for (int k = 0; k < 4; k++)
					if (col + k < d) p.v[k] = h.data.get(from + k);
			}
		}
		store<4>(to + row * S::LD + col, p);
	}
}

template <class S> DEV void across(float (&c)[S::R][S::R], const float *a, const float *b) {
	int tx = threadX() % 16, ty = threadX() / 16;
UNROLL
	for (int i = 0; i < S::R; i++)
	UNROLL
		for (int j = 0; j < S::R; j++) c[i][j] = 0;
#pragma unroll 4
	for (int d = 0; d < S::D; d += 4) {
		Pack<float, 4> x[S::R], y[S::R];
	UNROLL
		for (int i = 0; i < S::R; i++) {
			x[i] = load<4>(a + (ty + 16 * i) * S::LD + d);
			y[i] = load<4>(b + (tx + 16 * i) * S::LD + d);
		}
	UNROLL
		for (int i = 0; i < S::R; i++)
		UNROLL
			for (int j = 0; j < S::R; j++)
			UNROLL
				for (int k = 0; k < 4; k++) c[i][j] = fma(x[i].v[k], y[j].v[k], c[i][j]);
	}
}

template <class S> DEV void along(float (&c)[S::R][S::D / 16], const float *p, const float *b) {
	int tx = threadX() % 16, ty = threadX() / 16;
#pragma unroll 2
	for (int j = 0; j < S::B; j += 4) {
		Pack<float, 4> x[S::R];
	UNROLL
		for (int i = 0; i < S::R; i++) x[i] = load<4>(p + (ty + 16 * i) * S::LP + j);
	UNROLL
		for (int q = 0; q < 4; q++)
		UNROLL
			for (int v = 0; v < S::DV; v++) {
				Pack<float, 4> y = load<4>(b + (j + q) * S::LD + 64 * v + 4 * tx);
			UNROLL
				for (int i = 0; i < S::R; i++)
				UNROLL
					for (int k = 0; k < 4; k++) c[i][4 * v + k] = fma(x[i].v[q], y.v[k], c[i][4 * v + k]);
			}
	}
}

// keep stores a tile of scores to shared memory.
template <class S> DEV void keep(float *p, const float (&c)[S::R][S::R]) {
	int tx = threadX() % 16, ty = threadX() / 16;
UNROLL
	for (int i = 0; i < S::R; i++)
	UNROLL
		for (int j = 0; j < S::R; j++) p[(ty + 16 * i) * S::LP + tx + 16 * j] = c[i][j];
}

// put writes rows from `first` on, times factor, or adds that.
template <class S> DEV void put(const Head &h, const float (&c)[S::R][S::D / 16], const float *factor, float scale, int first, int d, bool accumulate) {
	int tx = threadX() % 16, ty = threadX() / 16;
UNROLL
	for (int i = 0; i < S::R; i++) {
		int row = first + ty + 16 * i;
		if (row >= h.rows) continue;
		float f = factor ? factor[i] : scale;
	UNROLL
		for (int v = 0; v < S::DV; v++)
		UNROLL
			for (int k = 0; k < 4; k++) {
				int col = 64 * v + 4 * tx + k;
				if (col >= d) continue;
				h.data.put(row * h.stride + col, c[i][4 * v + k] * f, accumulate);
			}
	}
}

template <class S> DEV void forward(const Launch &l) {
	SHARED_OF_LAUNCH(float, room);
	float *q = room, *kv = q + S::B * S::LD, *p = kv + S::B * S::LD;
	int tx = threadX() % 16, ty = threadX() / 16, d = (int)l.n[4], first = blockX() * S::B;
	float scale = l.f[0];
	Sight see(l);
	Dropout drop(l.f[1], l.n[18], l.n[19]);
	Head Q = head(l, 0, 0), K = head(l, 1, 1), V = head(l, 2, 2), O = head(l, 3, 3);
	fetch<S>(q, Q, first, d);
	float o[S::R][S::D / 16] = {}, top[S::R], sum[S::R];
UNROLL
	for (int i = 0; i < S::R; i++) top[i] = -infinity, sum[i] = 0;
	int last = first + S::B - 1 < see.T ? first + S::B - 1 : see.T - 1, end = see.visible(last);
	for (int key = 0; key < end; key += S::B) {
		barrier(); // kv and p are free
		fetch<S>(kv, K, key, d);
		barrier();
		float s[S::R][S::R];
		across<S>(s, q, kv);
	UNROLL
		for (int i = 0; i < S::R; i++) {
			int t = first + ty + 16 * i;
			float most = -infinity;
		UNROLL
			for (int j = 0; j < S::R; j++) {
				s[i][j] = see.sees(t, key + tx + 16 * j) ? s[i][j] * scale : -infinity;
				most = s[i][j] > most || s[i][j] != s[i][j] ? s[i][j] : most;
			}
			most = warpMax<16>(most);
			most = top[i] > most ? top[i] : most;
			float shift = most < -greatest ? -greatest : most, shrink = expOf(top[i] - shift), added = 0;
			top[i] = most;
		UNROLL
			for (int j = 0; j < S::R; j++) {
				s[i][j] = expOf(s[i][j] - shift);
				added += s[i][j];
				if (l.f[1] > 0) s[i][j] *= drop.rare(chance(l, see, t, key + tx + 16 * j));
			}
			sum[i] = sum[i] * shrink + warpSum<16>(added);
		UNROLL
			for (int v = 0; v < S::D / 16; v++) o[i][v] *= shrink;
		}
		barrier(); // all have read the keys
		fetch<S>(kv, V, key, d);
		keep<S>(p, s);
		barrier();
		along<S>(o, p, kv);
	}
	float factor[S::R];
UNROLL
	for (int i = 0; i < S::R; i++) {
		int t = first + ty + 16 * i;
		factor[i] = sum[i] == 0 ? 0 : 1 / sum[i];
		if (tx == 0 && t < see.T) at<float>(l.ptr[4])[headNumber(l) * see.T + t] = sum[i] == 0 ? -infinity : top[i] + logOf(sum[i]);
	}
	put<S>(O, o, factor, 0, first, d, false);
}

// attention_delta: a warp for each query. ptr[3] is O, ptr[5] dO, ptr[9] Delta.
KERNEL(256) attention_delta(Launch l) {
	int t = blockX() * 8 + threadX() / 32, d = (int)l.n[4];
	if (t >= l.n[2]) return;
	Head O = head(l, 3, 3), dO = head(l, 5, 3);
	float sum = 0;
	for (int i = threadX() % 32; i < d; i += 32) sum = fma(O.data.get(t * O.stride + i), dO.data.get(t * dO.stride + i), sum);
	sum = warpSum(sum);
	if (threadX() % 32 == 0) at<float>(l.ptr[9])[headNumber(l) * l.n[2] + t] = sum;
}

// probability turns a score into what softmax made of it.
DEV float probability(float score, float scale, float lse, bool seen) {
	return seen ? expOf(score * scale - (lse < -greatest ? -greatest : lse)) : 0;
}

// gradQ: a block of queries goes over the keys.
template <class S> DEV void gradQ(const Launch &l) {
	SHARED_OF_LAUNCH(float, room);
	float *q = room, *dout = q + S::B * S::LD, *k = dout + S::B * S::LD, *v = k + S::B * S::LD, *p = v + S::B * S::LD;
	int tx = threadX() % 16, ty = threadX() / 16, d = (int)l.n[4], first = blockX() * S::B;
	Sight see(l);
	Dropout drop(l.f[1], l.n[18], l.n[19]);
	Head Q = head(l, 0, 0), K = head(l, 1, 1), V = head(l, 2, 2), dO = head(l, 5, 3), dQ = head(l, 6, 0);
	fetch<S>(q, Q, first, d);
	fetch<S>(dout, dO, first, d);
	float dq[S::R][S::D / 16] = {}, lse[S::R], delta[S::R];
UNROLL
	for (int i = 0; i < S::R; i++) {
		int t = first + ty + 16 * i;
		lse[i] = t < see.T ? at<float>(l.ptr[4])[headNumber(l) * see.T + t] : 0;
		delta[i] = t < see.T ? at<float>(l.ptr[9])[headNumber(l) * see.T + t] : 0;
	}
	int last = first + S::B - 1 < see.T ? first + S::B - 1 : see.T - 1, end = see.visible(last);
	for (int key = 0; key < end; key += S::B) {
		barrier();
		fetch<S>(k, K, key, d);
		fetch<S>(v, V, key, d);
		barrier();
		float s[S::R][S::R], dp[S::R][S::R];
		across<S>(s, q, k);
		across<S>(dp, dout, v);
	UNROLL
		for (int i = 0; i < S::R; i++)
		UNROLL
			for (int j = 0; j < S::R; j++) {
				int t = first + ty + 16 * i, c = key + tx + 16 * j;
				if (l.f[1] > 0) dp[i][j] *= drop.rare(chance(l, see, t, c));
				s[i][j] = probability(s[i][j], l.f[0], lse[i], see.sees(t, c)) * (dp[i][j] - delta[i]);
			}
		keep<S>(p, s);
		barrier();
		along<S>(dq, p, k);
	}
	put<S>(dQ, dq, 0, l.f[0], first, d, l.n[20]);
}

// gradKV: a block of keys goes over the queries. Scores are transposed here.
template <class S> DEV void gradKV(const Launch &l) {
	SHARED_OF_LAUNCH(float, room);
	float *k = room, *v = k + S::B * S::LD, *q = v + S::B * S::LD, *dout = q + S::B * S::LD, *p = dout + S::B * S::LD;
	int tx = threadX() % 16, ty = threadX() / 16, d = (int)l.n[4], first = blockX() * S::B;
	Sight see(l);
	Dropout drop(l.f[1], l.n[18], l.n[19]);
	Head Q = head(l, 0, 0), K = head(l, 1, 1), V = head(l, 2, 2), dO = head(l, 5, 3);
	Head dK = head(l, 7, 1), dV = head(l, 8, 2);
	fetch<S>(k, K, first, d);
	fetch<S>(v, V, first, d);
	float dk[S::R][S::D / 16] = {}, dv[S::R][S::D / 16] = {};
	for (int t0 = see.start(first) / S::B * S::B; t0 < see.T; t0 += S::B) {
		barrier();
		fetch<S>(q, Q, t0, d);
		fetch<S>(dout, dO, t0, d);
		barrier();
		float s[S::R][S::R], dp[S::R][S::R], kept[S::R][S::R];
		across<S>(s, k, q);
		across<S>(dp, v, dout);
	UNROLL
		for (int j = 0; j < S::R; j++) {
			int t = t0 + tx + 16 * j;
			float lse = t < see.T ? at<float>(l.ptr[4])[headNumber(l) * see.T + t] : 0;
			float delta = t < see.T ? at<float>(l.ptr[9])[headNumber(l) * see.T + t] : 0;
		UNROLL
			for (int i = 0; i < S::R; i++) {
				int c = first + ty + 16 * i;
				float x = probability(s[i][j], l.f[0], lse, see.sees(t, c)), f = 1;
				if (l.f[1] > 0) f = drop.rare(chance(l, see, t, c));
				kept[i][j] = x * f;
				s[i][j] = x * (dp[i][j] * f - delta);
			}
		}
		keep<S>(p, kept);
		barrier();
		along<S>(dv, p, dout);
		barrier();
		keep<S>(p, s);
		barrier();
		along<S>(dk, p, q);
	}
	put<S>(dK, dk, 0, l.f[0], first, d, l.n[20]);
	put<S>(dV, dv, 0, 1, first, d, l.n[20]);
}

// One of each for heads of up to 64, 128 and 256 elements.
typedef Shape<4, 64> D64;
typedef Shape<2, 128> D128;
typedef Shape<1, 256> D256;

KERNEL(256) attention_64(Launch l) { forward<D64>(l); }
KERNEL(256) attention_128(Launch l) { forward<D128>(l); }
KERNEL(256) attention_256(Launch l) { forward<D256>(l); }
KERNEL(256) attention_grad_q_64(Launch l) { gradQ<D64>(l); }
KERNEL(256) attention_grad_q_128(Launch l) { gradQ<D128>(l); }
KERNEL(256) attention_grad_q_256(Launch l) { gradQ<D256>(l); }
KERNEL(256) attention_grad_kv_64(Launch l) { gradKV<D64>(l); }
KERNEL(256) attention_grad_kv_128(Launch l) { gradKV<D128>(l); }
KERNEL(256) attention_grad_kv_256(Launch l) { gradKV<D256>(l); }

// What cuDNN lacks: it adds numbers to scores, and knows no query without keys.

// attention_bias: ptr[0] is set to what the mask, ptr[10], adds to the scores.
KERNEL(256) attention_bias(Launch l) {
	every<1>(l.n[0] * l.n[3], false, [&]<int K>(i64 i) { at<float>(l.ptr[0])[i] = at<int>(l.ptr[10])[i] ? 0 : -greatest; });
}

// blank sets the rows of an operand to zero.
DEV void blank(const Head &h, i64 d) {
	for (i64 i = threadX(); i < h.rows * d; i += blockLen()) h.data.set(i / d * h.stride + i % d, 0);
}

// attention_blank: a block for each head. Where the mask hides all keys, O is
// zero and LSE −inf; or if there are gradients, these are zero.
KERNEL(256) attention_blank(Launch l) {
	SHARED float room[32];
	Sight see(l);
	float seen = 0;
	for (int s = threadX(); s < see.S; s += blockLen()) seen += see.mask[s] != 0;
	if (blockSum(seen, room) > 0) return;
	if (l.ptr[6]) {
		blank(head(l, 6, 0), l.n[4]);
		blank(head(l, 7, 1), l.n[4]);
		blank(head(l, 8, 2), l.n[4]);
		return;
	}
	blank(head(l, 3, 3), l.n[4]);
	for (int t = threadX(); t < see.T; t += blockLen()) at<float>(l.ptr[4])[headNumber(l) * see.T + t] = -infinity;
}
