package device

import (
	"errors"
	"sync"

	"github.com/headroom-go/headroom/internal/cuda"
)

// cudaEvents are the events of one stream, numbered from 1 on. A stream passes
// its events in their order, so one number says which are done, and the
// driver's events of those are used again:
//
//	numbers       1 … passed | passed+1 … passed+len(pending)
//	driver's      in free    | in pending, one each
//
// A driver's event that somebody is waiting for is not used again before the
// last waiter has left.
type cudaEvents struct {
	stream *cudaStream

	mu      sync.Mutex
	passed  uint64
	pending []*cudaMark
	free    []*cudaMark
}

type cudaMark struct {
	event   cuda.Event
	waiters int
	retired bool // no longer pending; goes to free with the last waiter
}

// record marks the end of the queue and gives the mark's number.
func (es *cudaEvents) record() uint64 {
	es.mu.Lock()
	defer es.mu.Unlock()
	es.stream.batch.flush()
	if len(es.pending) > 0 {
		es.poll(1)
	}
	number := es.passed + uint64(len(es.pending)) + 1
	m, err := es.mark()
	if err == nil {
		err = es.stream.context.RecordEvent(m.event, es.stream.handle)
	}
	es.pending = append(es.pending, m)
	if err != nil { // nothing can wait for it: let it be done with what is before
		es.stream.keep(err)
		m.event = 0
	}
	return number
}

// mark gives a driver's event that nobody uses.
func (es *cudaEvents) mark() (*cudaMark, error) {
	if n := len(es.free); n > 0 {
		m := es.free[n-1]
		es.free = es.free[:n-1]
		m.retired = false
		return m, nil
	}
	e, err := es.stream.context.NewEvent(false)
	return &cudaMark{event: e}, err
}

// poll moves passed on over at most n pending marks and says whether all n
// were done. es.mu must be held.
func (es *cudaEvents) poll(n int) bool {
	for ; n > 0 && len(es.pending) > 0; n-- {
		m := es.pending[0]
		if m.event != 0 {
			done, err := es.stream.context.EventDone(m.event)
			es.stream.keep(err)
			if !done && err == nil {
				return false
			}
		}
		es.retire()
	}
	return true
}

// retire counts the first pending mark as passed. es.mu must be held.
func (es *cudaEvents) retire() {
	m := es.pending[0]
	es.pending = es.pending[1:]
	es.passed++
	m.retired = true
	es.recycle(m)
}

// recycle makes a mark free if nobody uses it. es.mu must be held.
func (es *cudaEvents) recycle(m *cudaMark) {
	if m.retired && m.waiters == 0 && m.event != 0 {
		es.free = append(es.free, m)
	}
}

// find gives the pending mark of a number, or nil if it is passed. es.mu must
// be held.
func (es *cudaEvents) find(number uint64) *cudaMark {
	if number <= es.passed {
		return nil
	}
	return es.pending[number-es.passed-1]
}

// done says whether the stream has passed mark number.
func (es *cudaEvents) done(number uint64) bool {
	es.mu.Lock()
	defer es.mu.Unlock()
	m := es.find(number)
	if m == nil {
		return true
	}
	if m.event != 0 {
		done, err := es.stream.context.EventDone(m.event)
		es.stream.keep(err)
		if !done && err == nil {
			return false
		}
	}
	for es.passed < number {
		es.retire()
	}
	return true
}

// passedNow is the number of the last mark that is known to be passed.
func (es *cudaEvents) passedNow() uint64 {
	es.mu.Lock()
	defer es.mu.Unlock()
	es.poll(len(es.pending))
	return es.passed
}

// wait returns when the stream has passed mark number.
func (es *cudaEvents) wait(number uint64) {
	for !es.done(number) {
		es.mu.Lock()
		m := es.find(number)
		if m == nil {
			es.mu.Unlock()
			return
		}
		m.waiters++
		es.mu.Unlock()
		err := es.stream.context.SyncEvent(m.event)
		es.mu.Lock()
		m.waiters--
		es.recycle(m)
		es.mu.Unlock()
		es.stream.keep(err)
	}
}

// waitFor keeps later work of s from starting before mark number.
func (es *cudaEvents) waitFor(s *cudaStream, number uint64) {
	es.mu.Lock()
	defer es.mu.Unlock()
	if m := es.find(number); m != nil && m.event != 0 {
		s.batch.flush()
		s.keep(s.context.WaitEvent(s.handle, m.event))
	}
}

// finish counts all marks as passed: the stream has been waited for.
func (es *cudaEvents) finish() {
	es.mu.Lock()
	defer es.mu.Unlock()
	for len(es.pending) > 0 {
		es.retire()
	}
}

// close gives the driver's events back.
func (es *cudaEvents) close() (err error) {
	for _, m := range es.free {
		err = errors.Join(err, es.stream.context.DestroyEvent(m.event))
	}
	es.free = nil
	return err
}

// cudaEvent is a mark of a stream by its number.
type cudaEvent struct {
	of     *cudaEvents
	number uint64
}

func (e *cudaEvent) Done() bool { return e.of.done(e.number) }
func (e *cudaEvent) Sync()      { e.of.wait(e.number) }
