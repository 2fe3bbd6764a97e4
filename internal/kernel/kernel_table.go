package kernel

import "github.com/headroom-go/headroom/device"

// All lists the kernels of this package.
func All() []*device.Kernel {
	return []*device.Kernel{
		matmulKernel,
		convKernel, convGradInputKernel, convGradWeightKernel,
		batchNormStatsKernel, batchNormApplyKernel, batchNormGradKernel, inverseDeviationKernel,
		maxPoolKernel, maxPoolGradKernel, avgPoolKernel, avgPoolGradKernel,
		attentionForwardKernel,
		attentionBackwardKernel,
		pagedWriteKernel, pagedAttentionKernel,
		fillKernel, copyKernel, sumKernel,
		unaryKernel, unaryGradKernel, binaryKernel, scaleKernel, scaleByKernel,
		layerNormKernel, addLayerNormKernel, layerNormApplyKernel, layerNormGradKernel,
		softmaxKernel, softmaxGradKernel, logSoftmaxKernel, logSoftmaxGradKernel,
		crossEntropyKernel, crossEntropyGradKernel, crossEntropyOverKernel, rowSumsKernel,
		selectKernel, equalKernel, topKKernel, gatherKernel, gatherGradKernel, cumSumKernel, clampKernel, clampGradKernel, dropoutKernel,
		embeddingKernel, embeddingGradKernel,
		adamWKernel, updateKernel, sumSquaresKernel, clipScaleKernel,
		pack8Kernel, unpack8Kernel,
		combineKernel,
	}
}
