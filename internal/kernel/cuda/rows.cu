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
	const float *x = at<float>(l.ptr[3]) + r.row * r.cols, *gamma = at<float>(l.ptr[4]), *beta = at<float>(l.ptr[5]);
	float *y = at<float>(l.ptr[0]) + r.row * r.cols;
	r.each([&]<int K>(i64 i) {
		Pack<float, K> p = load<K>(x + i), g = load<K>(gamma + i), b = {};
		if (l.ptr[5]) b = load<K>(beta + i);
	UNROLL
		for (int k = 0; k < K; k++) p.v[k] = normal(p.v[k], mean, rstd, g.v[k], b.v[k]);
		store<K>(y + i, p);
	});
}

KERNEL(256) layer_norm_f32(Launch l) {
	Row r(l, wide(l.ptr[0], l.ptr[3], l.ptr[4], l.ptr[5]));
	if (r.row >= l.n[0]) return;
	const float *x = at<float>(l.ptr[3]) + r.row * r.cols;
	float mean = 0, squares = 0;
	if (l.ptr[1]) {
		r.each([&]<int K>(i64 i) {
			Pack<float, K> p = load<K>(x + i);
		UNROLL
			for (int k = 0; k < K; k++) mean += p.v[k];
		});
		mean = warpSum(mean) / r.cols;
	}
	r.each([&]<int K>(i64 i) {
		Pack<float, K> p = load<K>(x + i);
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

KERNEL(256) layer_norm_apply_f32(Launch l) {
	Row r(l, wide(l.ptr[0], l.ptr[3], l.ptr[4], l.ptr[5]));
	if (r.row >= l.n[0]) return;
	float mean = l.ptr[1] ? at<float>(l.ptr[1])[r.row] : 0;
	writeNormal(l, r, mean, at<float>(l.ptr[2])[r.row]);
}

// The gradient of x, a warp for each row. ptr: dx, dgamma, dbeta, dy, x, mean,
// rstd, gamma.
KERNEL(256) layer_norm_grad_f32(Launch l) {
	Row r(l, wide(l.ptr[0], l.ptr[3], l.ptr[4], l.ptr[7]));
	if (r.row >= l.n[0]) return;
	const float *dy = at<float>(l.ptr[3]) + r.row * r.cols, *x = at<float>(l.ptr[4]) + r.row * r.cols, *gamma = at<float>(l.ptr[7]);
	float *dx = at<float>(l.ptr[0]) + r.row * r.cols;
	float mean = l.ptr[5] ? at<float>(l.ptr[5])[r.row] : 0, rstd = at<float>(l.ptr[6])[r.row];
	float sumG = 0, sumGX = 0;
	r.each([&]<int K>(i64 i) {
		Pack<float, K> a = load<K>(dy + i), p = load<K>(x + i), g = load<K>(gamma + i);
	UNROLL
		for (int k = 0; k < K; k++) {
			float v = a.v[k] * g.v[k];
			sumG += v;
			sumGX = fma(v, (p.v[k] - mean) * rstd, sumGX);
		}
	});
	float meanG = l.ptr[5] ? warpSum(sumG) / r.cols : 0, meanGX = warpSum(sumGX) / r.cols;
	r.each([&]<int K>(i64 i) {
		Pack<float, K> a = load<K>(dy + i), p = load<K>(x + i), g = load<K>(gamma + i), sum = {};
		if (l.n[2]) sum = load<K>(dx + i);
	UNROLL
		for (int k = 0; k < K; k++)
			a.v[k] = sum.v[k] + rstd * (a.v[k] * g.v[k] - meanG - (p.v[k] - mean) * rstd * meanGX);
		store<K>(dx + i, a);
	});
}

// The gradients of gamma and beta: a block for each of blockY parts of the rows
// and 32 columns. Sums go to the workspace ptr[8]: for each part cols for gamma
// and cols for beta.
KERNEL(256) layer_norm_params_f32(Launch l) {
	SHARED float rooms[2][8][32];
	i64 rows = l.n[0], cols = l.n[1], parts = l.n[5], part = blockY();
	int lane = threadX() % 32, warp = threadX() / 32;
	i64 c = (i64)blockX() * 32 + lane;
	float gamma = 0, beta = 0;
	if (c < cols)
		for (i64 r = rows * part / parts + warp; r < rows * (part + 1) / parts; r += 8) {
			float dy = at<float>(l.ptr[3])[r * cols + c], x = at<float>(l.ptr[4])[r * cols + c];
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

// layer_norm_fold adds up the parts: a thread for each number.
KERNEL(256) layer_norm_fold_f32(Launch l) {
	i64 i = globalThread(), cols = l.n[1];
	int which = i >= cols;
	if (i >= 2 * cols || !l.ptr[1 + which]) return;
	float sum = 0, *to = at<float>(l.ptr[1 + which]) + i % cols;
	for (i64 p = 0; p < l.n[5]; p++) sum += at<float>(l.ptr[8])[2 * p * cols + i];
	*to = l.n[3 + which] ? *to + sum : sum;
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

DEV Sums rowSums(const float *x, i64 cols) {
	SHARED Sums room[32];
	Sums s = {-infinity, 0};
	for (i64 i = threadX(); i < cols; i += blockLen()) {
		float v = x[i];
		if (v > s.top) s.sum *= expOf(s.top - v), s.top = v;
		s.sum += expOf(v - shiftOf(s.top));
	}
	for (int i = 16; i > 0; i /= 2) s = merge(s, {shuffle(s.top, i), shuffle(s.sum, i)});
	if (threadX() % 32 == 0) room[threadX() / 32] = s;
	barrier();
	s = room[0];
	for (int i = 1; i < blockLen() / 32; i++) s = merge(s, room[i]);
	return s;
}

KERNEL(256) softmax_f32(Launch l) {
	i64 cols = l.n[1], first = blockX() * cols;
	const float *x = at<float>(l.ptr[1]) + first;
	float *y = at<float>(l.ptr[0]) + first;
	Sums s = rowSums(x, cols); // ends behind a barrier: y may be x
	float factor = 1 / s.sum;
	for (i64 i = threadX(); i < cols; i += blockLen()) y[i] = expOf(x[i] - shiftOf(s.top)) * factor;
}

KERNEL(256) softmax_grad_f32(Launch l) {
	SHARED float room[32];
	i64 cols = l.n[1], first = blockX() * cols;
	float *dx = at<float>(l.ptr[0]) + first;
	const float *dy = at<float>(l.ptr[1]) + first, *y = at<float>(l.ptr[2]) + first;
	float dot = 0;
	for (i64 i = threadX(); i < cols; i += blockLen()) dot = fma(dy[i], y[i], dot);
	dot = blockSum(dot, room);
	for (i64 i = threadX(); i < cols; i += blockLen()) {
		float g = y[i] * (dy[i] - dot);
		dx[i] = l.n[2] ? dx[i] + g : g;
	}
}

KERNEL(256) log_softmax_f32(Launch l) {
	i64 cols = l.n[1], first = blockX() * cols;
	const float *x = at<float>(l.ptr[1]) + first;
	float *y = at<float>(l.ptr[0]) + first;
	Sums s = rowSums(x, cols);
	float logSum = logOf(s.sum);
	for (i64 i = threadX(); i < cols; i += blockLen()) y[i] = (x[i] - s.top) - logSum;
}

KERNEL(256) log_softmax_grad_f32(Launch l) {
	SHARED float room[32];
	i64 cols = l.n[1], first = blockX() * cols;
	float *dx = at<float>(l.ptr[0]) + first;
	const float *dy = at<float>(l.ptr[1]) + first, *y = at<float>(l.ptr[2]) + first;
	float sum = 0;
	for (i64 i = threadX(); i < cols; i += blockLen()) sum += dy[i];
	sum = blockSum(sum, room);
	for (i64 i = threadX(); i < cols; i += blockLen()) {
		float g = fma(-sum, expOf(y[i]), dy[i]);
		dx[i] = l.n[2] ? dx[i] + g : g;
	}
}

// Cross entropy. ptr: loss, lse, logits, targets, and the workspace ptr[5] for
// a loss of each row.
KERNEL(256) cross_entropy_f32(Launch l) {
	SHARED float room[32];
	i64 row = blockX(), cols = l.n[1];
	const float *x = at<float>(l.ptr[2]) + row * cols;
	int target = at<int>(l.ptr[3])[row];
	Sums s = rowSums(x, cols);
	float logSum = logOf(s.sum), sum = 0;
	if (l.f[0] > 0) {
		for (i64 i = threadX(); i < cols; i += blockLen()) sum += x[i];
		sum = blockSum(sum, room);
	}
	if (threadX()) return;
	at<float>(l.ptr[1])[row] = s.top + logSum;
	float loss = 0;
	if (target != l.n[2]) {
		loss = notANumber;
		if (target >= 0 && target < cols) loss = (s.top - x[target]) + logSum + l.f[0] * (x[target] - sum / cols);
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
KERNEL(1024) cross_entropy_fold_f32(Launch l) {
	SHARED float room[32];
	float n = counted(at<int>(l.ptr[3]), l.n[0], l.n[2], room), sum = 0;
	for (i64 i = threadX(); i < l.n[0]; i += blockLen()) sum += at<float>(l.ptr[5])[i];
	sum = blockSum(sum, room);
	if (threadX() == 0) *at<float>(l.ptr[0]) = l.n[3] || n < 1 ? sum : sum / n;
}

// cross_entropy_scale puts dloss/count into the workspace ptr[5], with one
// block. ptr: dlogits, dloss, logits, lse, targets.
KERNEL(1024) cross_entropy_scale_f32(Launch l) {
	SHARED float room[32];
	float n = counted(at<int>(l.ptr[4]), l.n[0], l.n[3], room), dloss = *at<float>(l.ptr[1]);
	if (threadX() == 0) *at<float>(l.ptr[5]) = l.n[4] || n < 1 ? dloss : dloss / n;
}

KERNEL(256) cross_entropy_grad_f32(Launch l) {
	i64 row = blockX(), cols = l.n[1];
	float *dx = at<float>(l.ptr[0]) + row * cols;
	const float *x = at<float>(l.ptr[2]) + row * cols;
	float lse = at<float>(l.ptr[3])[row], scale = *at<float>(l.ptr[5]), share = l.f[0] / cols;
	int target = at<int>(l.ptr[4])[row];
	bool ignored = target == l.n[3], wrong = !ignored && (target < 0 || target >= cols);
	if (ignored && l.n[2]) return;
	for (i64 i = threadX(); i < cols; i += blockLen()) {
		float g = expOf(x[i] - lse) - share;
		if (i == target) g -= 1 - l.f[0];
		g = ignored ? 0 : wrong ? notANumber : g * scale;
		dx[i] = l.n[2] ? dx[i] + g : g;
	}
}
