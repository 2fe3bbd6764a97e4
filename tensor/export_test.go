package tensor

// LinearCrossEntropyIn is LinearCrossEntropyAcross, with logits of at most most
// bytes at a time.
func LinearCrossEntropyIn(x, w, bias, targets *Tensor, p CrossEntropyParams, part Part, a Across, most int) *Tensor {
	return linearCrossEntropy(x, w, bias, targets, &head{p: p, of: part, across: a}, most)
}
