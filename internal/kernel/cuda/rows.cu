#include "launch.cuh"

// Layer normalisation: a warp for each row.

struct Row {
	i64 row, cols;
	int lane;
	bool packs;

	DEV Row(const Launch &l, bool aligned)
		: row(globalThread() / 32), cols(l.n[1]), lane(threadX() % 32), packs(aligned && cols % 4 == 0) {}

	template <class F> DEV void each(F f) const { sweep<4>(cols, lane, 32, packs, f); }
};

// normal is the one expression of normalisation, so that it is the same bits
// wherever it is computed.
DEV float normal(float x, float mean, float rstd, float gamma, float beta) { return fma((x - mean) * rstd, gamma, beta); }

DEV void writeNormal(const Launch &l, const Row &r, float mean, float rstd) {
	Array x = Array(l, 3).from(r.row * r.cols), gamma(l, 4), beta(l, 5), y = Array(l, 0).from(r.row * r.cols);
	r.each([&]<int K>(i64 i) {
		Pack<float, K> p = x.load<K>(i), g = gamma.load<K>(i), b = {};
		if (l.ptr[5]) b = beta.load<K>(i);
	UNROLL
		for (int k = 0; k < K; k++) p.v[k] = normal(p.v[k], mean, rstd, g.v[k], b.v[k]);
		y.store<K>(i, p);
	});
}

KERNEL(256) layer_norm(Launch l) {
	Row r(l, wide(l.ptr[0], l.ptr[3], l.ptr[4], l.ptr[5]));
	if (r.row >= l.n[0]) return;
	Array x = Array(l, 3).from(r.row * r.cols);
	float mean = 0, squares = 0;
	if (l.ptr[1]) {
		r.each([&]<int K>(i64 i) {
			Pack<float, K> p = x.load<K>(i);
		UNROLL
			for (int k = 0; k < K; k++) mean += p.v[k];
		});
		mean = warpSum(mean) / r.cols;
	}
	r.each([&]<int K>(i64 i) {
		Pack<float, K> p = x.load<K>(i);
	UNROLL
		for (int k = 0; k < K; k++) {
			float d = p.v[k] - mean;
			squares = fma(d, d, squares);
		}
	});
	float rstd = 1 / rootOf(warpSum(squares) / r.cols + l.f[0]);
	if (r.lane == 0) {
		if (l.ptr[1]) at<float>(l.ptr[1])[r.row] = mean;
		at<float>(l.ptr[2])[r.row] = rstd;
	}
	if (l.ptr[0]) writeNormal(l, r, mean, rstd);
}

KERNEL(256) layer_norm_apply(Launch l) {
	Row r(l, wide(l.ptr[0], l.ptr[3], l.ptr[4], l.ptr[5]));
	if (r.row >= l.n[0]) return;
	float mean = l.ptr[1] ? at<float>(l.ptr[1])[r.row] : 0;
	writeNormal(l, r, mean, at<float>(l.ptr[2])[r.row]);
}

// The gradient of x, a warp for each row. ptr: dx, dgamma, dbeta, dy, x, mean,
// rstd, gamma.
KERNEL(256) layer_norm_grad(Launch l) {
	Row r(l, wide(l.ptr[0], l.ptr[3], l.ptr[4], l.ptr[7]));
	if (r.row >= l.n[0]) return;
	Array dy = Array(l, 3).from(r.row * r.cols), x = Array(l, 4).from(r.row * r.cols), gamma(l, 7), dx = Array(l, 0).from(r.row * r.cols);
	float mean = l.ptr[5] ? at<float>(l.ptr[5])[r.row] : 0, rstd = at<float>(l.ptr[6])[r.row];
	float sumG = 0, sumGX = 0;
	r.each([&]<int K>(i64 i) {
		Pack<float, K> a = dy.load<K>(i), p = x.load<K>(i), g = gamma.load<K>(i);
	UNROLL
		for (int k = 0; k < K; k++) {
			float v = a.v[k] * g.v[k];
			sumG += v;
			sumGX = fma(v, (p.v[k] - mean) * rstd, sumGX);
		}
	});
	float meanG = l.ptr[5] ? warpSum(sumG) / r.cols : 0, meanGX = warpSum(sumGX) / r.cols;
	r.each([&]<int K>(i64 i) {
		Pack<float, K> a = dy.load<K>(i), p = x.load<K>(i), g = gamma.load<K>(i), sum = {};
		if (l.n[2]) sum = dx.load<K>(i);
	UNROLL
		for (int k = 0; k < K; k++)
			a.v[k] = sum.v[k] + rstd * (a.v[k] * g.v[k] - meanG - (p.v[k] - mean) * rstd * meanGX);
		dx.store<K>(i, a);
	});
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

// layer_norm_fold adds up the parts: a thread for each column, first of gamma
// and then of beta, which may be the same.
KERNEL(256) layer_norm_fold(Launch l) {
	i64 i = globalThread(), cols = l.n[1];
	if (i >= cols) return;
	float gamma = 0, beta = 0;
	for (i64 p = 0; p < l.n[5]; p++) {
		gamma += at<float>(l.ptr[8])[2 * p * cols + i];
		beta += at<float>(l.ptr[8])[(2 * p + 1) * cols + i];
	}
	if (l.ptr[1]) Array(l, 1).put(i, gamma, l.n[3]);
	if (l.ptr[2]) Array(l, 2).put(i, beta, l.n[4]);
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
	i64 head = (-x.address & (4 * size - 1)) / size;
	bool packs = x.half() == y.half() && ((x.address ^ y.address) & (4 * size - 1)) == 0;
	if (!packs || head > cols) head = cols; // all of it one by one
	sweep<4>(head, threadX(), blockLen(), false, f);
	sweep<4>(cols - head, threadX(), blockLen(), true, [&]<int K>(i64 i) { f.template operator()<K>(head + i); });
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
