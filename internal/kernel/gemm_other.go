//go:build !amd64

package kernel

func machineKernels() []*microKernel { return nil }
