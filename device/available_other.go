//go:build !linux

package device

import "errors"

// AvailableMemory is known on Linux alone.
func AvailableMemory() (uint64, error) {
	return 0, errors.New("how much memory is available is known on Linux alone: give the device a size, such as host:8GiB")
}
