package dist

import (
	"errors"
	"fmt"
	"sync"
)

// fate is how a job goes, as one process sees it: well, until it fails, once.
type fate struct {
	failed chan struct{} // closed by the failure

	mu   sync.Mutex
	err  *Error
	then []func()
}

func newFate() *fate { return &fate{failed: make(chan struct{})} }

// fail fails the job through a rank, unless it has failed. It says whether it
// was the first.
func (f *fate) fail(rank int, err error) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return false
	}
	var known *Error
	if errors.As(err, &known) {
		f.err = known
	} else {
		f.err = &Error{rank, err}
	}
	close(f.failed)
	for _, do := range f.then {
		do()
	}
	return true
}

// onFailure has do called when the job fails, at once if it has.
func (f *fate) onFailure(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		do()
		return
	}
	f.then = append(f.then, do)
}

// error is the failure, or nil.
func (f *fate) error() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		return nil
	}
	return f.err
}

// errLate is the failure of a rank that did not come to a collective in time.
func errLate(what string, patience fmt.Stringer) error {
	return fmt.Errorf("it did not come to %s within %v", what, patience)
}
