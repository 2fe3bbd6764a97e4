package device

import "unsafe"

// Bytes, Float32s, Int32s and Uint16s give host memory at an address as a slice. They
// are for host kernels, and for them alone: on other devices an address means
// nothing to the processor. The memory must be allocated or mapped for as long
// as the slice is used. A kernel that touches addresses without memory ends its
// stream with an error where the system notices.

// Bytes is the host device's memory [p, p+n) as bytes.
func Bytes(p Ptr, n int) []byte { return view[byte](p, n) }

// Float32s is the host device's memory [p, p+4n) as n numbers. p is a multiple of 4.
func Float32s(p Ptr, n int) []float32 { return view[float32](p, n) }

// Int32s is the host device's memory [p, p+4n) as n numbers. p is a multiple of 4.
func Int32s(p Ptr, n int) []int32 { return view[int32](p, n) }

// Uint16s is the host device's memory [p, p+2n) as n numbers, such as the bits
// of 16-bit floating-point ones. p is a multiple of 2.
func Uint16s(p Ptr, n int) []uint16 { return view[uint16](p, n) }

// BytesOf is the Go memory of s, for Upload and Download on any device.
func BytesOf[T float32 | int32](s []T) []byte {
	const size = 4
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), size*len(s))
}

func view[T byte | float32 | int32 | uint16](p Ptr, n int) []T {
	return unsafe.Slice((*T)(p.pointer()), n)
}

// pointer reads the bits of an address as a pointer. The address is that of
// memory from mmap, which the garbage collector does not know, or of Go memory
// that the device keeps a reference to.
func (p Ptr) pointer() unsafe.Pointer {
	bits := uintptr(p)
	return *(*unsafe.Pointer)(unsafe.Pointer(&bits))
}

// address is the reverse of pointer.
func address(p unsafe.Pointer) Ptr { return Ptr(uintptr(p)) }

// Addr is the address of memory of this program, outside of Go's heap or kept
// alive by the caller, for streams of a host device.
func Addr(b []byte) Ptr { return address(unsafe.Pointer(unsafe.SliceData(b))) }
