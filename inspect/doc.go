// Package inspect explains a trace or an error text, and replays a trace on an
// allocator.
package inspect
