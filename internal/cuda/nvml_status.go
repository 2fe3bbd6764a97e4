package cuda

import (
	"bytes"
	"fmt"
	"unsafe"
)

// Status is what one GPU holds and does.
type Status struct {
	Name, UUID  string // empty where the driver does not say
	Memory             // bytes
	Reserved    uint64 // bytes that the driver keeps for itself; 0: they are among the used
	Busy        int    // per cent of the time with a kernel running; −1: unknown
	Temperature int    // degrees Celsius; −1: unknown
	Err         error  // why the memory is unknown; then nothing else is known, but Name and UUID

	Processes    []Process // each once
	ProcessesErr error     // why they are unknown
}

// Statuses looks at all GPUs, in the order of nvidia-smi.
func (n *NVML) Statuses() ([]Status, error) {
	var count uint32
	if err := n.check(nvmlDeviceGetCount, n.Call(nvmlDeviceGetCount, uintptr(unsafe.Pointer(&count)))); err != nil {
		return nil, err
	}
	all := make([]Status, count)
	for i := range all {
		all[i] = n.status(i)
	}
	return all, nil
}

func (n *NVML) status(index int) Status {
	s := Status{Busy: -1, Temperature: -1}
	var h uintptr
	if s.Err = n.check(nvmlDeviceGetHandleByIndex, n.Call(nvmlDeviceGetHandleByIndex, uintptr(index), uintptr(unsafe.Pointer(&h)))); s.Err != nil {
		return s
	}
	s.Name, s.UUID = n.text(nvmlDeviceGetName, h), n.text(nvmlDeviceGetUUID, h)
	if s.Err = n.memory(h, &s); s.Err != nil {
		return s
	}
	var busy [2]uint32 // of the kernels, of the memory's controller
	if n.Call(nvmlDeviceGetUtilizationRates, h, uintptr(unsafe.Pointer(&busy))) == 0 {
		s.Busy = int(busy[0])
	}
	var degrees uint32
	if n.Call(nvmlDeviceGetTemperature, h, 0, uintptr(unsafe.Pointer(&degrees))) == 0 {
		s.Temperature = int(degrees)
	}
	s.Processes, s.ProcessesErr = n.allProcesses(h)
	return s
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

// allProcesses lists those that compute and those that draw. One that does both
// is listed by both, with the same bytes.
func (n *NVML) allProcesses(h uintptr) ([]Process, error) {
	list, err := n.processes(nvmlDeviceGetComputeRunningProcesses, h)
	if err != nil {
		return nil, err
	}
	drawing, err := n.processes(nvmlDeviceGetGraphicsRunningProcesses, h)
	if err != nil {
		return nil, fmt.Errorf("those that draw: %w", err)
	}
	seen := map[int]bool{}
	var all []Process
	for _, p := range append(list, drawing...) {
		if !seen[p.PID] {
			all = append(all, p)
		}
		seen[p.PID] = true
	}
	return all, nil
}
