package device

import (
	"fmt"
	"runtime/debug"
)

// Panic is a panic in a kernel: its value and the stack of the goroutine on
// which it happened. Workers.For panics with a *Panic, and the error of a
// stream wraps one.
type Panic struct {
	Value any
	Stack []byte
}

// Error gives the value without the stack.
func (p *Panic) Error() string { return fmt.Sprint("panic: ", p.Value) }

// Unwrap gives the value where it is an error, such as a runtime.Error.
func (p *Panic) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

// asPanic wraps what recover returned, once. It must be called on the
// goroutine that panicked, from its deferred function.
func asPanic(value any) *Panic {
	if p, ok := value.(*Panic); ok {
		return p
	}
	return &Panic{Value: value, Stack: debug.Stack()}
}
