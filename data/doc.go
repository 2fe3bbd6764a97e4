// Package data feeds training: it turns files into tokens and samples, and these
// into shuffled batches, in an order that a seed fixes and that resumes exactly.
// Sets larger than memory are read in place.
//
// Samples of one shape are a Source: arrays in files (Open), images and their
// labels, tiles of large images, packed rows of tokens. A Loader reads several
// sources at the same places ahead of the training, in an Order. Text is a Corpus
// of documents under a Tokenizer: Batches gives its windows of one length, Masked
// the same with words hidden. Sequences differ in length; ByLength puts those of
// similar length into a batch, and Packed lays several into a row.
//
// Whatever gives batches has a place, a few numbers, which is all that a
// checkpoint keeps of it: which sample comes when is computed from the seed and
// never stored (order.go, permutation.go).
package data
