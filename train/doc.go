// Package train runs the training step inside the memory that there is, with
// the strategies that make it fit, and keeps runs that can be stopped and
// resumed.
//
// A Config says what is computed, and decides all numbers of a run; a Strategy
// says how a step is made to fit, and changes memory and time alone. A Trainer has
// a model on a device and runs steps of its Config under a Strategy; it does not
// choose one (that is package plan's, which runs the same Trainer on a null
// device). A Run is a Trainer with its data and a folder for what it leaves.
//
//	job.go       the models, and the arrays that each wants in a batch
//	trainer.go   the step: an attempt at gradients and update, or nothing done
//	ladder.go    what a step does where memory runs out all the same
//	lengths.go   steps of changing length, each with strategies of its own
//	outside.go   the optimizer in memory outside the device
//	run.go       steps, evaluations, checkpoints and metrics of a run
//
// Of several ranks each has a Trainer with a share of the batch, and they differ
// from one alone in a field that is nil there (parallel.go): gradients are reduced
// in buckets, optimizer and weights may be sharded (on_demand.go), and the layers
// may be spread over the stages of a pipeline (schedule.go, pipeline.go).
package train
