#include "launch.cuh"

// AdamW: ptr w, g, m, v, gradScale; f as kernel.AdamW derives them.
KERNEL(256) adamw(Launch l) {
	float *w = at<float>(l.ptr[0]), *m = at<float>(l.ptr[2]), *v = at<float>(l.ptr[3]);
	Array g(l, 1);
	float grad = l.ptr[4] ? *at<float>(l.ptr[4]) : 1;
	if (grad != grad) return;
	every<4>(l.n[0], wide(l.ptr[0], l.ptr[1], l.ptr[2], l.ptr[3]), [&]<int K>(i64 i) {
		Pack<float, K> pw = load<K>(w + i), pg = g.load<K>(i), pm = load<K>(m + i), pv = load<K>(v + i);
	UNROLL
		for (int k = 0; k < K; k++) {
			float d = pg.v[k] * grad;
			pm.v[k] = l.f[1] * pm.v[k] + l.f[2] * d;
			pv.v[k] = l.f[3] * pv.v[k] + l.f[4] * d * d;
			pw.v[k] = pw.v[k] * l.f[0] - l.f[5] * pm.v[k] / (rootOf(pv.v[k]) * l.f[6] + l.f[7]);
		}
		store<K>(w + i, pw);
		store<K>(m + i, pm);
		store<K>(v + i, pv);
	});
}

// The rules of kernel.UpdateRule, in its order. s are the rule's states, f its
// numbers.
template <int rule> DEV float updated(float w, float d, float *s, const float *f) {
	float lr = f[5];
	switch (rule) {
	case 0: return w * f[0] - lr * d;
	case 1:
		s[0] = f[2] * s[0] + d;
		return w * f[0] - lr * s[0];
	case 2:
		s[0] = f[2] * s[0] + d;
		return w * f[0] - lr * (d + f[2] * s[0]);
	case 3:
	case 4: {
		s[0] = f[2] * s[0] + (1 - f[2]) * d;
		s[1] = f[3] * s[1] + f[4] * d * d;
		float v = s[1];
		if (rule == 4) v = s[2] = s[1] > s[2] || s[1] != s[1] ? s[1] : s[2];
		return w * f[0] - lr * s[0] / (rootOf(v) * f[6] + f[7]);
	}
	case 5:
		s[0] += d * d;
		return w * f[0] - lr * d / (rootOf(s[0]) + f[7]);
	default:
		s[0] = f[3] * s[0] + f[4] * d * d;
		s[1] = f[2] * s[1] + d / (rootOf(s[0]) + f[7]);
		return w * f[0] - lr * s[1];
	}
}

template <int rule, int states> DEV void update(const Launch &l) {
	float *w = at<float>(l.ptr[0]);
	Array g(l, 1);
	float grad = l.ptr[2] ? *at<float>(l.ptr[2]) : 1;
	if (grad != grad) return;
	float f[8];
UNROLL
	for (int i = 0; i < 8; i++) f[i] = l.f[i];
	every<1>(l.n[0], false, [&]<int K>(i64 i) {
		float s[3] = {};
	UNROLL
		for (int j = 0; j < states; j++) s[j] = at<float>(l.ptr[3 + j])[i];
		w[i] = updated<rule>(w[i], g.get(i) * grad + f[1] * w[i], s, f);
	UNROLL
		for (int j = 0; j < states; j++) at<float>(l.ptr[3 + j])[i] = s[j];
	});
}

KERNEL(256) update(Launch l) {
	switch (l.n[1]) {
	case 0: return update<0, 0>(l);
	case 1: return update<1, 1>(l);
	case 2: return update<2, 1>(l);
	case 3: return update<3, 2>(l);
	case 4: return update<4, 3>(l);
	case 5: return update<5, 1>(l);
	default: return update<6, 2>(l);
	}
}
