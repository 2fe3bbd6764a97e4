#include "launch.cuh"

// Sums over dimensions (SumTo). Go has split the nest: n[0] kept dimensions
// come first, then n[1] reduced ones, each as size, stride of the destination,
// stride of the source at n[6 + 3d]. n[2] says accumulate. The n[5] terms of
// each of n[4] results are cut into n[3] parts; with more than one, sums of
// parts go to the workspace ptr[2], one set of results after the other, and
// sum_fold adds them up.

// resultAt gives the offsets of a result.
DEV void resultAt(const Launch &l, u32 result, i64 &to, i64 &from) {
	to = from = 0;
UNROLL
	for (int d = 5; d >= 0; d--) {
		if (d >= l.n[0]) continue;
		u32 index = result;
		if (d > 0) {
			u32 size = (u32)l.n[6 + 3 * d];
			result = index / size;
			index -= result * size;
		}
		to += index * l.n[7 + 3 * d];
		from += index * l.n[8 + 3 * d];
	}
}

// termAt gives the offset of a term from its result.
DEV i64 termAt(const Launch &l, i64 term) {
	i64 from = 0;
	u32 left = (u32)term;
UNROLL
	for (int d = 5; d >= 0; d--) {
		if (d < l.n[0] || d >= l.n[0] + l.n[1]) continue;
		u32 index = left;
		if (d > l.n[0]) {
			u32 size = (u32)l.n[6 + 3 * d];
			left = index / size;
			index -= left * size;
		}
		from += index * l.n[8 + 3 * d];
	}
	return from;
}

DEV i64 partStart(const Launch &l, i64 part) { return l.n[5] * part / l.n[3]; }

DEV void putSum(const Launch &l, u32 result, i64 part, i64 to, float sum) {
	if (l.n[3] > 1) {
		at<float>(l.ptr[2])[part * l.n[4] + result] = sum;
		return;
	}
	Array(l, 0).put(to, sum, l.n[2]);
}

// sum_rows: a warp for each part of each result, whose terms lie side by side.
KERNEL(256) sum_rows(Launch l) {
	i64 unit = globalThread() / 32;
	if (unit >= l.n[4] * l.n[3]) return;
	u32 result = (u32)(unit % l.n[4]);
	i64 part = unit / l.n[4], to, from;
	resultAt(l, result, to, from);
	Array src = Array(l, 1).from(from);
	float sum = 0;
	for (i64 t = partStart(l, part) + threadX() % 32; t < partStart(l, part + 1); t += 32) sum += src.get(termAt(l, t));
	sum = warpSum(sum);
	if (threadX() % 32 == 0) putSum(l, result, part, to, sum);
}

// sum_columns: a block for each part of 32 results, which lie side by side;
// its 8 warps share the terms.
KERNEL(256) sum_columns(Launch l) {
	SHARED float room[8][32];
	int lane = threadX() % 32, warp = threadX() / 32;
	i64 wanted = (i64)blockX() * 32 + lane, part = blockY(), to = 0, from;
	u32 result = (u32)wanted;
	float sum = 0;
	if (wanted < l.n[4]) {
		resultAt(l, result, to, from);
		Array src = Array(l, 1).from(from);
		for (i64 t = partStart(l, part) + warp; t < partStart(l, part + 1); t += 8) sum += src.get(termAt(l, t));
	}
	room[warp][lane] = sum;
	barrier();
	if (warp > 0 || wanted >= l.n[4]) return;
	sum = 0;
	for (int i = 0; i < 8; i++) sum += room[i][lane];
	putSum(l, result, part, to, sum);
}

// dense_columns: the sums of the columns of a matrix whose rows begin at
// multiples of 16 bytes. A block has a part of the rows of 256 columns, n[3] parts
// of n[7] rows each but perhaps the last, and each of its warps every eighth of
// them, four at a time. n[6] is the number of columns, n[11] the distance of rows.
template <class X> DEV void denseColumns(const Launch &l, X src) {
	SHARED float room[8][256];
	int lane = threadX() % 32, warp = threadX() / 32;
	i64 cols = l.n[6], c = (i64)blockX() * 256 + 8 * lane, part = blockY();
	i64 end = part + 1 < l.n[3] ? l.n[7] * (part + 1) : l.n[5];
	Pack<float, 8> sum = {};
	if (c < cols)
		for (i64 r = l.n[7] * part + warp; r < end; r += 32) {
			Pack<float, 8> x[4];
		UNROLL
			for (int j = 0; j < 4; j++) x[j] = src.template load<8>((r + 8 * j < end ? r + 8 * j : r) * l.n[11] + c);
		UNROLL
			for (int j = 0; j < 4; j++)
			UNROLL
				for (int k = 0; k < 8; k++) sum.v[k] += r + 8 * j < end ? x[j].v[k] : 0;
		}
	store<8>(&room[warp][8 * lane], sum);
	barrier();
	c = (i64)blockX() * 256 + threadX();
	if (c >= cols) return;
	float all = 0;
	for (int i = 0; i < 8; i++) all += room[i][threadX()];
	putSum(l, (u32)c, part, c, all);
}

KERNEL(256, 4) dense_columns(Launch l) {
	Array src(l, 1);
	if (src.type == BF16) return denseColumns(l, src.as<BF16>());
	denseColumns(l, src);
}

// column_fold adds up the parts of dense_columns: a block for 32 columns, each
// warp every 32nd part.
KERNEL(1024) column_fold(Launch l) {
	SHARED float room[32][32];
	int lane = threadX() % 32, warp = threadX() / 32;
	i64 cols = l.n[4], c = (i64)blockX() * 32 + lane;
	const float *work = at<float>(l.ptr[2]) + c;
	room[warp][lane] = c < cols ? sumOf(warp, l.n[3], 32, [=](i64 p) { return work[p * cols]; }) : 0;
	barrier();
	if (warp > 0 || c >= cols) return;
	float sum = 0;
UNROLL
	for (int i = 0; i < 32; i++) sum += room[i][lane];
	Array(l, 0).put(c, sum, l.n[2]);
}

// sum_fold adds up the parts: a warp for each result.
KERNEL(256) sum_fold(Launch l) {
	i64 result = globalThread() / 32, to, from;
	if (result >= l.n[4]) return;
	resultAt(l, (u32)result, to, from);
	const float *work = at<float>(l.ptr[2]) + result;
	float sum = warpSum(sumOf(threadX() % 32, l.n[3], 32, [=](i64 p) { return work[p * l.n[4]]; }));
	if (threadX() % 32) return;
	Array(l, 0).put(to, sum, l.n[2]);
}

// squaresOf is a thread's part of Σ x² over n elements.
template <class X> DEV float squaresOf(X x, i64 n) {
	i64 whole = wide(x.address) ? n / 8 * 8 : 0;
	float sum = 0;
#pragma unroll 4
	for (i64 i = threadX() * 8; i < whole; i += 256 * 8) {
		Pack<float, 8> p = x.template load<8>(i);
	UNROLL
		for (int k = 0; k < 8; k++) sum = fma(p.v[k], p.v[k], sum);
	}
	for (i64 i = whole + threadX(); i < n; i += 256) {
		float v = x.template load<1>(i).v[0];
		sum = fma(v, v, sum);
	}
	return sum;
}

// sum_squares leaves a sum of each chunk of n[1] elements in the workspace
// ptr[1].
KERNEL(256) sum_squares(Launch l, Members m) {
	SHARED float room[32];
	Chunk c(m, l.n[1]);
	Array x = Array(m.of[c.member].ptr[0], m.of[c.member].type).from(c.from);
	float sum = x.type == F32 ? squaresOf(x.as<F32>(), c.n) : x.type == BF16 ? squaresOf(x.as<BF16>(), c.n) : squaresOf(x, c.n);
	sum = blockSum(sum, room);
	if (threadX() == 0) at<float>(l.ptr[1])[blockX()] = sum;
}

// sum_squares_fold adds up n[2] of them, with one block; n[0] says accumulate.
KERNEL(1024) sum_squares_fold(Launch l) {
	SHARED float room[32];
	float sum = 0, *to = at<float>(l.ptr[0]);
	for (i64 i = threadX(); i < l.n[2]; i += blockLen()) sum += at<float>(l.ptr[1])[i];
	sum = blockSum(sum, room);
	if (threadX() == 0) *to = l.n[0] ? *to + sum : sum;
}

KERNEL(32) clip_scale(Launch l) {
	if (threadX()) return;
	float *scale = at<float>(l.ptr[0]), *norm = at<float>(l.ptr[1]);
	*norm = rootOf(*at<float>(l.ptr[2]));
	float s = l.f[0] / (*norm + 1e-6f);
	*scale = l.f[0] <= 0 || s > 1 ? 1 : s;
}

// cum_sum: a warp for each row, 32 elements at a time.
KERNEL(256) cum_sum(Launch l) {
	i64 row = globalThread() / 32, cols = l.n[1];
	if (row >= l.n[0]) return;
	int lane = threadX() % 32;
	Array y = Array(l, 0).from(row * cols), x = Array(l, 1).from(row * cols);
	double before = 0;
	for (i64 first = 0; first < cols; first += 32) {
		i64 i = first + lane, where = l.n[2] ? cols - 1 - i : i;
		double sum = i < cols ? x.get(where) : 0;
		for (int step = 1; step < 32; step *= 2) {
			u64 bits = __builtin_bit_cast(u64, sum);
			u32 low = shuffleUp((int)bits, step), high = shuffleUp((int)(bits >> 32), step);
			double other = __builtin_bit_cast(double, (u64)high << 32 | low);
			if (lane >= step) sum += other;
		}
		sum += before;
		u64 bits = __builtin_bit_cast(u64, sum);
		u32 low = shuffleFrom((int)bits, 31), high = shuffleFrom((int)(bits >> 32), 31);
		before = __builtin_bit_cast(double, (u64)high << 32 | low);
		if (i < cols) y.put(where, (float)sum, l.n[3]);
	}
}

// Order of elements for top_k: NaN is greatest, of equals the first.
DEV u64 orderOf(float x, i64 index) {
	u32 bits = __builtin_bit_cast(u32, x == 0 ? 0.0f : x);
	u32 key = x != x ? ~0u : bits >> 31 ? ~bits : bits | 1u << 31;
	return (u64)key << 32 | (~0u - (u32)index);
}

// top_k: a warp for each row finds the greatest below the one before.
KERNEL(256) top_k(Launch l) {
	i64 row = globalThread() / 32, cols = l.n[1], k = l.n[2];
	if (row >= l.n[0]) return;
	Array x = Array(l, 2).from(row * cols);
	u64 last = ~0ull;
	for (i64 j = 0; j < k; j++) {
		u64 best = 0;
		for (i64 i = threadX() % 32; i < cols; i += 32) {
			u64 o = orderOf(x.get(i), i);
			if (o > best && (o < last || j == 0)) best = o;
		}
		for (int i = 16; i > 0; i /= 2) {
			u32 low = shuffle((int)best, i), high = shuffle((int)(best >> 32), i);
			u64 other = (u64)high << 32 | low;
			if (other > best) best = other;
		}
		last = best;
		if (threadX() % 32 == 0) {
			u32 index = ~0u - (u32)best;
			Array(l, 0).set(row * k + j, x.get(index));
			at<int>(l.ptr[1])[row * k + j] = (int)index;
		}
	}
}
