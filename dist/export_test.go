package dist

import "errors"

// Kill ends all connections of a rank of a job of processes, as the end of its process does.
func Kill(g Group) {
	j := g.(*hostGroup).wire.(*netWire).job
	defer g.Fail(errors.New("killed")) // which nobody hears
	j.mu.Lock()
	defer j.mu.Unlock()
	j.leaving.Store(true)
	j.listener.Close()
	for _, c := range j.controls {
		if c != nil {
			c.end()
		}
	}
	for _, c := range j.data {
		c.conn.Close()
	}
}

// Hush ends the beats of a rank of a job of processes, as a machine that hangs does.
func Hush(g Group) {
	for _, c := range g.(*hostGroup).wire.(*netWire).job.controls {
		if c != nil {
			c.once.Do(func() { close(c.ended) })
		}
	}
}

// LimitSlots has no more bytes of each slot used, on all ranks before their collectives.
func LimitSlots(p *Peers, bytes int) { p.slot = min(p.slot, bytes) }
