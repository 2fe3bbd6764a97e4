package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/headroom-go/headroom/internal/library"
)

// Status is what one GPU holds and does or, where it is partitioned (MIG), what
// one of its instances does, whose memory is its own.
type Status struct {
	Index       int    // of the GPU, as nvidia-smi counts
	Instance    int    // of the GPU's, as nvidia-smi numbers them (GI ID); −1: the whole GPU
	Name, UUID  string // empty where the driver does not say
	Memory             // bytes
	Reserved    uint64 // bytes that the driver keeps for itself; 0: they are among the used
	Busy        int    // per cent of the time with a kernel running; −1: unknown
	Temperature int    // degrees Celsius; −1: unknown
	Err         error  // why the memory is unknown; then nothing else is known, but Name and UUID

	Processes    []Process // each once
	ProcessesErr error     // why they are unknown
}

// Statuses looks at all GPUs and, of those that are partitioned, at their
// instances, in the order of nvidia-smi.
func (n *NVML) Statuses() ([]Status, error) {
	var count uint32
	if err := n.check(nvmlDeviceGetCount, n.Call(nvmlDeviceGetCount, uintptr(unsafe.Pointer(&count)))); err != nil {
		return nil, err
	}
	var all []Status
	for i := range int(count) {
		all = append(all, n.statuses(i, int(count))...)
	}
	return all, nil
}

// statuses are those of one GPU of so many.
func (n *NVML) statuses(index, count int) []Status {
	s := Status{Index: index, Instance: -1, Busy: -1, Temperature: -1}
	var h uintptr
	if s.Err = n.check(nvmlDeviceGetHandleByIndex, n.Call(nvmlDeviceGetHandleByIndex, uintptr(index), uintptr(unsafe.Pointer(&h)))); s.Err != nil {
		return []Status{s}
	}
	var degrees uint32
	if n.Call(nvmlDeviceGetTemperature, h, 0, uintptr(unsafe.Pointer(&degrees))) == 0 {
		s.Temperature = int(degrees)
	}
	if instances := n.instances(h, s, count); len(instances) > 0 {
		return instances
	}
	var busy [2]uint32 // of the kernels, of the memory's controller
	if n.Call(nvmlDeviceGetUtilizationRates, h, uintptr(unsafe.Pointer(&busy))) == 0 {
		s.Busy = int(busy[0])
	}
	n.look(h, &s)
	return []Status{s}
}

// look asks what a GPU or an instance is and holds.
func (n *NVML) look(h uintptr, s *Status) {
	s.Name, s.UUID = n.text(nvmlDeviceGetName, h), n.text(nvmlDeviceGetUUID, h)
	if s.Err = n.memory(h, s); s.Err == nil {
		s.Processes, s.ProcessesErr = n.allProcesses(h)
	}
}

// instances are the statuses of the instances of a partitioned GPU, each like
// gpu where it is not asked; none of one that is whole.
//
// NVML lists MIG devices. Each is a part of an instance's processors; those of
// one instance share its memory and are one status here, with the programs of
// all. The index of a MIG device is documented as one of its GPU, and was seen
// to count through those of all GPUs: so as many are tried as all can have.
func (n *NVML) instances(h uintptr, gpu Status, gpus int) []Status {
	var mode, pending, most uint32
	n.Call(nvmlDeviceGetMigMode, h, uintptr(unsafe.Pointer(&mode)), uintptr(unsafe.Pointer(&pending)))
	if mode == 0 || n.Call(nvmlDeviceGetMaxMigDeviceCount, h, uintptr(unsafe.Pointer(&most))) != 0 {
		return nil
	}
	var all []Status
	for i := range gpus * min(int(most), mostInstances) {
		var mig uintptr
		if n.Call(nvmlDeviceGetMigDeviceHandleByIndex, h, uintptr(i), uintptr(unsafe.Pointer(&mig))) != 0 {
			continue
		}
		all = join(all, n.instance(mig, gpu))
	}
	return all
}

// mostInstances bounds the MIG devices of a GPU. None has more than eight.
const mostInstances = 64

func (n *NVML) instance(mig uintptr, s Status) Status {
	var id uint32
	if s.Err = n.check(nvmlDeviceGetGpuInstanceID, n.Call(nvmlDeviceGetGpuInstanceID, mig, uintptr(unsafe.Pointer(&id)))); s.Err != nil {
		return s
	}
	s.Instance = int(id)
	n.look(mig, &s)
	return s
}

// join adds a MIG device to those that are known.
func join(all []Status, s Status) []Status {
	i := slices.IndexFunc(all, func(known Status) bool { return known.Instance == s.Instance })
	if i < 0 {
		return append(all, s)
	}
	all[i].Processes = append(all[i].Processes, s.Processes...)
	all[i].ProcessesErr = errors.Join(all[i].ProcessesErr, s.ProcessesErr)
	return all
}

// text is a text of a GPU, empty if there is none.
func (n *NVML) text(symbol int, h uintptr) string {
	var buf [96]byte
	if n.Call(symbol, h, uintptr(unsafe.Pointer(&buf)), uintptr(len(buf))) != 0 {
		return ""
	}
	text, _, _ := bytes.Cut(buf[:], []byte{0})
	return string(text)
}

// memoryInfo is nvmlMemory_v2_t.
type memoryInfo struct {
	version                     uint32
	total, reserved, free, used uint64
}

// memory asks in the way that tells what the driver keeps for itself, or, of an
// old driver, in the other.
func (n *NVML) memory(h uintptr, s *Status) error {
	var m memoryInfo
	m.version = uint32(unsafe.Sizeof(m)) | 2<<24
	if n.Call(nvmlDeviceGetMemoryInfoV2, h, uintptr(unsafe.Pointer(&m))) == 0 {
		s.Memory, s.Reserved = Memory{Total: m.total, Free: m.free, Used: m.used}, m.reserved
		return nil
	}
	return n.check(nvmlDeviceGetMemoryInfo, n.Call(nvmlDeviceGetMemoryInfo, h, uintptr(unsafe.Pointer(&s.Memory))))
}

// allProcesses lists those that compute, those that do so through an MPS server,
// and those that draw, each once: one that is of several kinds is in several of
// the driver's lists, with the same bytes.
func (n *NVML) allProcesses(h uintptr) ([]Process, error) {
	list, err := n.processes(nvmlDeviceGetComputeRunningProcesses, h)
	if err != nil {
		return nil, err
	}
	drawing, err := n.processes(nvmlDeviceGetGraphicsRunningProcesses, h)
	if err != nil {
		return nil, fmt.Errorf("those that draw: %w", err)
	}
	served, err := n.processes(nvmlDeviceGetMPSComputeRunningProcesses, h)
	if e := (*Error)(nil); errors.As(err, &e) && (e.Code == library.NotFound || e.Code == nvmlNotSupported) {
		err = nil // there is no MPS
	}
	if err != nil {
		return nil, fmt.Errorf("those under MPS: %w", err)
	}
	for i := range served {
		served[i].MPS = true
	}
	seen := map[int]bool{}
	var all []Process
	for _, p := range slices.Concat(served, list, drawing) {
		if !seen[p.PID] {
			all = append(all, p)
		}
		seen[p.PID] = true
	}
	return all, nil
}
