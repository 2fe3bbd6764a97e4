package tensor

// Across combines values over the devices that compute a loss together, each with
// its part of the classes. It queues that on the stream of the values' runtime. Every
// device calls the same in the same order with values of the same sizes.
type Across interface {
	Size() int     // the number of devices
	Sum(t *Tensor) // puts the sum over the devices in t's place; t is dense
	Max(t *Tensor) // the greatest elements
}
