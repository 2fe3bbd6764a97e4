package train

// ResetLadder makes the next step begin as planned.
func (t *Trainer) ResetLadder() { t.ladder = ladder{} }
