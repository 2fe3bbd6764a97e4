// Package web shows a record of device memory in a browser: as one file that
// needs nothing else, from a server that sends what is on the screen, and live
// for a job that runs.
//
// # One page, three sources
//
// The page (assets/) asks questions and draws the answers: how many bytes
// lived between two moments, which blocks lie where at one moment, what a
// block is. A [Record] answers them here, for a server (server.go). In a report
// the answers come from columns in the page itself (columns.go,
// assets/embedded.js); a test asks both the same and compares. A running job
// answers the first question only (live.go).
//
// # Moments
//
// A moment is a number of events that have happened, as History.At takes it.
// All axes count moments; their times are a column beside.
//
// # How a million events become a picture
//
// A screen is some 1500 pixels wide, so no answer has more than twice as many
// samples. A sample stands for a span of moments and shows the one with most
// live bytes in it: a peak is seen at any zoom. Summaries of 16384 spans are
// kept (summary.go). A view of many of them merges neighbours; a view of few
// goes through the events themselves, at most 1500 times a span's.
//
// # Strangers' files
//
// Names in a record are text on the page, never markup, and the page's policy
// lets nothing run or load but what was written into it. The server reads
// below one folder only, answers to names of its own only, and keeps a bounded
// number of files, connections and seconds for each.
package web
