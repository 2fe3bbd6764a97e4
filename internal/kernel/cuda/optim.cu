#include "launch.cuh"

// A member's arrays are the gradients, the weights and the rule's states; ptr[0]
// is the factor of the gradients, n[1] the length of chunks. f is as the Go
// functions derive it.

// updates calls f(w, d, s) for all elements of the block's chunk: a weight, its
// gradient with the factor, and its states, of which f changes all but d.
template <int states, class F> DEV void updates(const Launch &l, const Members &m, F f) {
	float grad = l.ptr[0] ? *at<float>(l.ptr[0]) : 1;
	if (grad != grad) return;
	Chunk c(m, l.n[1]);
	Array g = Array(m.of[c.member].ptr[0], m.of[c.member].type).from(c.from);
	float *a[1 + states];
	u64 all = g.address;
UNROLL
	for (int j = 0; j <= states; j++) {
		a[j] = at<float>(m.of[c.member].ptr[1 + j]) + c.from;
		all |= m.of[c.member].ptr[1 + j];
	}
	sweep<4>(c.n, threadX(), blockLen(), wide(all), [&]<int K>(i64 i) {
		Pack<float, K> d = g.load<K>(i), p[1 + states];
	UNROLL
		for (int j = 0; j <= states; j++) p[j] = load<K>(a[j] + i);
	UNROLL
		for (int k = 0; k < K; k++) {
			float s[3];
		UNROLL
			for (int j = 0; j < states; j++) s[j] = p[1 + j].v[k];
			f(p[0].v[k], d.v[k] * grad, s);
		UNROLL
			for (int j = 0; j < states; j++) p[1 + j].v[k] = s[j];
		}
	UNROLL
		for (int j = 0; j <= states; j++) store<K>(a[j] + i, p[j]);
	});
}

KERNEL(256) adamw(Launch l, Members m) {
	updates<2>(l, m, [&](float &w, float d, float *s) {
		s[0] = l.f[1] * s[0] + l.f[2] * d;
		s[1] = l.f[3] * s[1] + l.f[4] * d * d;
		w = w * l.f[0] - l.f[5] * s[0] / (rootOf(s[1]) * l.f[6] + l.f[7]);
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

template <int rule, int states> DEV void update(const Launch &l, const Members &m) {
	updates<states>(l, m, [&](float &w, float d, float *s) { w = updated<rule>(w, d + l.f[1] * w, s, l.f); });
}

// n[0] is the rule.
KERNEL(256) update(Launch l, Members m) {
	switch (l.n[0]) {
	case 0: return update<0, 0>(l, m);
	case 1: return update<1, 1>(l, m);
	case 2: return update<2, 1>(l, m);
	case 3: return update<3, 2>(l, m);
	case 4: return update<4, 3>(l, m);
	case 5: return update<5, 1>(l, m);
	default: return update<6, 2>(l, m);
	}
}
