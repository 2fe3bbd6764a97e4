package kernel

import "golang.org/x/sys/cpu"

//go:generate go -C gen run ./gemm -out ../gemm_amd64.s -stubs ../gemm_stub_amd64.go -pkg kernel

func machineKernels() (found []*microKernel) {
	if cpu.X86.HasAVX512F {
		found = append(found, avx512Kernel)
	}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		found = append(found, avx2Kernel)
	}
	return found
}

var avx512Kernel = &microKernel{
	name: "AVX-512", panel: defaultPanel,
	a:    packer{width: 12, copy: copy12AVX512, lanes: 12, block: 16, transpose: transpose12AVX512},
	b:    packer{width: 32, copy: copy32AVX512, lanes: 16, block: 16, transpose: transpose16AVX512},
	tile: tile12x32AVX512,
}

var avx2Kernel = &microKernel{
	name: "AVX2", panel: defaultPanel,
	a:    packer{width: 6, copy: copy6AVX2, lanes: 6, block: 8, transpose: transpose6AVX2},
	b:    packer{width: 16, copy: copy16AVX2, lanes: 8, block: 8, transpose: transpose8AVX2},
	tile: tile6x16AVX2,
}
