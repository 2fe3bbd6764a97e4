package nn

// SGDOptions is stochastic gradient descent: plain, with momentum (Polyak,
// 1964), or with Nesterov's (1983).
type SGDOptions struct {
	Momentum    float64 `json:"momentum"` // 0: none
	Nesterov    bool    `json:"nesterov"` // has no effect without momentum
	WeightDecay float64 `json:"weight_decay"`
}

// AdamOptions is Adam (Kingma and Ba, 2015) with weight decay added to the
// gradient.
type AdamOptions struct {
	Beta1       float64 `json:"beta1"`
	Beta2       float64 `json:"beta2"`
	Eps         float64 `json:"eps"`
	WeightDecay float64 `json:"weight_decay"`
	AMSGrad     bool    `json:"amsgrad"`
}

// AdamWOptions is Adam with decoupled weight decay (Loshchilov and Hutter,
// 2019). AMSGrad divides by the greatest second moment so far (Reddi et al.,
// 2018).
type AdamWOptions struct {
	Beta1       float64 `json:"beta1"`
	Beta2       float64 `json:"beta2"`
	Eps         float64 `json:"eps"`
	WeightDecay float64 `json:"weight_decay"`
	AMSGrad     bool    `json:"amsgrad,omitempty"`
}

// AdagradOptions is Adagrad (Duchi et al., 2011).
type AdagradOptions struct {
	Eps         float64 `json:"eps"`
	WeightDecay float64 `json:"weight_decay"`
}

// RMSPropOptions is RMSProp (Tieleman and Hinton, 2012); Alpha is the decay of
// the mean of squares.
type RMSPropOptions struct {
	Alpha       float64 `json:"alpha"`
	Momentum    float64 `json:"momentum"`
	Eps         float64 `json:"eps"`
	WeightDecay float64 `json:"weight_decay"`
}

func (o SGDOptions) states() []string {
	if o.Momentum == 0 {
		return nil
	}
	return []string{"momentum_buffer"}
}

func (o AdamOptions) states() []string  { return adamStates(o.AMSGrad) }
func (o AdamWOptions) states() []string { return adamStates(o.AMSGrad) }

func adamStates(amsgrad bool) []string {
	if amsgrad {
		return []string{"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}
	}
	return []string{"exp_avg", "exp_avg_sq"}
}

func (o AdagradOptions) states() []string { return []string{"sum"} }
func (o RMSPropOptions) states() []string { return []string{"square_avg", "momentum_buffer"} }

func (o SGDOptions) withoutDecay() Rule     { o.WeightDecay = 0; return o }
func (o AdamOptions) withoutDecay() Rule    { o.WeightDecay = 0; return o }
func (o AdamWOptions) withoutDecay() Rule   { o.WeightDecay = 0; return o }
func (o AdagradOptions) withoutDecay() Rule { o.WeightDecay = 0; return o }
func (o RMSPropOptions) withoutDecay() Rule { o.WeightDecay = 0; return o }
