package cuda

import (
	"bytes"
	"unsafe"

	"github.com/headroom-go/headroom/internal/library"
)

const (
	nvmlInit = iota
	nvmlShutdown
	nvmlSystemGetDriverVersion
	nvmlDeviceGetHandleByPciBusID
	nvmlDeviceGetMemoryInfo
	nvmlDeviceGetComputeRunningProcesses
	nvmlDeviceGetGraphicsRunningProcesses
	nvmlDeviceGetCount
	nvmlDeviceGetHandleByIndex
	nvmlDeviceGetName
	nvmlDeviceGetUUID
	nvmlDeviceGetMemoryInfoV2
	nvmlDeviceGetUtilizationRates
	nvmlDeviceGetTemperature
	nvmlDeviceGetMPSComputeRunningProcesses
	nvmlDeviceGetMigMode
	nvmlDeviceGetMaxMigDeviceCount
	nvmlDeviceGetMigDeviceHandleByIndex
	nvmlDeviceGetGpuInstanceID
)

var nvmlSymbols = []string{
	nvmlInit:                                "nvmlInit_v2",
	nvmlShutdown:                            "nvmlShutdown",
	nvmlSystemGetDriverVersion:              "nvmlSystemGetDriverVersion",
	nvmlDeviceGetHandleByPciBusID:           "nvmlDeviceGetHandleByPciBusId_v2",
	nvmlDeviceGetMemoryInfo:                 "nvmlDeviceGetMemoryInfo",
	nvmlDeviceGetComputeRunningProcesses:    "nvmlDeviceGetComputeRunningProcesses_v3",
	nvmlDeviceGetGraphicsRunningProcesses:   "nvmlDeviceGetGraphicsRunningProcesses_v3",
	nvmlDeviceGetCount:                      "nvmlDeviceGetCount_v2",
	nvmlDeviceGetHandleByIndex:              "nvmlDeviceGetHandleByIndex_v2",
	nvmlDeviceGetName:                       "nvmlDeviceGetName",
	nvmlDeviceGetUUID:                       "nvmlDeviceGetUUID",
	nvmlDeviceGetMemoryInfoV2:               "nvmlDeviceGetMemoryInfo_v2",
	nvmlDeviceGetUtilizationRates:           "nvmlDeviceGetUtilizationRates",
	nvmlDeviceGetTemperature:                "nvmlDeviceGetTemperature",
	nvmlDeviceGetMPSComputeRunningProcesses: "nvmlDeviceGetMPSComputeRunningProcesses_v3",
	nvmlDeviceGetMigMode:                    "nvmlDeviceGetMigMode",
	nvmlDeviceGetMaxMigDeviceCount:          "nvmlDeviceGetMaxMigDeviceCount",
	nvmlDeviceGetMigDeviceHandleByIndex:     "nvmlDeviceGetMigDeviceHandleByIndex",
	nvmlDeviceGetGpuInstanceID:              "nvmlDeviceGetGpuInstanceId",
}

// NVML is the library behind nvidia-smi: it sees all programs. It needs no
// context. Its methods may be called from several goroutines at once.
type NVML struct{ *library.Library }

// OpenNVML loads and starts NVML. Close it.
func OpenNVML(folders []string) (*NVML, error) {
	l, err := library.Open([]string{"libnvidia-ml.so.1"}, folders, nvmlSymbols)
	if err != nil {
		return nil, err
	}
	return startNVML(l)
}

// FakeNVML is an NVML whose calls go to f, for tests.
func FakeNVML(f library.Caller) (*NVML, error) {
	return startNVML(library.Fake("fake", nvmlSymbols, f))
}

func startNVML(l *library.Library) (*NVML, error) {
	n := &NVML{l}
	return n, n.check(nvmlInit, n.Call(nvmlInit))
}

// Close ends this use of NVML.
func (n *NVML) Close() error { return n.check(nvmlShutdown, n.Call(nvmlShutdown)) }

func (n *NVML) check(symbol, code int) error {
	if code == 0 {
		return nil
	}
	e := &Error{Library: n.Name, Call: n.Symbol(symbol), Code: code, Text: "the library does not have it"}
	if code != library.NotFound {
		e.Text = nvmlTexts[code]
	}
	return e
}

const nvmlNotSupported = 3

// nvmlTexts are the codes that users meet.
var nvmlTexts = map[int]string{
	1: "NVML was not started", nvmlNotSupported: "this GPU does not support it", 4: "no permission", 6: "there is no such GPU",
	9: "the driver is not loaded: look at nvidia-smi", 15: "the GPU is lost: the machine must be restarted",
	18: "the library and the driver have different versions: restart the machine after an update of the driver", 999: "unknown",
}

// DriverVersion is the driver's version, such as "580.159.04".
func (n *NVML) DriverVersion() (string, error) {
	var buf [96]byte
	err := n.check(nvmlSystemGetDriverVersion, n.Call(nvmlSystemGetDriverVersion, uintptr(unsafe.Pointer(&buf)), uintptr(len(buf))))
	text, _, _ := bytes.Cut(buf[:], []byte{0})
	return string(text), err
}

// device finds a GPU by its place on the bus.
func (n *NVML) device(bus string) (handle uintptr, err error) {
	text := append([]byte(bus), 0)
	err = n.check(nvmlDeviceGetHandleByPciBusID, n.Call(nvmlDeviceGetHandleByPciBusID,
		uintptr(unsafe.Pointer(&text[0])), uintptr(unsafe.Pointer(&handle))))
	return handle, err
}

// Memory is the memory of a GPU in bytes.
type Memory struct{ Total, Free, Used uint64 }

// Memory gives the memory of the GPU at a place on the bus.
func (n *NVML) Memory(bus string) (m Memory, err error) {
	h, err := n.device(bus)
	if err != nil {
		return m, err
	}
	err = n.check(nvmlDeviceGetMemoryInfo, n.Call(nvmlDeviceGetMemoryInfo, h, uintptr(unsafe.Pointer(&m))))
	return m, err
}

// Process is a program that computes on a GPU.
type Process struct {
	PID    int
	Memory uint64 // bytes; ^0 where the system does not say
	MPS    bool   // it computes through an MPS server; told by Statuses alone
}

// processInfo is nvmlProcessInfo_t.
type processInfo struct {
	pid                       uint32
	memory                    uint64
	gpuInstance, compInstance uint32
}

// Processes lists the programs on the GPU at a place on the bus, those that
// this one may see.
func (n *NVML) Processes(bus string) ([]Process, error) {
	h, err := n.device(bus)
	if err != nil {
		return nil, err
	}
	return n.processes(nvmlDeviceGetComputeRunningProcesses, h)
}

// processes lists those that compute or those that draw, as the symbol says.
func (n *NVML) processes(symbol int, h uintptr) ([]Process, error) {
	const tooSmall = 7
	for count := uint32(64); ; count *= 2 {
		infos, room := make([]processInfo, count), count
		code := n.Call(symbol, h, uintptr(unsafe.Pointer(&count)), uintptr(unsafe.Pointer(&infos[0])))
		if code == tooSmall {
			count = max(count, room)
			continue
		}
		if code != 0 {
			return nil, n.check(symbol, code)
		}
		var list []Process
		for _, p := range infos[:count] {
			list = append(list, Process{PID: int(p.pid), Memory: p.memory})
		}
		return list, nil
	}
}
