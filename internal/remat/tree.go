package remat

// tree holds for each stage the change of memory over it and its highest point
// above its start, so that peaks of ranges come in O(log n).
type tree struct {
	size int
	sum  []int64
	top  []int64 // highest point above the start of the range
}

const low = -1 << 60

func newTree(n int) *tree {
	t := &tree{size: 1}
	for t.size < n {
		t.size *= 2
	}
	t.sum, t.top = make([]int64, 2*t.size), make([]int64, 2*t.size)
	for i := range t.top {
		t.top[i] = low
	}
	return t
}

func (t *tree) set(i int, sum, top int64) {
	i += t.size
	if t.sum[i] == sum && t.top[i] == top {
		return
	}
	t.sum[i], t.top[i] = sum, top
	for i /= 2; i > 0; i /= 2 {
		l, r := 2*i, 2*i+1
		s, m := t.sum[l]+t.sum[r], max(t.top[l], t.sum[l]+t.top[r])
		if t.sum[i] == s && t.top[i] == m {
			return
		}
		t.sum[i], t.top[i] = s, m
	}
}

// peak is the highest point of all.
func (t *tree) peak() int64 { return t.top[1] }

// argmax is a stage that reaches the peak, the first.
func (t *tree) argmax() int {
	i := 1
	for i < t.size {
		i *= 2
		if t.top[i] < t.sum[i]+t.top[i+1] {
			i++
		}
	}
	return i - t.size
}

// over returns the first and the last stage whose highest point is above limit;
// the peak must be.
func (t *tree) over(limit int64) (first, last int) {
	i, sum := 1, int64(0)
	for i < t.size {
		i *= 2
		if sum+t.top[i] <= limit {
			sum += t.sum[i]
			i++
		}
	}
	j, sum := 1, int64(0)
	for j < t.size {
		j *= 2
		if right := sum + t.sum[j]; right+t.top[j+1] > limit {
			sum = right
			j++
		}
	}
	return i - t.size, j - t.size
}

// before is the memory at the start of stage i.
func (t *tree) before(i int) int64 {
	var sum int64
	for i += t.size; i > 1; i /= 2 {
		if i&1 == 1 {
			sum += t.sum[i-1]
		}
	}
	return sum
}

// maxOf is the highest point within stages [a, b].
func (t *tree) maxOf(a, b int) int64 {
	if a > b {
		return low
	}
	// left and right parts, combined in order
	ls, lm := int64(0), int64(low)
	rs, rm := int64(0), int64(low)
	l, r := a+t.size, b+1+t.size
	for l < r {
		if l&1 == 1 {
			lm = max(lm, ls+t.top[l])
			ls += t.sum[l]
			l++
		}
		if r&1 == 1 {
			r--
			rm = max(t.top[r], t.sum[r]+rm)
			rs += t.sum[r]
		}
		l, r = l/2, r/2
	}
	return t.before(a) + max(lm, ls+rm)
}
