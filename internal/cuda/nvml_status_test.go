package cuda

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"unsafe"
)

// at is memory that a caller gave the address of.
func at[T any](address uintptr) *T { return *(**T)(unsafe.Pointer(&address)) }

// fakeMachine is an NVML with two GPUs, of which calls fail as a test says. The
// handle of a GPU is 100 and more, that of a MIG device 200 and more.
type fakeMachine struct {
	fail      map[string]uintptr // code by symbol
	processes map[string][]processInfo
	instances []uint32                  // of GPU 1's MIG devices, which have its first indices; nil: it is not partitioned
	inside    map[uintptr][]processInfo // by handle of a MIG device: those that compute in it
}

func (f *fakeMachine) call(symbol string, a []uintptr) uintptr {
	if code := f.fail[symbol]; code != 0 {
		return code
	}
	switch symbol {
	case "nvmlDeviceGetCount_v2":
		*at[uint32](a[0]) = 2
	case "nvmlDeviceGetHandleByIndex_v2":
		*at[uintptr](a[1]) = a[0] + 100
	case "nvmlDeviceGetName":
		copy(at[[96]byte](a[1])[:], "NVIDIA Test\x00junk")
	case "nvmlDeviceGetUUID":
		copy(at[[96]byte](a[1])[:], fmt.Sprintf("GPU-%d\x00", a[0]-100))
	case "nvmlDeviceGetMigMode":
		*at[uint32](a[1]) = uint32(min(len(f.instances), 1)) * uint32(a[0]-100)
	case "nvmlDeviceGetMaxMigDeviceCount":
		*at[uint32](a[1]) = 7
	case "nvmlDeviceGetMigDeviceHandleByIndex":
		if a[0] != 101 || a[1] >= uintptr(len(f.instances)) {
			return 6
		}
		*at[uintptr](a[2]) = 200 + a[1]
	case "nvmlDeviceGetGpuInstanceId":
		*at[uint32](a[1]) = f.instances[a[0]-200]
	case "nvmlDeviceGetMemoryInfo_v2":
		m := at[memoryInfo](a[1])
		if m.version != 0x2000028 {
			return 25 // NVML_ERROR_ARGUMENT_VERSION_MISMATCH
		}
		m.total, m.reserved, m.free, m.used = 100, 1, 39, 60
	case "nvmlDeviceGetMemoryInfo":
		*at[Memory](a[1]) = Memory{Total: 100, Free: 39, Used: 61}
	case "nvmlDeviceGetUtilizationRates":
		*at[[2]uint32](a[1]) = [2]uint32{93, 40}
	case "nvmlDeviceGetTemperature":
		*at[uint32](a[2]) = 61
	case compute, graphics, served:
		list, room := f.processes[symbol], *at[uint32](a[1])
		if a[0] >= 200 {
			list = nil
			if symbol == compute {
				list = f.inside[a[0]]
			}
		}
		*at[uint32](a[1]) = uint32(len(list))
		if int(room) < len(list) {
			return 7
		}
		copy(unsafe.Slice(at[processInfo](a[2]), room), list)
	}
	return 0
}

// The lists of processes.
const (
	compute  = "nvmlDeviceGetComputeRunningProcesses_v3"
	graphics = "nvmlDeviceGetGraphicsRunningProcesses_v3"
	served   = "nvmlDeviceGetMPSComputeRunningProcesses_v3"
)

func TestStatuses(t *testing.T) {
	var many []processInfo
	for i := range 200 { // more than the first call has room for
		many = append(many, processInfo{pid: uint32(1000 + i), memory: 5})
	}
	f := &fakeMachine{processes: map[string][]processInfo{compute: {{pid: 7, memory: 50}, {pid: 8, memory: ^uint64(0)}}, graphics: {{pid: 7, memory: 50}, {pid: 9, memory: 3}}, served: {{pid: 7, memory: 50}}}}
	n, err := FakeNVML(f.call)
	if err != nil {
		t.Fatal(err)
	}
	whole := Status{Index: 1, Instance: -1, Name: "NVIDIA Test", UUID: "GPU-1", Memory: Memory{Total: 100, Free: 39, Used: 60}, Reserved: 1, Busy: 93, Temperature: 61,
		Processes: []Process{{7, 50, true}, {8, ^uint64(0), false}, {9, 3, false}}}
	for _, c := range []struct {
		symbol string
		code   uintptr
		change func(*Status)
	}{
		{"", 0, func(*Status) {}},
		{"nvmlDeviceGetName", 999, func(s *Status) { s.Name = "" }},
		{"nvmlDeviceGetUtilizationRates", 3, func(s *Status) { s.Busy = -1 }},
		{"nvmlDeviceGetTemperature", 3, func(s *Status) { s.Temperature = -1 }},
		{"nvmlDeviceGetMemoryInfo_v2", 13, func(s *Status) { s.Used, s.Reserved = 61, 0 }},
		{compute, 4, func(s *Status) { s.Processes = nil }},
		{graphics, 4, func(s *Status) { s.Processes = nil }},
		{served, 4, func(s *Status) { s.Processes = nil }},
		{served, nvmlNotSupported, func(s *Status) { s.Processes[0].MPS = false }},
		{"nvmlDeviceGetHandleByIndex_v2", 15, func(s *Status) { *s = Status{Index: 1, Instance: -1, Busy: -1, Temperature: -1} }},
	} {
		f.fail = map[string]uintptr{c.symbol: c.code}
		all, err := n.Statuses()
		if err != nil || len(all) != 2 {
			t.Fatal(all, err)
		}
		got, want := all[1], whole
		want.Processes = slices.Clone(whole.Processes)
		c.change(&want)
		var e *Error
		if failed := errors.Join(got.Err, got.ProcessesErr); failed != nil && (!errors.As(failed, &e) || e.Call != c.symbol) {
			t.Errorf("%s fails: %v", c.symbol, failed)
		}
		if (got.Err != nil) != (want.Name == "" && want.UUID == "") || (got.ProcessesErr != nil) != (c.code == 4) {
			t.Errorf("%s fails: errors %v, %v", c.symbol, got.Err, got.ProcessesErr)
		}
		got.Err, got.ProcessesErr = nil, nil
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s fails: %+v, want %+v", c.symbol, got, want)
		}
	}
	f.fail = map[string]uintptr{"nvmlDeviceGetMemoryInfo": 15, "nvmlDeviceGetMemoryInfo_v2": 15}
	if all, err := n.Statuses(); err != nil || all[0].Err == nil || all[0].Processes != nil {
		t.Errorf("%+v, %v", all, err)
	}
	f.fail, f.processes = nil, map[string][]processInfo{compute: many}
	if all, err := n.Statuses(); err != nil || len(all[0].Processes) != len(many) {
		t.Errorf("%d of %d processes, %v", len(all[0].Processes), len(many), err)
	}
	f.fail = map[string]uintptr{"nvmlDeviceGetCount_v2": 15}
	if _, err := n.Statuses(); err == nil {
		t.Error("no error without a count")
	}
}

// TestInstances: a partitioned GPU is its instances. Two MIG devices of one
// instance are one, with the processes of both; what of them fails is told.
func TestInstances(t *testing.T) {
	f := &fakeMachine{instances: []uint32{3, 5, 3}, inside: map[uintptr][]processInfo{200: {{pid: 7, memory: 20}}, 201: {{pid: 8, memory: 30}}, 202: {{pid: 9, memory: 5}}}}
	n, err := FakeNVML(f.call)
	if err != nil {
		t.Fatal(err)
	}
	gpu := Status{Index: 0, Instance: -1, Name: "NVIDIA Test", UUID: "GPU-0", Memory: Memory{Total: 100, Free: 39, Used: 60}, Reserved: 1, Busy: 93, Temperature: 61}
	instance := func(id int, uuid string, list ...Process) Status {
		s := gpu
		s.Index, s.Instance, s.UUID, s.Busy, s.Processes = 1, id, uuid, -1, list
		return s
	}
	want := []Status{gpu, instance(3, "GPU-100", Process{PID: 7, Memory: 20}, Process{PID: 9, Memory: 5}), instance(5, "GPU-101", Process{PID: 8, Memory: 30})}
	if all, err := n.Statuses(); err != nil || !reflect.DeepEqual(all, want) {
		t.Errorf("%+v, %v, want %+v", all, err, want)
	}
	for _, symbol := range []string{"nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex"} {
		f.fail = map[string]uintptr{symbol: 3}
		if all, err := n.Statuses(); err != nil || len(all) != 2 || all[1].Instance != -1 || all[1].Err != nil {
			t.Errorf("%s fails: %+v, %v", symbol, all, err)
		}
	}
	for _, symbol := range []string{"nvmlDeviceGetGpuInstanceId", compute} {
		f.fail = map[string]uintptr{symbol: 15}
		all, err := n.Statuses()
		if last := all[len(all)-1]; err != nil || last.Index != 1 || errors.Join(last.Err, last.ProcessesErr) == nil || last.Processes != nil {
			t.Errorf("%s fails: %+v, %v", symbol, all, err)
		}
	}
}
