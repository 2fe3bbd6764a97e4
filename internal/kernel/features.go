package kernel

// Feature is something that a processor may have and kernels use.
type Feature struct {
	Name  string
	Found bool
	Use   string // what it is good for
}

// Features says what this processor has of what kernels can use.
func Features() []Feature {
	return append(machineFeatures(), Feature{"matrix product", true, microKernels[0].name + " is in use"})
}
