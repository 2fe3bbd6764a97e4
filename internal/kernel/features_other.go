//go:build !amd64

package kernel

func machineFeatures() []Feature { return nil }
