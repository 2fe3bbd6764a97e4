package kernel

import "github.com/headroom-go/headroom/device"

// All lists the kernels of this package.
func All() []*device.Kernel {
	return []*device.Kernel{
		matmulKernel,
		attentionForwardKernel,
		attentionBackwardKernel,
		fillKernel, copyKernel, sumKernel,
		unaryKernel, unaryGradKernel, binaryKernel, scaleKernel,
		layerNormKernel, layerNormApplyKernel, layerNormGradKernel,
		softmaxKernel, softmaxGradKernel,
		crossEntropyKernel, crossEntropyGradKernel,
		embeddingKernel, embeddingGradKernel,
		adamWKernel, sumSquaresKernel, clipScaleKernel,
	}
}
