// Package inspect explains a trace or an error text, and replays a trace on an
// allocator.
//
// A snapshot tells what lay where at its end, and the last events before. From
// these a History knows the state of one device at any event (state.go): spans of
// addresses with memory behind them, and leases of blocks. All else asks a
// History, or the events themselves:
//
//	check.go     does the record agree with itself?                   Audit
//	explain.go   why did memory run out, or what is at the peak?      Report
//	job.go       the same for several ranks, compared                 JobReport
//	growth.go    which sites grow from step to step?                  Growth
//	diff.go      what changed from one record to another?             Difference
//	replay.go    what would another allocator have reserved?          Result
//	text.go      the same as explain.go, of an error text alone       Report
//
// Replays need a model of PyTorch's allocator (model.go). Replayed under the
// settings that the record was made with, it must equal the record in every
// address, segment and block; only where it does, what it says of other settings
// means something.
//
// What is found is a value (Report, Difference, Result, …) of numbers, verdicts
// and sentences. How it is shown is the caller's.
package inspect
