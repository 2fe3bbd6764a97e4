package cuda

import (
	"errors"
	"reflect"
	"testing"
	"unsafe"
)

// at is memory that a caller gave the address of.
func at[T any](address uintptr) *T { return *(**T)(unsafe.Pointer(&address)) }

// fakeMachine is an NVML with two GPUs, of which calls fail as a test says.
type fakeMachine struct {
	fail      map[string]uintptr // code by symbol
	processes map[string][]processInfo
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
		copy(at[[96]byte](a[1])[:], "GPU-"+string(rune('0'+a[0]-100))+"\x00")
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
	case "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3":
		list, room := f.processes[symbol], *at[uint32](a[1])
		*at[uint32](a[1]) = uint32(len(list))
		if int(room) < len(list) {
			return 7
		}
		copy(unsafe.Slice(at[processInfo](a[2]), room), list)
	}
	return 0
}

func TestStatuses(t *testing.T) {
	const compute, graphics = "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"
	var many []processInfo
	for i := range 200 { // more than the first call has room for
		many = append(many, processInfo{pid: uint32(1000 + i), memory: 5})
	}
	f := &fakeMachine{processes: map[string][]processInfo{compute: {{pid: 7, memory: 50}, {pid: 8, memory: ^uint64(0)}}, graphics: {{pid: 7, memory: 50}, {pid: 9, memory: 3}}}}
	n, err := FakeNVML(f.call)
	if err != nil {
		t.Fatal(err)
	}
	whole := Status{Name: "NVIDIA Test", UUID: "GPU-1", Memory: Memory{Total: 100, Free: 39, Used: 60}, Reserved: 1, Busy: 93, Temperature: 61,
		Processes: []Process{{7, 50}, {8, ^uint64(0)}, {9, 3}}}
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
		{"nvmlDeviceGetHandleByIndex_v2", 15, func(s *Status) { *s = Status{Busy: -1, Temperature: -1} }},
	} {
		f.fail = map[string]uintptr{c.symbol: c.code}
		all, err := n.Statuses()
		if err != nil || len(all) != 2 {
			t.Fatal(all, err)
		}
		got, want := all[1], whole
		c.change(&want)
		var e *Error
		if failed := errors.Join(got.Err, got.ProcessesErr); failed != nil && (!errors.As(failed, &e) || e.Call != c.symbol) {
			t.Errorf("%s fails: %v", c.symbol, failed)
		}
		if (got.Err != nil) != (want.Name == "" && want.UUID == "") || (got.ProcessesErr != nil) != (c.symbol == compute || c.symbol == graphics) {
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
