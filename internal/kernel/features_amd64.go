package kernel

import "golang.org/x/sys/cpu"

func machineFeatures() []Feature {
	return []Feature{
		{"AVX-512", cpu.X86.HasAVX512F && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512BW, "the widest vectors; about twice AVX2 in matrix products"},
		{"AVX2 with FMA", cpu.X86.HasAVX2 && cpu.X86.HasFMA, "vectors of 8 numbers"},
	}
}
