// What the two sets of attention's functions share.
#pragma once
#include "launch.cuh"

// headNumber is that of the block's head among all of the batch's, of which a launch
// takes some, from number n[21] on.
DEV i64 headNumber(const Launch &l) { return l.n[21] + blockY(); }

// What a query sees of the keys.
struct Sight {
	int T, S;
	int ahead;       // query t sees keys up to t + ahead
	const int *mask; // of the batch; 0 for none

	DEV Sight(const Launch &l)
		: T((int)l.n[2]), S((int)l.n[3]), ahead(l.n[5] ? S - T : S),
		  mask(l.ptr[10] ? at<int>(l.ptr[10]) + headNumber(l) / l.n[1] * l.n[3] : 0) {}

	// visible is the number of keys that a query sees, from the first on.
	DEV int visible(int t) const {
		int n = t + 1 + ahead;
		return n < 0 ? 0 : n > S ? S : n;
	}
	DEV bool sees(int t, int key) const { return t < T && key < S && key <= t + ahead && (!mask || mask[key]); }
	// start is the first query that may see a key.
	DEV int start(int key) const { return key > ahead ? key - ahead : 0; }
	// all says whether queries from t on, up to t + m, see all n keys from key on.
	DEV bool all(int t, int m, int key, int n) const { return !mask && t + m <= T && key + n <= visible(t); }
};

// chance gives the numbers of the dropout of this head's probabilities.
DEV u64 chance(const Launch &l, const Sight &see, int t, int key) { return ((u64)headNumber(l) * see.T + t) * see.S + key; }
