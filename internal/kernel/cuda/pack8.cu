#include "launch.cuh"

// Numbers in 8 bits, as kernel.Pack8 has them: n[0] elements in blocks of 64,
// the scales first. Quotients are taken in double, as on the host, so that the
// bytes are the same.
const int block = 64;

DEV i64 blocksOf(i64 n) { return (n + block - 1) / block; }

// pack8: ptr dst, x. A warp packs a block, a lane two of its elements.
KERNEL(256) pack8(Launch l) {
	i64 n = l.n[0], b = globalThread() / 32, lane = threadX() % 32;
	if (b >= blocksOf(n)) return;
	float *scales = at<float>(l.ptr[0]), *x = at<float>(l.ptr[1]) + b * block;
	signed char *bytes = at<signed char>(l.ptr[0] + 4 * blocksOf(n)) + b * block;
	i64 left = n - b * block;
	float v[2], most = 0;
UNROLL
	for (int k = 0; k < 2; k++) {
		v[k] = lane + 32 * k < left ? x[lane + 32 * k] : 0;
		float a = absOf(v[k]);
		most = a > most || a != a ? a : most;
	}
	most = warpMax(most);
	const float largest = (double)greatest / 127 * (1 - 0x1p-23);
	float scale = most / 127;
	scale = scale > largest ? largest : scale;
	bool none = most - most != 0 || scale == 0;
	if (lane == 0) scales[b] = none ? most - most : scale;
UNROLL
	for (int k = 0; k < 2; k++) {
		if (lane + 32 * k >= left) continue;
		double q = none ? 1 : __builtin_rint((double)v[k] / (double)scale);
		bytes[lane + 32 * k] = (int)(q > 127 ? 127 : q < -127 ? -127 : q);
	}
}

// unpack8: ptr y, src.
KERNEL(256) unpack8(Launch l) {
	float *y = at<float>(l.ptr[0]), *scales = at<float>(l.ptr[1]);
	signed char *bytes = at<signed char>(l.ptr[1] + 4 * blocksOf(l.n[0]));
	every<1>(l.n[0], false, [&]<int K>(i64 i) { y[i] = bytes[i] * scales[i / block]; });
}
