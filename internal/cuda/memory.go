package cuda

import "unsafe"

// Ptr is an address in the memory of devices.
type Ptr uint64

// Handle is physical memory of a device.
type Handle uint64

// MemInfo is the device's free and whole memory in bytes, all programs counted.
func (c *Context) MemInfo() (free, total uint64, err error) {
	err = c.in(cuMemGetInfo, uintptr(unsafe.Pointer(&free)), uintptr(unsafe.Pointer(&total)))
	return free, total, err
}

// MemAlloc gives plain memory of n bytes.
func (c *Context) MemAlloc(n uint64) (p Ptr, err error) {
	err = c.in(cuMemAlloc, uintptr(unsafe.Pointer(&p)), uintptr(n))
	return p, err
}

// MemFree takes back what MemAlloc gave. It waits for all work of the device.
func (c *Context) MemFree(p Ptr) error { return c.in(cuMemFree, uintptr(p)) }

// HostAlloc gives page-locked host memory of n bytes, for copies from and to
// all devices.
func (c *Context) HostAlloc(n uint64) (p uintptr, err error) {
	const portable = 1
	err = c.in(cuMemHostAlloc, uintptr(unsafe.Pointer(&p)), uintptr(n), portable)
	return p, err
}

// HostFree takes back what HostAlloc gave.
func (c *Context) HostFree(p uintptr) error { return c.in(cuMemFreeHost, p) }

// location names a device in requests for memory: CUmemLocation.
type location struct {
	kind int32 // 1: a device
	id   int32
}

// allocationProp says what memory to create: CUmemAllocationProp.
type allocationProp struct {
	kind     int32 // 1: pinned
	shared   int32 // kinds of handles for export: 0 or fileDescriptor
	location location
	windows  uint64
	flags    [8]byte
}

// accessDesc says who may do what with a range: CUmemAccessDesc.
type accessDesc struct {
	location location
	flags    int32 // 3: read and write
}

// fileDescriptor is the kind of handle for export that Unix sockets carry:
// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.
const fileDescriptor = 1

func (c *Context) prop() *allocationProp {
	p := &allocationProp{kind: 1, location: location{1, int32(c.Device)}}
	if c.Exportable {
		p.shared = fileDescriptor
	}
	return p
}

// Granularity is the unit of physical memory in bytes.
func (c *Context) Granularity() (uint64, error) {
	const minimum = 0
	var n uint64
	err := c.in(cuMemGetAllocationGranularity, uintptr(unsafe.Pointer(&n)), uintptr(unsafe.Pointer(c.prop())), minimum)
	return n, err
}

// Reserve gives n bytes of addresses without memory, aligned to align bytes.
func (c *Context) Reserve(n, align uint64) (p Ptr, err error) {
	err = c.in(cuMemAddressReserve, uintptr(unsafe.Pointer(&p)), uintptr(n), uintptr(align), 0, 0)
	return p, err
}

// Unreserve takes back what Reserve gave. Nothing is mapped there.
func (c *Context) Unreserve(p Ptr, n uint64) error {
	return c.in(cuMemAddressFree, uintptr(p), uintptr(n))
}

// Create gives n bytes of physical memory, a multiple of the granularity.
func (c *Context) Create(n uint64) (h Handle, err error) {
	err = c.in(cuMemCreate, uintptr(unsafe.Pointer(&h)), uintptr(n), uintptr(unsafe.Pointer(c.prop())), 0)
	return h, err
}

// Destroy gives physical memory back, as soon as it is mapped nowhere.
func (c *Context) Destroy(h Handle) error { return c.in(cuMemRelease, uintptr(h)) }

// Map puts memory of n bytes behind addresses, where SetAccess makes it usable.
func (c *Context) Map(p Ptr, n uint64, h Handle) error {
	return c.in(cuMemMap, uintptr(p), uintptr(n), 0, uintptr(h), 0)
}

// Unmap takes the memory away from n bytes of addresses, which whole mappings
// cover.
func (c *Context) Unmap(p Ptr, n uint64) error { return c.in(cuMemUnmap, uintptr(p), uintptr(n)) }

// SetAccess lets the device, and others that reach it, read and write n bytes of
// mapped addresses.
func (c *Context) SetAccess(p Ptr, n uint64, others ...Device) error {
	descs := []accessDesc{{location{1, int32(c.Device)}, 3}}
	for _, d := range others {
		descs = append(descs, accessDesc{location{1, int32(d)}, 3})
	}
	return c.in(cuMemSetAccess, uintptr(p), uintptr(n), uintptr(unsafe.Pointer(&descs[0])), uintptr(len(descs)))
}

// Export gives a file descriptor that stands for memory which an exportable
// context created. The caller closes it; the memory lives as long as there is
// a descriptor or a handle for it.
func (c *Context) Export(h Handle) (fd int, err error) {
	var file int32
	err = c.in(cuMemExportToShareableHandle, uintptr(unsafe.Pointer(&file)), uintptr(h), fileDescriptor, 0)
	return int(file), err
}

// Import gives a handle for memory that another process exported. The file
// descriptor remains the caller's.
func (c *Context) Import(fd int) (h Handle, err error) {
	err = c.in(cuMemImportFromShareableHandle, uintptr(unsafe.Pointer(&h)), uintptr(fd), fileDescriptor)
	return h, err
}
