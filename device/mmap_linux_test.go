package device

import "runtime/debug"

// touch reads the byte at p and says whether that is possible.
func touch(p Ptr) (b byte, ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { ok = recover() == nil }()
	return Bytes(p, 1)[0], true
}
