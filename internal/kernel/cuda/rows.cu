#include "launch.cuh"

// Layer normalisation: a warp for each row.

struct Row {
	i64 row, cols;
	int lane;
	bool packs;

	DEV Row(const Launch &l, bool aligned)
		: row(globalThread() / 32), cols(l.n[1]), lane(threadX() % 32), packs(aligned && cols % 8 == 0) {}

	template <class F> DEV void each(F f) const {
		if (!packs) return sweep<1>(cols, lane, 32, false, f);
#pragma unroll 4
		for (i64 i = 8 * lane; i < cols; i += 256) f.template operator()<8>(i);
	}
};

// normal is the one expression of normalisation, so that it is the same bits
// wherever it is computed.
DEV float normal(float x, float mean, float rstd, float gamma, float beta) { return fma((x - mean) * rstd, gamma, beta); }

template <class Y, class X, class G> DEV void writeNormal(const Row &r, Y y, X x, G gamma, G beta, float mean, float rstd) {
	r.each([&]<int K>(i64 i) {
		Pack<float, K> p = x.template load<K>(i), g = gamma.template load<K>(i), b = {};
		if (beta.given()) b = beta.template load<K>(i);
	UNROLL
		for (int k = 0; k < K; k++) p.v[k] = normal(p.v[k], mean, rstd, g.v[k], b.v[k]);
		y.template store<K>(i, p);
	});
}

// writeNormal picks the types, those of mixed precision ahead.
DEV void writeNormal(const Launch &l, const Row &r, float mean, float rstd) {
	Array x = Array(l, 3).from(r.row * r.cols), gamma(l, 4), beta(l, 5), y = Array(l, 0).from(r.row * r.cols);
	if (x.type == BF16 && y.type == BF16 && gamma.type == F32 && beta.type == F32)
		return writeNormal(r, y.as<BF16>(), x.as<BF16>(), gamma.as<F32>(), beta.as<F32>(), mean, rstd);
	writeNormal(r, y, x, gamma, beta, mean, rstd);
}

template <class X> DEV void statistics(const Launch &l, const Row &r, X x, float &mean, float &rstd) {
	float squares = 0;
	mean = 0;
	if (l.ptr[1]) {
		r.each([&]<int K>(i64 i) {
			Pack<float, K> p = x.template load<K>(i);
		UNROLL
			for (int k = 0; k < K; k++) mean += p.v[k];
		});
		mean = warpSum(mean) / r.cols;
	}
	r.each([&]<int K>(i64 i) {
		Pack<float, K> p = x.template load<K>(i);
	UNROLL
		for (int k = 0; k < K; k++) {
			float d = p.v[k] - mean;
			squares = fma(d, d, squares);
		}
	});
	rstd = 1 / rootOf(warpSum(squares) / r.cols + l.f[0]);
}

DEV void normalise(const Launch &l, const Row &r) {
	Array x = Array(l, 3).from(r.row * r.cols);
	float mean, rstd;
	x.type == BF16 ? statistics(l, r, x.as<BF16>(), mean, rstd) : statistics(l, r, x, mean, rstd);
	if (r.lane == 0) {
		if (l.ptr[1]) at<float>(l.ptr[1])[r.row] = mean;
		at<float>(l.ptr[2])[r.row] = rstd;
	}
	if (l.ptr[0]) writeNormal(l, r, mean, rstd);
}

KERNEL(256) layer_norm(Launch l) {
	Row r(l, wide(l.ptr[0], l.ptr[3], l.ptr[4], l.ptr[5]));
	if (r.row < l.n[0]) normalise(l, r);
}

// Added is a row of a in x + dropout(a), the sum that add_layer_norm writes to ptr[3]
// and normalises; x is ptr[6], a ptr[7]. n[4] rows in turn, of all n[6] of a sequence, are
// those from row n[5] on.
struct Added {
	Dropout drop;
	bool drops;
	u64 first; // the number of the row's first element

	DEV Added(const Launch &l, i64 row)
		: drop(l.f[1], l.n[2], l.n[3]), drops(l.f[1] > 0), first((row / l.n[4] * l.n[6] + l.n[5] + row % l.n[4]) * l.n[1]) {}

	// to adds pack i. That of several elements begins with an even one, and two
	// neighbours share a number.
	template <int K> DEV void to(Pack<float, K> &x, const Pack<float, K> &a, i64 i) const {
		u64 pairs = (first + i) / 2;
	UNROLL
		for (int k = 0; k < K; k++) x.v[k] = drops ? fma(a.v[k], drop.factor(K == 1 ? first + i : 2 * pairs + k), x.v[k]) : x.v[k] + a.v[k];
	}
};

KERNEL(256) add_layer_norm(Launch l) {
	Row r(l, wide(l.ptr[0], l.ptr[3], l.ptr[4], l.ptr[5], l.ptr[6] | l.ptr[7]));
	if (r.row >= l.n[0]) return;
	Array sum = Array(l, 3).from(r.row * r.cols), x = Array(l, 6).from(r.row * r.cols), a = Array(l, 7).from(r.row * r.cols);
	Added added(l, r.row);
	r.each([&]<int K>(i64 i) {
		Pack<float, K> p = x.load<K>(i);
		added.to(p, a.load<K>(i), i);
		sum.store<K>(i, p);
	});
	if (l.ptr[0]) normalise(l, r);
}

// normInRegisters is layer_norm, or add_layer_norm, for bfloat16 with parameters of
// float32, and rows of up to 256·N elements in packs, which it loads once.
template <int N, bool adds = false> DEV void normInRegisters(const Launch &l) {
	i64 row = globalThread() / 32, cols = l.n[1];
	int lane = threadX() % 32;
	if (row >= l.n[0]) return;
	Typed<BF16> x = Array(l, adds ? 6 : 3).as<BF16>().from(row * cols), y = Array(l, 0).as<BF16>().from(row * cols);
	Typed<F32> gamma = Array(l, 4).as<F32>(), beta = Array(l, 5).as<F32>();
	Pack<float, 8> p[N] = {};
	float mean = 0, squares = 0;
UNROLL
	for (int j = 0; j < N; j++)
		if (256 * j + 8 * lane < cols) p[j] = x.load<8>(256 * j + 8 * lane);
	if (adds) {
		Typed<BF16> a = Array(l, 7).as<BF16>().from(row * cols), sum = Array(l, 3).as<BF16>().from(row * cols);
		Added added(l, row);
		Pack<float, 8> q[N] = {};
	UNROLL
		for (int j = 0; j < N; j++)
			if (256 * j + 8 * lane < cols) q[j] = a.load<8>(256 * j + 8 * lane);
	UNROLL
		for (int j = 0; j < N; j++) {
			i64 i = 256 * j + 8 * lane;
			if (i >= cols) continue;
			added.to(p[j], q[j], i);
			Pack<u16, 8> h = packBF16(p[j]);
			::store<8>(at<u16>(sum.address) + i, h);
		UNROLL
			for (int k = 0; k < 8; k++) p[j].v[k] = fromBF16(h.v[k]);
		}
	}
UNROLL
	for (int j = 0; j < N; j++)
	UNROLL
		for (int k = 0; k < 8; k++) mean += p[j].v[k];
	mean = l.ptr[1] ? warpSum(mean) / cols : 0;
UNROLL
	for (int j = 0; j < N; j++)
	UNROLL
		for (int k = 0; k < 8; k++) {
			float d = 256 * j + 8 * lane < cols ? p[j].v[k] - mean : 0;
			squares = fma(d, d, squares);
		}
	float rstd = 1 / rootOf(warpSum(squares) / cols + l.f[0]);
	if (lane == 0) {
		if (l.ptr[1]) at<float>(l.ptr[1])[row] = mean;
		at<float>(l.ptr[2])[row] = rstd;
	}
UNROLL
	for (int j = 0; j < N; j++) {
		i64 i = 256 * j + 8 * lane;
		if (i >= cols) continue;
		Pack<float, 8> g = gamma.load<8>(i), b = {};
		if (beta.given()) b = beta.load<8>(i);
	UNROLL
		for (int k = 0; k < 8; k++) p[j].v[k] = normal(p[j].v[k], mean, rstd, g.v[k], b.v[k]);
		y.store<8>(i, p[j]);
	}
}

KERNEL(256) layer_norm_768(Launch l) { normInRegisters<3>(l); }
KERNEL(256) layer_norm_1792(Launch l) { normInRegisters<7>(l); }
KERNEL(256) add_layer_norm_1024(Launch l) { normInRegisters<4, true>(l); }
KERNEL(256) add_layer_norm_1792(Launch l) { normInRegisters<7, true>(l); }

KERNEL(256) layer_norm_apply(Launch l) {
	Row r(l, wide(l.ptr[0], l.ptr[3], l.ptr[4], l.ptr[5]));
	if (r.row >= l.n[0]) return;
	float mean = l.ptr[1] ? at<float>(l.ptr[1])[r.row] : 0;
	writeNormal(l, r, mean, at<float>(l.ptr[2])[r.row]);
}

// The gradient of layer normalisation. ptr: dx, dgamma, dbeta, dy, x, mean,
// rstd, gamma.
template <class DX, class DY, class X, class G> struct NormGrad {
	DX dx;
	DY dy;
	X x;
	G gamma;
	i64 cols;
	float mean, rstd;
	bool centred, add;

	DEV NormGrad(const Launch &l, i64 row, DX dx, DY dy, X x, G gamma)
		: dx(dx.from(row * l.n[1])), dy(dy.from(row * l.n[1])), x(x.from(row * l.n[1])), gamma(gamma), cols(l.n[1]),
		  mean(l.ptr[5] ? at<float>(l.ptr[5])[row] : 0), rstd(at<float>(l.ptr[6])[row]), centred(l.ptr[5]), add(l.n[2]) {}

	// terms adds those of pack i to the sums of g and g·x̂.
	template <int K> DEV void terms(i64 i, float &sumG, float &sumGX) const {
		Pack<float, K> a = dy.template load<K>(i), p = x.template load<K>(i), g = gamma.template load<K>(i);
	UNROLL
		for (int k = 0; k < K; k++) {
			float v = a.v[k] * g.v[k];
			sumG += v;
			sumGX = fma(v, (p.v[k] - mean) * rstd, sumGX);
		}
	}

	// write sets pack i of dx.
	template <int K> DEV void write(i64 i, float meanG, float meanGX) const {
		Pack<float, K> a = dy.template load<K>(i), p = x.template load<K>(i), g = gamma.template load<K>(i), sum = {};
		if (add) sum = dx.template load<K>(i);
	UNROLL
		for (int k = 0; k < K; k++)
			a.v[k] = sum.v[k] + rstd * (a.v[k] * g.v[k] - meanG - (p.v[k] - mean) * rstd * meanGX);
		dx.template store<K>(i, a);
	}

	// means turns a lane's sums into the row's means.
	DEV void means(float &sumG, float &sumGX) const {
		sumG = centred ? warpSum(sumG) / cols : 0;
		sumGX = warpSum(sumGX) / cols;
	}
};

// layer_norm_grad computes dx alone: a warp for each row.
KERNEL(256) layer_norm_grad(Launch l) {
	Row r(l, wide(l.ptr[0], l.ptr[3], l.ptr[4], l.ptr[7]));
	if (r.row >= l.n[0]) return;
	NormGrad n(l, r.row, Array(l, 0), Array(l, 3), Array(l, 4), Array(l, 7));
	float sumG = 0, sumGX = 0;
	r.each([&]<int K>(i64 i) { n.template terms<K>(i, sumG, sumGX); });
	n.means(sumG, sumGX);
	r.each([&]<int K>(i64 i) { n.template write<K>(i, sumG, sumGX); });
}

// Eight are the elements of a pack as they lie in memory. A thread that loads them long
// before it uses them keeps these: numbers would take more registers, and a conversion
// would wait for the load.
template <int type> struct Eight {
	Pack<u32, type == F32 ? 8 : 4> words = {};

	DEV void load(Typed<type> x, i64 i) { words = ::load<type == F32 ? 8 : 4>(at<u32>(x.from(i).address)); }

	DEV Pack<float, 8> numbers() const {
		static_assert(type == F32 || type == BF16);
		Pack<float, 8> x;
	UNROLL
		for (int k = 0; k < 8; k++)
			x.v[k] = __builtin_bit_cast(float, type == F32 ? words.v[k] : k % 2 ? words.v[k / 2] & 0xffff0000 : words.v[k / 2] << 16);
		return x;
	}
};

// NormTerms are what a thread reads of a row, zeros where it reads nothing.
template <int DX, int DY, int X> struct NormTerms {
	Eight<DX> sum; // what dx holds, if it is added to
	Eight<DY> dy;
	Eight<X> x;
	float mean = 0, rstd = 0;

	DEV void load(const Launch &l, int row, i64 from) {
		if (l.n[2] && l.ptr[0]) sum.load({l.ptr[0]}, from);
		dy.load({l.ptr[3]}, from);
		x.load({l.ptr[4]}, from);
		if (l.ptr[5]) mean = at<float>(l.ptr[5])[row];
		rstd = at<float>(l.ptr[6])[row];
	}
};

// NormRoom is what the threads of a block of normGradAll tell each other.
struct NormRoom {
	Pack<float, 2> means[2][32]; // of a warp's columns, in turns
	Pack<float, 8> params[672];
};

// normGradAll computes all three, in packs. A row belongs to a group of as many warps as
// it takes for a pack a thread; a block has several groups, which go over rows together.
// While a row is computed the next one comes. Threads keep the sums of their columns;
// those of a block go to the workspace ptr[8]: cols for gamma and cols for beta.
template <int DX, int DY, int X> DEV void normGradAll(const Launch &l, NormRoom &room) {
	i64 cols = l.n[1];
	int rows = (int)l.n[0], lane = threadX() % 32, warp = threadX() / 32, wide = ((int)cols + 255) / 256;
	int group = warp / wide, groups = blockLen() / 32 / wide, i = 8 * (threadX() - 32 * wide * group);
	int row = blockX() * groups + group, step = gridLen() * groups;
	i64 from = row * cols + i;
	bool mine = i < cols;
	float part = 1.0f / cols;
	Pack<float, 8> gamma = {}, toGamma = {}, toBeta = {};
	if (mine) gamma = Array(l, 7).as<F32>().load<8>(i);
	NormTerms<DX, DY, X> next;
	if (mine && row < rows) next.load(l, row, from);
	for (int turn = 0; row - group < rows; row += step, from += step * cols, turn = 1 - turn) {
		NormTerms<DX, DY, X> now = next;
		next = {};
		if (mine && rows - row > step) next.load(l, row + step, from + step * cols);
		Pack<float, 8> dy = now.dy.numbers(), x = now.x.numbers();
		Pack<float, 2> mean = {};
	UNROLL
		for (int k = 0; k < 8; k++) {
			x.v[k] = (x.v[k] - now.mean) * now.rstd;
			toGamma.v[k] = fma(dy.v[k], x.v[k], toGamma.v[k]);
			toBeta.v[k] += dy.v[k];
			dy.v[k] *= gamma.v[k];
			mean.v[0] += dy.v[k];
			mean.v[1] = fma(dy.v[k], x.v[k], mean.v[1]);
		}
		mean = {warpSum(mean.v[0]), warpSum(mean.v[1])};
		if (lane == 0) room.means[turn][warp] = mean;
		barrier();
		mean = {};
		if (lane < wide) mean = room.means[turn][wide * group + lane];
		mean = {warpSum(mean.v[0]) * part, warpSum(mean.v[1]) * part};
		if (!l.ptr[5]) mean.v[0] = 0;
		if (!mine || row >= rows || !l.ptr[0]) continue;
		Pack<float, 8> sum = now.sum.numbers();
	UNROLL
		for (int k = 0; k < 8; k++) sum.v[k] += now.rstd * (dy.v[k] - mean.v[0] - x.v[k] * mean.v[1]);
		Array(l, 0).as<DX>().store(from, sum);
	}
	float *work = at<float>(l.ptr[8]) + 2 * cols * blockX();
UNROLL
	for (int params = 0; params < 2; params++) {
		barrier();
		room.params[threadX()] = params ? toBeta : toGamma;
		barrier();
		if (group > 0 || !mine) continue;
		Pack<float, 8> sum = {};
		for (int g = 0; g < groups; g++) {
			Pack<float, 8> of = load<8>(room.params[threadX() + 32 * wide * g].v);
		UNROLL
			for (int k = 0; k < 8; k++) sum.v[k] += of.v[k];
		}
		store<8>(work + params * cols + i, sum);
	}
}

KERNEL(672, 1) layer_norm_grad_bfloat16(Launch l) {
	SHARED NormRoom room;
	normGradAll<BF16, BF16, BF16>(l, room);
}

// layer_norm_grad_float32 is for float32, and for other types of mixed precision.
KERNEL(512, 1) layer_norm_grad_float32(Launch l) {
	SHARED NormRoom room;
	if (l.type[4] == F32) return normGradAll<F32, F32, F32>(l, room);
	l.type[3] == F32 ? normGradAll<F32, F32, BF16>(l, room) : normGradAll<F32, BF16, BF16>(l, room);
}

// The gradients of gamma and beta: a block for each of blockY parts of the rows
// and 32 columns. Sums go to the workspace ptr[8]: for each part cols for gamma
// and cols for beta.
KERNEL(256) layer_norm_params(Launch l) {
	SHARED float rooms[2][8][32];
	i64 rows = l.n[0], cols = l.n[1], parts = l.n[5], part = blockY();
	int lane = threadX() % 32, warp = threadX() / 32;
	i64 c = (i64)blockX() * 32 + lane;
	float gamma = 0, beta = 0;
	if (c < cols)
		for (i64 r = rows * part / parts + warp; r < rows * (part + 1) / parts; r += 8) {
			float dy = Array(l, 3).get(r * cols + c), x = Array(l, 4).get(r * cols + c);
			float mean = l.ptr[5] ? at<float>(l.ptr[5])[r] : 0;
			gamma = fma(dy, (x - mean) * at<float>(l.ptr[6])[r], gamma);
			beta += dy;
		}
	rooms[0][warp][lane] = gamma;
	rooms[1][warp][lane] = beta;
	barrier();
	if (warp > 1 || c >= cols) return;
	float sum = 0;
	for (int i = 0; i < 8; i++) sum += rooms[warp][i][lane];
	at<float>(l.ptr[8])[(2 * part + warp) * cols + c] = sum;
}

// layer_norm_fold adds up the parts: a block for 32 columns, of which half the warps have
// gamma's and half beta's. First gamma is written and then beta, which may be the same.
KERNEL(1024) layer_norm_fold(Launch l) {
	SHARED float room[32][32];
	i64 cols = l.n[1], c = (i64)blockX() * 32 + threadX() % 32;
	int lane = threadX() % 32, warp = threadX() / 32;
	const float *work = at<float>(l.ptr[8]) + c;
	room[warp][lane] = c < cols ? sumOf(warp, 2 * l.n[5], 32, [=](i64 p) { return work[p * cols]; }) : 0;
	barrier();
	if (warp > 0 || c >= cols) return;
	float gamma = 0, beta = 0;
UNROLL
	for (int i = 0; i < 32; i += 2) gamma += room[i][lane], beta += room[i + 1][lane];
	if (l.ptr[1]) Array(l, 1).put(c, gamma, l.n[3]);
	if (l.ptr[2]) Array(l, 2).put(c, beta, l.n[4]);
}

// Softmax and its kin: a block for each row.

// Sums are log Σ exp of a row, as its greatest element and Σ exp(x − top).
struct Sums {
	float top, sum;
};

// shiftOf is a finite number to subtract, so that −Inf stays −Inf.
DEV float shiftOf(float top) { return top < -greatest ? -greatest : top; }

DEV Sums merge(Sums a, Sums b) {
	Sums c = {a.top > b.top ? a.top : b.top, 0};
	float shift = shiftOf(c.top);
	c.sum = a.sum * expOf(a.top - shift) + b.sum * expOf(b.top - shift);
	return c;
}

// blockSweep is a sweep over a row by a block. Rows of odd lengths begin
// anywhere: packs begin where x's addresses allow, and y's, which may be x, with
// them.
template <class F> DEV void blockSweep(const Array &x, const Array &y, i64 cols, F f) {
	int size = x.half() ? 2 : 4;
	i64 head = (-x.address & 15) / size;
	bool packs = x.half() == y.half() && ((x.address ^ y.address) & 15) == 0;
	if (!packs || head > cols) head = cols; // all of it one by one
	sweep<8>(head, threadX(), blockLen(), false, f);
	sweep<8>(cols - head, threadX(), blockLen(), true, [&]<int K>(i64 i) { f.template operator()<K>(head + i); });
}

DEV Sums rowSums(Array x, i64 cols) {
	SHARED Sums room[32];
	Sums s = {-infinity, 0};
	blockSweep(x, x, cols, [&]<int K>(i64 i) {
		Pack<float, K> p = x.load<K>(i);
		float most = p.v[0];
	UNROLL
		for (int k = 1; k < K; k++) most = p.v[k] > most ? p.v[k] : most;
		if (most > s.top) s.sum *= expOf(s.top - most), s.top = most;
		float shift = shiftOf(s.top);
	UNROLL
		for (int k = 0; k < K; k++) s.sum += expOf(p.v[k] - shift);
	});
	for (int i = 16; i > 0; i /= 2) s = merge(s, {shuffle(s.top, i), shuffle(s.sum, i)});
	if (threadX() % 32 == 0) room[threadX() / 32] = s;
	barrier();
	s = room[0];
	for (int i = 1; i < blockLen() / 32; i++) s = merge(s, room[i]);
	return s;
}

KERNEL(256) softmax(Launch l) {
	i64 cols = l.n[1], first = blockX() * cols;
	Array x = Array(l, 1).from(first), y = Array(l, 0).from(first);
	Sums s = rowSums(x, cols); // ends behind a barrier: y may be x
	float factor = 1 / s.sum;
	for (i64 i = threadX(); i < cols; i += blockLen()) y.set(i, expOf(x.get(i) - shiftOf(s.top)) * factor);
}

KERNEL(256) softmax_grad(Launch l) {
	SHARED float room[32];
	i64 cols = l.n[1], first = blockX() * cols;
	Array dx = Array(l, 0).from(first), dy = Array(l, 1).from(first), y = Array(l, 2).from(first);
	float dot = 0;
	for (i64 i = threadX(); i < cols; i += blockLen()) dot = fma(dy.get(i), y.get(i), dot);
	dot = blockSum(dot, room);
	for (i64 i = threadX(); i < cols; i += blockLen()) dx.put(i, y.get(i) * (dy.get(i) - dot), l.n[2]);
}

KERNEL(256) log_softmax(Launch l) {
	i64 cols = l.n[1], first = blockX() * cols;
	Array x = Array(l, 1).from(first), y = Array(l, 0).from(first);
	Sums s = rowSums(x, cols);
	float logSum = logOf(s.sum);
	for (i64 i = threadX(); i < cols; i += blockLen()) y.set(i, (x.get(i) - s.top) - logSum);
}

KERNEL(256) log_softmax_grad(Launch l) {
	SHARED float room[32];
	i64 cols = l.n[1], first = blockX() * cols;
	Array dx = Array(l, 0).from(first), dy = Array(l, 1).from(first), y = Array(l, 2).from(first);
	float sum = 0;
	for (i64 i = threadX(); i < cols; i += blockLen()) sum += dy.get(i);
	sum = blockSum(sum, room);
	for (i64 i = threadX(); i < cols; i += blockLen()) dx.put(i, fma(-sum, expOf(y.get(i)), dy.get(i)), l.n[2]);
}

// Cross entropy. ptr: loss, lse, logits, targets, and the workspace ptr[5] for
// a loss of each row.
KERNEL(256) cross_entropy(Launch l) {
	SHARED float room[32];
	i64 row = blockX(), cols = l.n[1];
	Array x = Array(l, 2).from(row * cols);
	int target = at<int>(l.ptr[3])[row];
	Sums s = rowSums(x, cols);
	float logSum = logOf(s.sum), sum = 0;
	if (l.f[0] > 0) {
		for (i64 i = threadX(); i < cols; i += blockLen()) sum += x.get(i);
		sum = blockSum(sum, room);
	}
	if (threadX()) return;
	at<float>(l.ptr[1])[row] = s.top + logSum;
	float loss = 0;
	if (target != l.n[2]) {
		loss = notANumber;
		if (target >= 0 && target < cols) loss = (s.top - x.get(target)) + logSum;
		if (loss == loss && l.f[0] > 0) loss += l.f[0] * (x.get(target) - sum / cols); // a target that is no column gave NaN
	}
	at<float>(l.ptr[5])[row] = loss;
}

// counted is the number of rows that count, for all threads of a block.
DEV float counted(const int *targets, i64 rows, i64 ignore, float *room) {
	float n = 0; // exact up to 2²⁴ rows for each thread
	for (i64 i = threadX(); i < rows; i += blockLen()) n += targets[i] != ignore;
	return blockSum(n, room);
}

// cross_entropy_fold adds up the losses, with one block.
KERNEL(1024) cross_entropy_fold(Launch l) {
	SHARED float room[32];
	float n = counted(at<int>(l.ptr[3]), l.n[0], l.n[2], room), sum = 0;
	for (i64 i = threadX(); i < l.n[0]; i += blockLen()) sum += at<float>(l.ptr[5])[i];
	sum = blockSum(sum, room);
	if (threadX() == 0) *at<float>(l.ptr[0]) = l.n[3] || n < 1 ? sum : sum / n;
}

// cross_entropy_scale puts dloss/count into the workspace ptr[5], with one
// block. ptr: dlogits, dloss, logits, lse, targets.
KERNEL(1024) cross_entropy_scale(Launch l) {
	SHARED float room[32];
	float n = counted(at<int>(l.ptr[4]), l.n[0], l.n[3], room), dloss = *at<float>(l.ptr[1]);
	if (threadX() == 0) *at<float>(l.ptr[5]) = l.n[4] || n < 1 ? dloss : dloss / n;
}

KERNEL(256) cross_entropy_grad(Launch l) {
	i64 row = blockX(), cols = l.n[1];
	Array dx = Array(l, 0).from(row * cols), x = Array(l, 2).from(row * cols);
	float lse = at<float>(l.ptr[3])[row], scale = *at<float>(l.ptr[5]), share = l.f[0] / cols;
	int target = at<int>(l.ptr[4])[row];
	bool ignored = target == l.n[3], wrong = !ignored && (target < 0 || target >= cols);
	if (ignored && l.n[2]) return;
	blockSweep(x, dx, cols, [&]<int K>(i64 i) {
		Pack<float, K> p = x.load<K>(i), sum = {};
		if (l.n[2]) sum = dx.load<K>(i);
	UNROLL
		for (int k = 0; k < K; k++) {
			float g = expOf(p.v[k] - lse) - share;
			if (i + k == target) g -= 1 - l.f[0];
			p.v[k] = sum.v[k] + (ignored ? 0 : wrong ? notANumber : g * scale);
		}
		dx.store<K>(i, p);
	});
}

// Cross entropy of some rows of a batch, with its gradient over them. ptr: losses,
// dloss, logits, targets of the whole batch and, where not all classes are here, the
// row_sums of all; n: rows, cols, ignore, sum, stride, first row, rows of the batch,
// class of the first column, all classes, rows that give a loss. The workspace ptr[5]
// holds what the batch's sum is divided by, and from its second element on a loss for
// each row.
KERNEL(1024) cross_entropy_divisor(Launch l) {
	SHARED float room[32];
	float n = counted(at<int>(l.ptr[3]), l.n[6], l.n[2], room);
	if (threadX() == 0) *at<float>(l.ptr[5]) = l.n[3] || n < 1 ? 1 : n;
}

// row_sums: ptr sums, logits; n rows, cols, stride. A block for each row gives its
// greatest logit and, so many rows after that, the sum of exp(logit - greatest).
KERNEL(512) row_sums(Launch l) {
	i64 row = blockX();
	Sums s = rowSums(Array(l, 1).from(row * l.n[2]), l.n[1]);
	if (threadX()) return;
	at<float>(l.ptr[0])[row] = s.top;
	at<float>(l.ptr[0])[l.n[0] + row] = s.sum;
}

// Over is one row of that.
struct Over {
	i64 row, rows, cols, stride;
	int target; // its column, or -1 where it is none here
	bool ignored, wrong;
	float smoothing, scale; // scale is what the row's gradient is multiplied by
	const float *sums;

	DEV Over(const Launch &l)
		: row(blockX()), rows(l.n[0]), cols(l.n[1]), stride(l.n[4]), target(at<int>(l.ptr[3])[l.n[5] + row]), ignored(target == l.n[2]),
		  wrong(!ignored && (target < 0 || target >= l.n[8])), smoothing(l.f[0]), scale(l.ptr[1] ? Array(l, 1).get(0) / *at<float>(l.ptr[5]) : 0),
		  sums(at<float>(l.ptr[4])) {
		i64 here = target - l.n[7];
		target = ignored || wrong || here < 0 || here >= cols ? -1 : here;
		if (ignored || wrong) scale = ignored ? 0 : notANumber;
	}

	// all gives the sums over all classes, if they are not those of here.
	DEV bool all(Sums *s) const {
		if (sums) *s = {sums[row], sums[rows + row]};
		return sums;
	}

	// loss gives the row's to the workspace.
	template <class X> DEV void loss(const Launch &l, X x, const Sums &s) const {
		SHARED float room[32];
		float known = target < 0 ? 0 : x.template load<1>(target).v[0], sum = 0, loss = (s.top - known) + logOf(s.sum);
		if (smoothing > 0) {
			for (i64 i = threadX(); i < cols; i += blockLen()) sum += x.template load<1>(i).v[0];
			loss += smoothing * (known - blockSum(sum, room) / cols);
		}
		if (threadX() == 0) at<float>(l.ptr[5])[1 + row] = wrong ? notANumber : target < 0 ? 0 : loss;
		barrier(); // all have read the logits, whose place the gradient takes
	}
};

KERNEL(512) cross_entropy_over(Launch l) {
	Over o(l);
	Array x = Array(l, 2).from(o.row * o.stride);
	Sums s;
	if (!o.all(&s)) s = rowSums(x, o.cols);
	o.loss(l, x, s);
	if (!l.ptr[1]) return;
	float lse = s.top + logOf(s.sum), share = o.smoothing / o.cols;
	blockSweep(x, x, o.cols, [&]<int K>(i64 i) {
		Pack<float, K> p = x.load<K>(i);
	UNROLL
		for (int k = 0; k < K; k++) {
			float g = expBelow(p.v[k] - lse) - share;
			if (i + k == o.target) g -= 1 - o.smoothing;
			p.v[k] = o.ignored ? 0 : g * o.scale;
		}
		x.store<K>(i, p);
	});
	for (i64 i = o.cols + threadX(); i < o.stride; i += blockLen()) x.set(i, 0);
}

// packSums is rowSums of a row in packs, of which each thread loads two at a
// time.
template <class X> DEV Sums packSums(X x, i64 cols) {
	SHARED Sums room[32];
	Sums s = {-infinity, 0};
	i64 whole = cols & ~7ll;
	auto add = [&]<int K>(const Pack<float, K> &p) {
		float most = p.v[0];
	UNROLL
		for (int k = 1; k < K; k++) most = p.v[k] > most ? p.v[k] : most;
		if (most > s.top) s.sum *= expBelow(s.top - most), s.top = most;
		float shift = shiftOf(s.top);
	UNROLL
		for (int k = 0; k < K; k++) s.sum += expBelow(p.v[k] - shift);
	};
	for (i64 i = 8 * threadX(); i < whole; i += 16 * blockLen()) {
		i64 next = i + 8 * blockLen();
		Pack<float, 8> p = x.template load<8>(i), q = x.template load<8>(next < whole ? next : i);
		add(p);
		if (next < whole) add(q);
	}
	if (whole + threadX() < cols) add(x.template load<1>(whole + threadX()));
	for (int i = 16; i > 0; i /= 2) s = merge(s, {shuffle(s.top, i), shuffle(s.sum, i)});
	if (threadX() % 32 == 0) room[threadX() / 32] = s;
	barrier();
	s = room[0];
	for (int i = 1; i < blockLen() / 32; i++) s = merge(s, room[i]);
	return s;
}

// overPacks is cross_entropy_over for bfloat16, of rows in packs, which are read from x.
template <class X> DEV void overPacks(const Launch &l, const Over &o, Typed<BF16> row, X x) {
	Sums s;
	if (!o.all(&s)) s = packSums(x, o.cols);
	o.loss(l, x, s);
	if (!l.ptr[1]) return;
	float lse = s.top + logOf(s.sum), share = o.smoothing / o.cols;
	for (i64 i = 8 * threadX(); i < o.stride; i += 8 * blockLen()) {
		Pack<float, 8> p = x.template load<8>(i);
	UNROLL
		for (int k = 0; k < 8; k++) p.v[k] = (expBelow(p.v[k] - lse) - share) * o.scale;
		if (o.ignored || i + 8 > o.cols)
		UNROLL
			for (int k = 0; k < 8; k++)
				if (o.ignored || i + k >= o.cols) p.v[k] = 0;
		i64 at = o.target - i;
		if (o.target >= 0 && at >= 0 && at < 8)
		UNROLL
			for (int k = 0; k < 8; k++)
				if (k == at) p.v[k] -= (1 - o.smoothing) * o.scale;
		row.store<8>(i, p);
	}
}

DEV Typed<BF16> logitRow(const Launch &l) { return Array(l, 2).as<BF16>().from(blockX() * l.n[4]); }

KERNEL(512, 3) cross_entropy_packs(Launch l) { overPacks(l, Over(l), logitRow(l), logitRow(l)); }

#if !defined __CUDA_ARCH__ || __CUDA_ARCH__ >= 800
// Held is a row in shared memory.
struct Held {
	const u16 *row;

	template <int W> DEV Pack<float, W> load(i64 i) const {
		Pack<u16, W> h = ::load<W>(row + i);
		Pack<float, W> x;
	UNROLL
		for (int k = 0; k < W; k++) x.v[k] = fromBF16(h.v[k]);
		return x;
	}
};

// cross_entropy_held is cross_entropy_packs that reads a row once, all of it at
// a time, and holds it in shared memory.
KERNEL(512, 2) cross_entropy_held(Launch l) {
	SHARED_OF_LAUNCH(u16, held);
	Typed<BF16> row = logitRow(l);
	for (i64 i = 8 * threadX(); i < l.n[4]; i += 8 * blockLen()) startCopy(held + i, row.address + 2 * i, true);
	Over o(l);
	endCopies();
	barrier();
	overPacks(l, o, row, Held{held});
}
#endif

// cross_entropy_part adds up the rows' losses, with a block for each that comes of it.
KERNEL(256) cross_entropy_part(Launch l) {
	SHARED float room[32];
	i64 first = blockX() * l.n[9], end = first + l.n[9] < l.n[0] ? first + l.n[9] : l.n[0];
	float sum = 0, *work = at<float>(l.ptr[5]);
	for (i64 i = first + threadX(); i < end; i += blockLen()) sum += work[1 + i];
	sum = blockSum(sum, room);
	if (threadX() == 0) at<float>(l.ptr[0])[blockX()] = sum / *work;
}
