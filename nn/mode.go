package nn

// Mode is how a whole model computes at the moment: dropout drops only in
// training, and normalisations over the batch go by what they have seen
// outside it. What dropout drops follows from the runtime's seed
// (tensor.Runtime.SetSeed).
type Mode struct{ Training bool }
