package nn

import "github.com/headroom-go/headroom/dist"

// Split is which part of a model a rank has of several that compute it together.
// The zero Split is all of it. A group that is nil stands for one rank.
type Split struct {
	Tensor dist.Group // ranks that have other boxes of the same layers, and the same samples
	Expert dist.Group // ranks that have other experts, and other samples

	// Stage is which of so many stages of a pipeline the model is (stage.go). There
	// must be as many blocks as stages. 0 Stages stand for one.
	Stage, Stages int
}
