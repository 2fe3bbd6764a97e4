package dist

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// fate is how a job goes, as one process sees it: well, until it fails, once. Before
// that some of the attempts that its ranks make together may be abandoned.
type fate struct {
	failed chan struct{} // closed by the failure

	mu        sync.Mutex
	err       *Error
	then      []func()
	members   int              // ranks that this process sees it for
	attempts  map[int]*attempt // those that somebody is in, or that were abandoned before this process came to them
	oldest    int              // those before are over for all members
	abandoned func(*attempt)   // told of the first word of each; may be nil
}

// attempt is what ranks do together from one Group.Attempt to the next.
type attempt struct {
	fate       *fate
	number     int
	generation int           // the attempt that began with nothing on its way, at or before this one
	over       chan struct{} // closed when it is abandoned, and when the job fails
	err        *Error        // that it was abandoned with
	then       []func()
	entered    int // members that came to it
	left       int // members that went on to the next one
}

func newFate(members int) *fate {
	return &fate{failed: make(chan struct{}), members: members, attempts: map[int]*attempt{}}
}

// fail fails the job through a rank, unless it has failed.
func (f *fate) fail(rank int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return
	}
	f.err = &Error{Rank: rank, Err: err}
	if known := (*Error)(nil); errors.As(err, &known) {
		f.err = &Error{Rank: known.Rank, Err: known.Err}
	}
	close(f.failed)
	for _, do := range f.then {
		do()
	}
	for _, a := range f.attempts {
		a.end()
	}
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

// at is an attempt that not all members have left; f is locked.
func (f *fate) at(number int) *attempt {
	a := f.attempts[number]
	if a == nil {
		a = &attempt{fate: f, number: number, over: make(chan struct{})}
		if f.attempts[number] = a; f.err != nil {
			a.end()
		}
	}
	return a
}

// follow brings a member from an attempt to the next one.
func (f *fate) follow(last *attempt) *attempt {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := f.at(last.number + 1)
	if next.entered++; next.entered == 1 {
		if next.generation = last.generation; last.err != nil {
			next.generation = next.number
		}
	}
	if last.left++; last.left == f.members {
		f.oldest = next.number
		delete(f.attempts, last.number)
	}
	return next
}

// abandon ends an attempt through a rank, unless it is over.
func (f *fate) abandon(number, rank int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if number < f.oldest || f.err != nil {
		return
	}
	a := f.at(number)
	if a.err != nil {
		return
	}
	a.err = &Error{Rank: rank, Err: err, Abandoned: true}
	if a.end(); f.abandoned != nil {
		f.abandoned(a)
	}
}

// end has what waits in the attempt go on; its fate is locked.
func (a *attempt) end() {
	select {
	case <-a.over:
		return
	default:
	}
	close(a.over)
	for _, do := range a.then {
		do()
	}
}

// onOver has do called when the attempt is over, at once if it is.
func (a *attempt) onOver(do func()) {
	a.fate.mu.Lock()
	defer a.fate.mu.Unlock()
	select {
	case <-a.over:
		do()
	default:
		a.then = append(a.then, do)
	}
}

// error is why the attempt is over, or nil: the failure of the job, or that it was
// abandoned.
func (a *attempt) error() error {
	a.fate.mu.Lock()
	defer a.fate.mu.Unlock()
	switch {
	case a.fate.err != nil:
		return a.fate.err
	case a.err != nil:
		return a.err
	}
	return nil
}

// joined says whether all members have come to the attempt, so that the one before is
// over for them. In a job that has failed nobody waits for that.
func (a *attempt) joined() bool {
	a.fate.mu.Lock()
	defer a.fate.mu.Unlock()
	return a.entered == a.fate.members || a.fate.err != nil
}

// member is a rank of a job: what its groups have in common.
type member struct {
	rank  int // of the job
	fate  *fate
	now   atomic.Pointer[attempt]
	renew func(*attempt) error // makes what carries messages anew; nil: nothing to do

	mu   sync.Mutex
	over []func(*attempt) // called when the attempt that this rank is in is over
}

func newMember(rank int, f *fate) *member {
	m := &member{rank: rank, fate: f}
	f.mu.Lock()
	first := f.at(0)
	first.entered++
	f.mu.Unlock()
	m.enter(first)
	return m
}

func (m *member) enter(a *attempt) {
	m.now.Store(a)
	a.onOver(func() { go m.end(a) })
}

// end does what there is to do when this rank's attempt is over.
func (m *member) end(a *attempt) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, do := range m.over {
		do(a)
	}
}

// onOver has do called at the end of each attempt that this rank is in and that is
// abandoned, or that the job fails in.
func (m *member) onOver(do func(*attempt)) {
	m.mu.Lock()
	m.over = append(m.over, do)
	a := m.now.Load()
	m.mu.Unlock()
	if a.error() != nil {
		do(a)
	}
}

// begin goes on to the next attempt.
func (m *member) begin() error {
	last := m.now.Load()
	next := m.fate.follow(last)
	m.enter(next)
	if next.generation == next.number && m.renew != nil {
		if err := m.renew(next); err != nil && next.error() == nil {
			m.fate.fail(m.rank, err)
		}
	}
	return m.fate.error()
}

// unlessAbandoned is err, but nil where the attempt was abandoned: at the end of a
// barrier one rank can be further than another.
func unlessAbandoned(err error) error {
	if known := (*Error)(nil); errors.As(err, &known) && known.Abandoned {
		return nil
	}
	return err
}

// errLate is the failure of a rank that did not come to a collective in time.
func errLate(what string, patience fmt.Stringer) error {
	return fmt.Errorf("it did not come to %s within %v", what, patience)
}
