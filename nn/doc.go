// Package nn builds models and updates them: layers, losses, optimizers and
// state files.
//
// # Models
//
// A Module is anything with parameters; a model is a struct of modules with a
// Forward of its own (see the example). A Builder makes the layers of one model:
// each parameter's initial values follow from the seed and its name alone, so
// that they do not depend on what else is made, nor on how many ranks make it.
// The families here are GPT2, BERT, ResNet and MoE; state files name their
// parameters as Hugging Face's and torchvision's models do.
//
// Two hooks let others act on a model without changing it: Hooks are called
// around every module, for profiles, and Around runs each block in place of a
// plain call, for recompute.
//
// # Updates
//
// An Optimizer applies a Rule to each parameter that has a gradient. Precision is
// the type in which a training computes, and what it does when numbers overflow;
// Cosine is the learning rate.
//
// # Parts of a model
//
// A rank of several may have a part of a model only: a box of each matrix
// (split.go), some of the experts (experts.go), some of the blocks (stage.go). A
// Builder with a Split makes this part, and a Parameter says what it is of the
// whole, so that state files know nothing of how a model was split.
package nn
