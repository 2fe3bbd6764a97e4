package tensor

// LinearCrossEntropyIn is LinearCrossEntropy with so many bytes of logits at a
// time.
var LinearCrossEntropyIn = linearCrossEntropy
