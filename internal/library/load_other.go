//go:build !linux || !(amd64 || arm64) || nocuda

package library

import "fmt"

func dlopen(path string, _ bool) (uintptr, error) {
	return 0, fmt.Errorf("%s: %w: this program was built without the system's libraries (for another system than Linux, or with the tag nocuda)", path, ErrUnavailable)
}

func dlsym(uintptr, string) uintptr { return 0 }

func syscall(uintptr, []uintptr) uintptr {
	panic("library: a call into a library that cannot have been opened")
}
