#include "launch.cuh"

// Embedding: ptr y, w, index; n rows, cols, vocab.
// embedding: n rows of y, columns, rows of w, which of the table's is its first,
// and how many the table has. ptr: y, w, index.
KERNEL(256) embedding(Launch l) {
	i64 cols = l.n[1];
	Array y(l, 0), w(l, 1);
	const int *index = at<int>(l.ptr[2]);
	every<8>(l.n[0] * cols, cols % 8 == 0 && wide(l.ptr[0], l.ptr[1]), [&]<int K>(i64 i) {
		i64 row = i / cols, number = index[row], from = number - l.n[3];
		Pack<float, K> p;
	UNROLL
		for (int k = 0; k < K; k++) p.v[k] = number >= 0 && number < l.n[4] ? 0 : notANumber;
		if (number >= 0 && from >= 0 && from < l.n[2]) p = w.load<K>(from * cols + (i - row * cols));
		y.store<K>(i, p);
	});
}

// equals says with a bit each which of the numbers from i to i + 3, below n,
// are row.
DEV int equals(const int *index, i64 i, i64 n, int row) {
	if (i + 4 <= n && ((u64)(index + i) & 15) == 0) {
		Pack<int, 4> p = load<4>(index + i);
		return (p.v[0] == row) | (p.v[1] == row) << 1 | (p.v[2] == row) << 2 | (p.v[3] == row) << 3;
	}
	int found = 0;
	for (int k = 0; k < 4; k++) found |= (i + k < n && index[i + k] == row) << k;
	return found;
}

// The gradient of an embedding. n: rows of dy, columns, rows of dw, which of the
// table's is its first. ptr: dw, dy, index, and two bytes for each row
// of dy in the workspace ptr[3]: whether a row after it has its index, and, n
// further on, whether one before it has.

// embedding_links finds the next row with the index of each: a warp for each.
// What comes before is 0 at the start.
KERNEL(256) embedding_links(Launch l) {
	i64 i = globalThread() / 32, n = l.n[0];
	if (i >= n) return;
	const int *index = at<int>(l.ptr[2]);
	int row = index[i], lane = threadX() % 32;
	for (i64 start = i & ~3ll; start < n; start += 128) {
		i64 mine = start + 4 * lane;
		int found = equals(index, mine, n, row);
		if (mine <= i) found &= ~((2 << (i - mine)) - 1); // after i
		u32 votes = ballot(found != 0);
		if (!votes) continue;
		if (lane == __builtin_ctz(votes)) {
			at<char>(l.ptr[3])[i] = 1;
			at<char>(l.ptr[3])[n + mine + __builtin_ctz(found)] = 1;
		}
		return;
	}
	if (lane == 0) at<char>(l.ptr[3])[i] = 0;
}

// embedding_grad: a block for each row of dy and 256 columns. The block whose
// row is the first with its index adds all rows with that index, in their
// order; the others have nothing to do.
KERNEL(256) embedding_grad(Launch l) {
	SHARED int hits[1024];
	SHARED int warpHits[8];
	i64 n = l.n[0], cols = l.n[1], first = blockX(), col = (i64)blockY() * 256 + threadX();
	const int *index = at<int>(l.ptr[2]);
	Array dw(l, 0), dy(l, 1);
	int row = index[first], lane = threadX() % 32, warp = threadX() / 32;
	i64 own = row - l.n[3]; // in dw
	if (row < 0 || own < 0 || own >= l.n[2] || at<char>(l.ptr[3])[n + first]) return;
	i64 to = own * cols + col;
	float sum = col < cols ? dw.get(to) : 0;
	if (!at<char>(l.ptr[3])[first]) {
		if (col < cols) dw.set(to, sum + dy.get(first * cols + col));
		return;
	}
	for (i64 start = first & ~3ll; start < n; start += 1024) {
		int found = equals(index, start + 4 * threadX(), n, row);
		if (!anyOf(found)) continue;
		int place = 0, count = 0;
	UNROLL
		for (int k = 0; k < 4; k++) place += __builtin_popcount(ballot(found >> k & 1) & ((1u << lane) - 1));
		if (lane == 31) warpHits[warp] = place + __builtin_popcount(found);
		barrier();
		for (int w = 0; w < 8; w++) {
			if (w < warp) place += warpHits[w];
			count += warpHits[w];
		}
	UNROLL
		for (int k = 0; k < 4; k++)
			if (found >> k & 1) hits[place++] = 4 * threadX() + k;
		barrier();
		if (col < cols)
#pragma unroll 4
			for (int k = 0; k < count; k++) sum = dw.rounded(sum + dy.get((start + hits[k]) * cols + col));
	}
	if (col < cols) dw.set(to, sum);
}

// Gather: ptr y, x, index; n rows, cols, k.
KERNEL(256) gather(Launch l) {
	Array y(l, 0), x(l, 1);
	const int *index = at<int>(l.ptr[2]);
	every<1>(l.n[0] * l.n[2], false, [&]<int K>(i64 i) {
		i64 c = index[i];
		y.set(i, c >= 0 && c < l.n[1] ? x.get(i / l.n[2] * l.n[1] + c) : notANumber);
	});
}

// gather_grad: a thread for each row, so that additions have their order.
KERNEL(256) gather_grad(Launch l) {
	Array dx(l, 0), dy(l, 1);
	const int *index = at<int>(l.ptr[2]);
	every<1>(l.n[0], false, [&]<int K>(i64 row) {
		for (i64 i = row * l.n[2]; i < (row + 1) * l.n[2]; i++) {
			i64 c = index[i];
			if (c >= 0 && c < l.n[1]) dx.put(row * l.n[1] + c, dy.get(i), true);
		}
	});
}
