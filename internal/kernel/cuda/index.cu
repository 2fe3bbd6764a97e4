#include "launch.cuh"

// Embedding: ptr y, w, index; n rows, cols, vocab.
KERNEL(256) embedding(Launch l) {
	i64 cols = l.n[1];
	Array y(l, 0), w(l, 1);
	const int *index = at<int>(l.ptr[2]);
	every<4>(l.n[0] * cols, cols % 4 == 0 && wide(l.ptr[0], l.ptr[1]), [&]<int K>(i64 i) {
		i64 row = i / cols, from = index[row];
		Pack<float, K> p;
	UNROLL
		for (int k = 0; k < K; k++) p.v[k] = notANumber;
		if (from >= 0 && from < l.n[2]) p = w.load<K>(from * cols + (i - row * cols));
		y.store<K>(i, p);
	});
}

// embedding_grad: a block for each row of dy and 256 columns. The block whose
// row is the first with its index adds all rows with that index, in their
// order; the others have nothing to do. ptr: dw, dy, index.
KERNEL(256) embedding_grad(Launch l) {
	SHARED int hits[256];
	SHARED int warpHits[8];
	i64 n = l.n[0], cols = l.n[1], first = blockX(), col = (i64)blockY() * 256 + threadX();
	const int *index = at<int>(l.ptr[2]);
	Array dw(l, 0), dy(l, 1);
	int row = index[first], lane = threadX() % 32, warp = threadX() / 32, before = 0;
	if (row < 0 || row >= l.n[2]) return;
	for (i64 i = threadX(); i < first; i += 256) before |= index[i] == row;
	if (__nvvm_bar0_or(before)) return;
	i64 to = row * cols + col;
	float sum = col < cols ? dw.get(to) : 0;
	for (i64 start = first; start < n; start += 256) {
		i64 i = start + threadX();
		bool hit = i < n && index[i] == row;
		u32 votes = __nvvm_vote_ballot_sync(~0u, hit);
		if (lane == 0) warpHits[warp] = __builtin_popcount(votes);
		barrier();
		int place = 0, count = 0;
		for (int w = 0; w < 8; w++) {
			if (w < warp) place += warpHits[w];
			count += warpHits[w];
		}
		if (hit) hits[place + __builtin_popcount(votes & ((1u << lane) - 1))] = threadX();
		barrier();
		if (col < cols)
			for (int k = 0; k < count; k++) sum = dw.rounded(sum + dy.get((start + hits[k]) * cols + col));
		barrier();
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
