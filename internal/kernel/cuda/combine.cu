#include "launch.cuh"

template <class T> DEV T combined(T a, T b, i64 op) { return op != 2 ? a + b : b > a || b != b ? b : a; }

// combine: ptr dst, sources; n elements, sources, CombineOp. Where the sources are, threads
// read from shared memory: the code for each one by itself would be eight times as long.
KERNEL(256) combine(Launch l) {
	SHARED u64 from[8];
	SHARED int type[8];
	i64 sources = l.n[1], op = l.n[2];
	if (threadX() == 0) {
	UNROLL
		for (int s = 0; s < 8; s++) from[s] = l.ptr[1 + s], type[s] = l.type[1 + s];
	}
	barrier();
	u64 all = l.ptr[0];
	for (int s = 0; s < sources; s++) all |= from[s];
	if (l.type[0] == I32) {
		every<1>(l.n[0], false, [&]<int K>(i64 i) {
			int sum = at<int>(from[0])[i];
			for (int s = 1; s < sources; s++) sum = combined(sum, at<int>(from[s])[i], op);
			at<int>(l.ptr[0])[i] = sum;
		});
		return;
	}
	every<8>(l.n[0], wide(all), [&]<int K>(i64 i) {
		Pack<float, K> sum = Array(from[0], type[0]).load<K>(i);
		for (int s = 1; s < sources; s++) {
			Pack<float, K> x = Array(from[s], type[s]).load<K>(i);
		UNROLL
			for (int k = 0; k < K; k++) sum.v[k] = combined(sum.v[k], x.v[k], op);
		}
	UNROLL
		for (int k = 0; k < K; k++) sum.v[k] = op == 1 ? sum.v[k] / (float)sources : sum.v[k];
		Array(l, 0).store<K>(i, sum);
	});
}
