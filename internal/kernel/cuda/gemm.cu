#include "launch.cuh"

// Matrix products where cuBLASLt is missing, or has no algorithm: a block of
// 16×16 threads computes 64×64 elements of C, each thread 4×4. ptr: A, B, C,
// bias; n as kernel.MatMul stores them.
KERNEL(256) matmul_f32(Launch l) {
	const int tile = 64, depth = 16;
	SHARED float as[depth][tile + 4], bs[depth][tile + 4];
	i64 M = l.n[0], N = l.n[1], K = l.n[2], ldc = l.n[5], batch = blockZ();
	i64 rowA = l.n[10] ? 1 : l.n[3], colA = l.n[10] ? l.n[3] : 1, rowB = l.n[11] ? 1 : l.n[4], colB = l.n[11] ? l.n[4] : 1;
	const float *a = at<float>(l.ptr[0]) + batch * l.n[7], *b = at<float>(l.ptr[1]) + batch * l.n[8];
	float *c = at<float>(l.ptr[2]) + batch * l.n[9];
	int tx = threadX() % 16, ty = threadX() / 16;
	i64 row0 = (i64)blockY() * tile, col0 = (i64)blockX() * tile;
	float sum[4][4] = {};
	for (i64 k0 = 0; k0 < K; k0 += depth) {
		for (int e = threadX(); e < tile * depth; e += 256) {
			// the threads of a warp go along the dimension that is dense
			int i = colA == 1 ? e / depth : e % tile, k = colA == 1 ? e % depth : e / tile;
			as[k][i] = row0 + i < M && k0 + k < K ? a[(row0 + i) * rowA + (k0 + k) * colA] : 0;
			int j = colB == 1 ? e % tile : e / depth, q = colB == 1 ? e / tile : e % depth;
			bs[q][j] = col0 + j < N && k0 + q < K ? b[(k0 + q) * rowB + (col0 + j) * colB] : 0;
		}
		barrier();
	UNROLL
		for (int k = 0; k < depth; k++) {
			Pack<float, 4> x = load<4>(&as[k][ty * 4]), y = load<4>(&bs[k][tx * 4]);
		UNROLL
			for (int i = 0; i < 4; i++)
			UNROLL
				for (int j = 0; j < 4; j++) sum[i][j] = fma(x.v[i], y.v[j], sum[i][j]);
		}
		barrier();
	}
UNROLL
	for (int i = 0; i < 4; i++)
	UNROLL
		for (int j = 0; j < 4; j++) {
			i64 row = row0 + ty * 4 + i, col = col0 + tx * 4 + j;
			if (row >= M || col >= N) continue;
			float v = sum[i][j];
			if (l.ptr[3]) v += at<float>(l.ptr[3])[col];
			float *to = c + row * ldc + col;
			*to = l.n[12] ? *to + v : v;
		}
}
