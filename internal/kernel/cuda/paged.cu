#include "launch.cuh"

// Keys and values in pages: see kernel/attention_paged.go. ptr: QKV, O, Table,
// Spans; n: texts, rows, heads, D, tokens of a page, columns of the table, and
// the offset of the layer in a page. All float32.

// Token is a new token: its text, and its position there.
struct Token {
	i64 text, position;

	DEV Token(const Launch &l, i64 row) : text(0), position(0) {
		const int *spans = at<int>(l.ptr[3]);
		while (text + 1 < l.n[0] && row >= spans[3 * text] + spans[3 * text + 1]) text++;
		position = spans[3 * text + 2] + row - spans[3 * text];
	}

	// place is where the text's token at a position has its keys of a head.
	DEV float *place(const Launch &l, i64 position, i64 head) const {
		u64 page = at<u64>(l.ptr[2])[text * l.n[5] + position / l.n[4]];
		return at<float>(page) + l.n[6] + (head * l.n[4] + position % l.n[4]) * l.n[3];
	}
};

// paged_write: a block for each row.
KERNEL(256) paged_write(Launch l) {
	i64 row = blockX(), heads = l.n[2], D = l.n[3], values = heads * l.n[4] * D;
	Token token(l, row);
	const float *k = at<float>(l.ptr[0]) + (3 * row + 1) * heads * D, *v = k + heads * D;
	for (i64 i = threadX(); i < heads * D; i += blockLen()) {
		float *to = token.place(l, token.position, i / D) + i % D;
		to[0] = k[i];
		to[values] = v[i];
	}
}

// paged_attention: a warp for each head of a row, the lanes along D, of at most
// 256 elements.
KERNEL(256) paged_attention(Launch l) {
	i64 unit = globalThread() / 32, heads = l.n[2], row = unit / heads, head = unit % heads, values = heads * l.n[4] * l.n[3];
	if (row >= l.n[1]) return;
	int lane = threadX() % 32, D = (int)l.n[3];
	Token token(l, row);
	const float *q = at<float>(l.ptr[0]) + (3 * row * heads + head) * D;
	float *o = at<float>(l.ptr[1]) + (row * heads + head) * D;
	float query[8], out[8], top = -infinity, sum = 0;
UNROLL
	for (int j = 0; j < 8; j++) query[j] = lane + 32 * j < D ? q[lane + 32 * j] * l.f[0] : 0, out[j] = 0;
	for (i64 p = 0; p <= token.position; p++) {
		const float *k = token.place(l, p, head), *v = k + values;
		float s = 0;
	UNROLL
		for (int j = 0; j < 8; j++)
			if (lane + 32 * j < D) s = fma(query[j], k[lane + 32 * j], s);
		s = warpSum(s);
		float most = s > top ? s : top, shrink = expOf(top - most), x = expOf(s - most);
		sum = sum * shrink + x, top = most;
	UNROLL
		for (int j = 0; j < 8; j++)
			if (lane + 32 * j < D) out[j] = fma(x, v[lane + 32 * j], out[j] * shrink);
	}
UNROLL
	for (int j = 0; j < 8; j++)
		if (lane + 32 * j < D) o[lane + 32 * j] = out[j] / sum;
}
