package device

import (
	"errors"
	"os"
	"strconv"
	"strings"
)

// AvailableMemory is the number of bytes that the machine, and the control
// group of the process where there is one, can give without swapping, rounded
// down to 2 MiB. It is known on Linux alone.
func AvailableMemory() (uint64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	available, err := memAvailable(string(text))
	if err != nil {
		return 0, err
	}
	for _, group := range []struct{ limit, usage string }{
		{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
		{"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"},
	} {
		limit, usage := readNumber(group.limit), readNumber(group.usage)
		if limit > 0 {
			available = min(available, max(limit, usage)-usage)
		}
	}
	return available &^ (2<<20 - 1), nil
}

// memAvailable finds the line "MemAvailable:   24255692 kB".
func memAvailable(meminfo string) (uint64, error) {
	for line := range strings.Lines(meminfo) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == "MemAvailable:" {
			kib, err := strconv.ParseUint(fields[1], 10, 54)
			return kib << 10, err
		}
	}
	return 0, errors.New("the system does not say how much memory is available: give the device a size, such as host:8GiB")
}

// readNumber reads a file that holds a number; 0 if there is none ("max").
func readNumber(path string) uint64 {
	text, _ := os.ReadFile(path)
	n, _ := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return n
}
