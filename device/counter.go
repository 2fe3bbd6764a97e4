package device

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
)

// A counter only grows; goroutines wait for it to reach a number.
//
// next is the least number somebody sleeps for, so that the goroutine that
// counts takes the lock only when there is somebody to wake. A waiter stores
// next before it reads value, the counting goroutine stores value before it
// reads next: one of the two sees the other.
type counter struct {
	value atomic.Uint64
	next  atomic.Uint64
	mu    sync.Mutex
	grown sync.Cond
}

// nobody in next means that no goroutine sleeps.
const nobody = math.MaxUint64

func (c *counter) init() {
	c.grown.L = &c.mu
	c.next.Store(nobody)
}

func (c *counter) reached(n uint64) bool { return c.value.Load() >= n }

// increment adds one and wakes who slept for that.
func (c *counter) increment() {
	if c.value.Add(1) < c.next.Load() {
		return
	}
	c.mu.Lock()
	c.next.Store(nobody)
	c.grown.Broadcast()
	c.mu.Unlock()
}

// wait returns when the counter has reached n.
func (c *counter) wait(n uint64) {
	if c.reached(n) || spin(func() bool { return c.reached(n) }) {
		return
	}
	c.mu.Lock()
	for {
		if n < c.next.Load() {
			c.next.Store(n)
		}
		if c.reached(n) {
			break
		}
		c.grown.Wait()
	}
	c.mu.Unlock()
}

// spin tries ready for some ten microseconds, which is what waking a sleeping
// thread takes, and yields its processor to other goroutines meanwhile.
func spin(ready func() bool) bool {
	const yields, tries = 40, 60
	for range yields {
		for range tries {
			if ready() {
				return true
			}
		}
		runtime.Gosched()
	}
	return false
}
