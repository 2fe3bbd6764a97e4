//go:build linux && (amd64 || arm64) && !nocuda

package library

import (
	"runtime"

	"github.com/ebitengine/purego"
)

// dlopen stays on its thread, of which the loader keeps the words of the last error.
func dlopen(path string, global bool) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if global {
		return purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	}
	return purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

// dlsym gives the address of a symbol, or 0.
func dlsym(handle uintptr, symbol string) uintptr {
	address, err := purego.Dlsym(handle, symbol)
	if err != nil {
		return 0
	}
	return address
}

func syscall(address uintptr, args []uintptr) uintptr {
	r, _, _ := purego.SyscallN(address, args...)
	return r
}
