// Package tensor is n-dimensional arrays with reverse-mode gradients whose
// saved values live exactly as long as backward needs them.
//
// # Ownership
//
// A *Tensor is a handle: one owner, released once. Every function that
// returns a tensor gives its caller a new handle; Retain gives another one on
// the same memory; Release ends one. The memory goes back to the allocator
// with the last handle:
//
//	storage.refs == handles on it (the program's, the tape's, the gradients')
//
// The runtime knows all handles that are not released, in the order of their
// creation. So a step that fails gives back all it made (Mark, Rewind), and a
// test finds what was forgotten (Live). Scope releases for a function what it
// made and does not return.
//
// # The tape
//
// An operation on a tensor that needs gradients makes a node: the edges to
// its inputs' gradients, what backward needs (saved values), and a function.
// Nodes are numbered; backward runs them from the highest number down, so
// that a node runs when all who used its result have run. Then its saved
// values go, at once, unless the graph is kept for another backward
// (BackwardRetain). A node is held by its result's handles and by the nodes
// that use it; a result that nobody needs takes its whole past with it.
//
// Gradients are written where they are to be: the first user of a value
// creates its gradient, the next adds into it (kernels take accumulate), and
// where a gradient is the same as the result's (addition, reshape) the memory
// is shared until somebody has to write.
//
// Of a backward pass the products that give gradients of weights can be put off
// (BackwardDeferring), since nothing in it waits for them.
//
// # What is saved
//
// A value is saved in one of four ways:
//
//   - as a handle, which is the plain case;
//   - by its recipe: results of normalisations, GELU, ReLU and SiLU, and casts of
//     parameters, are cheap to make again from what their own node saves, so that
//     a consumer saves the node instead of the value, and nothing is kept twice
//     (those of a batch normalisation are made again once for all who read them),
//     unless a Schedule holds them;
//   - packed by the Saver in force, a hook for programs (Checkpoint is one);
//   - under a Schedule, by the home of its storage, which keeps it, makes it again
//     or fetches it from outside the device, as a planner has chosen from a
//     Record of the program (wait.go).
//
// A saved value remembers its storage's version. An operation in place
// between save and use is found and named.
//
// Random choices (Dropout) are not saved at all: they follow from a seed and a
// count, which a checkpoint sets back for its second run.
//
// # Mixed precision
//
// Tensors may be of float32, bfloat16 or float16 (DType). Every operation takes
// each of them, computes in float32 and rounds its result once; operands of two
// types give float32. Under Runtime.Autocast(d, f) the operations fall into
// three families:
//
//   - Linear, MatMul, Attention, SelfAttention and Conv2D compute in d: their
//     operands are cast before the operation is recorded, so that what is saved
//     has 16 bits. A bias stays float32. So does the gradient of a parameter,
//     which the product adds to in float32; a 16-bit one is never there. Of the
//     parameter's cast nothing is saved, unless a Schedule holds it: backward
//     makes it again.
//   - Exp, Log, RSqrt, Softplus, Sum, Mean, Var, CumSum, Softmax, LogSoftmax,
//     LayerNorm, RMSNorm, CrossEntropy, MSE and BCEWithLogits give float32. They
//     read 16-bit operands as they are, which is the same as casting them
//     first, and save them as they are. LayerNorm and RMSNorm under bfloat16
//     read and save a float32 x rounded to bfloat16 (its range is the same),
//     which has an error of 2⁻⁹ as their results have for the product that
//     follows. Under float16, whose range a sum of many layers may leave, they
//     take x itself.
//   - All others compute in the type of their operands: Gelu, Relu, Dropout,
//     BatchNorm and Add of 16-bit values give and save 16-bit values.
//
// The families are those of PyTorch's autocast. The gradient of a value has the
// value's type. Autocast is a property of forward; backward and the second run
// of a checkpoint follow from what was on there.
//
// # Several devices
//
// Where devices compute one program together, Together is an operation that they
// all take part in. Operations named Part do a part of one, and a loss named Across
// puts together what all came to. A parameter of which each keeps a part (Part,
// ParameterPart) can have memory only while it is read (OnDemand).
//
// # Looking inside
//
// An Observer is told of every operation, its backward, and the program's own
// parts (Range) as ranges that nest.
//
// # Errors
//
// Misuse (shapes that don't fit, a handle used after release) and a lack of
// memory panic inside an expression; Try, at the step's edge, returns them as
// errors. Anything else that panics is a defect and passes through.
package tensor
