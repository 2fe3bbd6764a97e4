package nn

import "github.com/headroom-go/headroom/tensor"

// Hooks are called around every module of a model, for those who watch it:
// the module, its name and its input, and afterwards its result too. They own
// none of these tensors. What is computed again in backward calls them again.
// A nil function is not called.
type Hooks struct {
	Before func(name string, m Module, x *tensor.Tensor)
	After  func(name string, m Module, x, y *tensor.Tensor)
}

// HooksOf gives the hooks that a model calls around its modules, or nil for a
// module that is no whole model of this package.
func HooksOf(m Module) *Hooks {
	if m, ok := m.(interface{ hooked() *Hooks }); ok {
		return m.hooked()
	}
	return nil
}

func (g *GPT2) hooked() *Hooks   { return g.Hooks }
func (m *BERT) hooked() *Hooks   { return m.Hooks } // also of its heads
func (r *ResNet) hooked() *Hooks { return r.Hooks }
func (m *MoE) hooked() *Hooks    { return m.Hooks }

// place is where a module stands in its model: its name, and the model's hooks.
type place struct {
	name  string
	hooks *Hooks
}

// call runs f, the work of m, between the hooks.
func (p place) call(m Module, x *tensor.Tensor, f func(*tensor.Tensor) *tensor.Tensor) *tensor.Tensor {
	if p.hooks.Before != nil {
		p.hooks.Before(p.name, m, x)
	}
	y := f(x)
	if p.hooks.After != nil {
		p.hooks.After(p.name, m, x, y)
	}
	return y
}

// Around runs part i of a model on x in place of a plain call, unless it is
// nil: the place for recompute and whatever else goes by the part.
type Around func(i int, x *tensor.Tensor, part func(*tensor.Tensor) *tensor.Tensor) *tensor.Tensor

func (a Around) run(i int, x *tensor.Tensor, part func(*tensor.Tensor) *tensor.Tensor) *tensor.Tensor {
	if a == nil {
		return part(x)
	}
	return a(i, x, part)
}
