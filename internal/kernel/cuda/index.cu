#include "launch.cuh"

// Embedding: ptr y, w, index; n rows, cols, vocab.
KERNEL(256) embedding_f32(Launch l) {
	i64 cols = l.n[1];
	float *y = at<float>(l.ptr[0]);
	const float *w = at<float>(l.ptr[1]);
	const int *index = at<int>(l.ptr[2]);
	every<4>(l.n[0] * cols, cols % 4 == 0 && wide(l.ptr[0], l.ptr[1]), [&]<int K>(i64 i) {
		i64 row = i / cols, from = index[row];
		Pack<float, K> p;
	UNROLL
		for (int k = 0; k < K; k++) p.v[k] = notANumber;
		if (from >= 0 && from < l.n[2]) p = load<K>(w + from * cols + (i - row * cols));
		store<K>(y + i, p);
	});
}

// embedding_grad: a block for each row of dy and 256 columns. The block whose
// row is the first with its index adds all rows with that index, in their
// order; the others have nothing to do. ptr: dw, dy, index.
KERNEL(256) embedding_grad_f32(Launch l) {
	SHARED int hits[256];
	SHARED int warpHits[8];
	i64 n = l.n[0], cols = l.n[1], first = blockX(), col = (i64)blockY() * 256 + threadX();
	const int *index = at<int>(l.ptr[2]);
	const float *dy = at<float>(l.ptr[1]);
	int row = index[first], lane = threadX() % 32, warp = threadX() / 32, before = 0;
	if (row < 0 || row >= l.n[2]) return;
	for (i64 i = threadX(); i < first; i += 256) before |= index[i] == row;
	if (__nvvm_bar0_or(before)) return;
	float *to = at<float>(l.ptr[0]) + row * cols + col;
	float sum = col < cols ? *to : 0;
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
			for (int k = 0; k < count; k++) sum += dy[(start + hits[k]) * cols + col];
		barrier();
	}
	if (col < cols) *to = sum;
}

// Gather: ptr y, x, index; n rows, cols, k.
KERNEL(256) gather_f32(Launch l) {
	float *y = at<float>(l.ptr[0]);
	const float *x = at<float>(l.ptr[1]);
	const int *index = at<int>(l.ptr[2]);
	every<1>(l.n[0] * l.n[2], false, [&]<int K>(i64 i) {
		i64 c = index[i];
		y[i] = c >= 0 && c < l.n[1] ? x[i / l.n[2] * l.n[1] + c] : notANumber;
	});
}

// gather_grad: a thread for each row, so that additions have their order.
KERNEL(256) gather_grad_f32(Launch l) {
	float *dx = at<float>(l.ptr[0]);
	const float *dy = at<float>(l.ptr[1]);
	const int *index = at<int>(l.ptr[2]);
	every<1>(l.n[0], false, [&]<int K>(i64 row) {
		for (i64 i = row * l.n[2]; i < (row + 1) * l.n[2]; i++) {
			i64 c = index[i];
			if (c >= 0 && c < l.n[1]) dx[row * l.n[1] + c] += dy[i];
		}
	});
}
