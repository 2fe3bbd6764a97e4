package tensor

// Across combines values over the devices that compute one program together, each
// with its part of some operations. It queues that on the stream of the values'
// runtime. Every device calls the same in the same order with values of the same
// sizes: operations use it forward and backward in the order of the program, and
// again in the second run of a Checkpoint, but not where a Schedule or a lack of
// memory has values made again, which may differ between devices.
type Across interface {
	Rank() int     // which of the devices this is
	Size() int     // of how many
	Sum(t *Tensor) // puts the sum over the devices in t's place; t is dense
	Max(t *Tensor) // the greatest elements
}

// IntoParts is x, which all devices have, as the input of operations of which each
// device does a part: in backward the gradients that come of the parts are added
// up. The result shares x's memory. A nil a stands for one device.
//
// With LinearAcross at the end of these operations it makes the layers of Shoeybi
// et al., "Megatron-LM" (2019), where they are called f and g.
func IntoParts(x *Tensor, a Across) *Tensor {
	if a == nil {
		return x.Retain()
	}
	n := x.rt.node("into_parts", x)
	if n != nil && x.rt.byRecipe(x) {
		n.again = n.save(x).get
	}
	return n.bind(x.view(x.shape, x.strides, x.offset), func(g *Tensor) {
		if g.st.refs > 1 {
			g = g.copyDense()
			defer g.Release()
		}
		a.Sum(g)
		n.pass(0, g)
	})
}
