// Package cuda calls the CUDA driver, NVML, cuBLASLt and cuDNN, which it loads
// while the program runs, and turns their codes into errors. It has no policy:
// what belongs to whom is decided in package device.
//
// Driver, NVML, BLAS, DNN and NCCL are libraries with a table of symbols; they
// give the calls Go's types and their failures the type *Error. A missing symbol
// makes its call fail; Has says so beforehand, so that callers can do without.
//
// The current context is the property of an operating system's thread. So each
// call that needs one locks the goroutine to its thread, sets the context,
// calls and unlocks, which costs some 0.1 µs.
//
// No call allocates Go memory but those that return strings, slices or errors.
// Pointers that a call stores beyond its return are never pointers to Go memory.
package cuda
