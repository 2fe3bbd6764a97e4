package dist

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Options bound how long ranks wait.
type Options struct {
	// Patience is how long a rank waits in a collective for another one. Then that
	// one has failed. 0: without end.
	Patience time.Duration
}

// Local makes a job whose ranks are goroutines of this process, on devices
// with memory of the host, and gives the group of all as each of them sees it.
// Memory goes from rank to rank without a copy between.
func Local(size int, o Options) []Group {
	j := &localJob{fate: newFate(size), patience: o.Patience, boxes: map[boxKey]chan *letter{}, tables: map[string][]any{}, gate: newGate(size)}
	groups := make([]Group, size)
	all := make([]int, size)
	for r := range all {
		all[r] = r
		j.members = append(j.members, newMember(r, j.fate))
	}
	for r := range groups {
		groups[r] = j.group("", all, r)
	}
	return groups
}

// localJob is what the ranks of a job in one process share.
type localJob struct {
	fate     *fate
	members  []*member
	patience time.Duration
	gate     *gate

	mu     sync.Mutex
	boxes  map[boxKey]chan *letter
	tables map[string][]any // of groups, by their names
}

// boxKey names the way of messages from one rank to another within a group.
type boxKey struct {
	group      string
	generation int // of attempts
	from, to   int // of the job
}

// letter is a message whose sender waits until it is read. The end of an attempt leaves
// those that nobody has begun to read; the others are read to their end, so that
// the sender's memory is its own again.
type letter struct {
	header
	data  []Buf
	to    int         // of the job
	begun atomic.Bool // it is being read, or is withdrawn
	read  chan struct{}
}

// box gives a way of messages. Between two ranks there are never more than a
// few on the way, since each waits for its own to be read.
func (j *localJob) box(k boxKey) chan *letter {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.boxes[k] == nil {
		j.boxes[k] = make(chan *letter, 4)
	}
	return j.boxes[k]
}

// table gives a group's places, at each of which its rank can lay something.
func (j *localJob) table(group string, size int) []any {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.tables[group] == nil {
		j.tables[group] = make([]any, size)
	}
	return j.tables[group]
}

// meet gives all ranks of g, which Local made, what each of them brings.
func meet[T any](g *hostGroup, mine T) (all []T, err error) {
	w := g.wire.(*localWire)
	table := w.job.table(w.name, g.size)
	table[g.rank] = mine
	if err := g.Barrier(); err != nil {
		return nil, err
	}
	for _, v := range table {
		all = append(all, v.(T))
	}
	return all, g.Barrier() // nobody lays down more before all have seen it
}

// group is that of some ranks of the job, as the rank at place sees it.
func (j *localJob) group(name string, ranks []int, place int) Group {
	job := ranks[place]
	w := &localWire{job: j, name: name, ranks: ranks, me: j.members[job]}
	g := &hostGroup{rank: place, size: len(ranks), wire: w, me: w.me}
	g.sub = func(sub string, places []int) (Group, error) {
		members := make([]int, len(places))
		for i, p := range places {
			members[i] = ranks[p]
		}
		return j.group(fmt.Sprintf("%s/%s%v", name, sub, members), members, slices.Index(places, place)), nil
	}
	g.close = func() error { return j.gate.leave(job, j.fate) }
	return g
}

// localWire passes buffers between goroutines.
type localWire struct {
	job   *localJob
	name  string
	ranks []int
	me    *member
	sent  []*letter // since settle
}

// way is that from a rank to another in an attempt.
func (w *localWire) way(a *attempt, from, to int) chan *letter {
	return w.job.box(boxKey{w.name, a.generation, from, to})
}

func (w *localWire) post(to int, h header, data []Buf) {
	l := &letter{header: h, data: data, to: w.ranks[to], read: make(chan struct{})}
	w.sent = append(w.sent, l)
	now := w.me.now.Load()
	select {
	case w.way(now, w.me.rank, l.to) <- l:
	case <-now.over:
	}
}

func (w *localWire) next(from int, what string) (header, source, error) {
	rank, now := w.ranks[from], w.me.now.Load()
	box := w.way(now, rank, w.me.rank)
	late, stop := w.timer()
	defer stop()
	var l *letter
	select {
	case l = <-box:
	case <-w.job.gate.gone[rank]:
		select {
		case l = <-box: // sent before it left
		default:
			return header{}, nil, &Error{Rank: rank, Err: fmt.Errorf("it has left the job, while rank %d is in %s", w.me.rank, what)}
		}
	case <-late:
		return header{}, nil, &Error{Rank: rank, Err: errLate(what, w.job.patience)}
	case <-now.over:
		return header{}, nil, now.error()
	}
	if !l.begun.CompareAndSwap(false, true) {
		return header{}, nil, now.error()
	}
	return l.header, &reader{bufs: l.data, end: func() { close(l.read) }}, nil
}

// timer ends the patience; without one it never does.
func (w *localWire) timer() (late <-chan time.Time, stop func() bool) {
	if w.job.patience == 0 {
		return nil, func() bool { return true }
	}
	t := time.NewTimer(w.job.patience)
	return t.C, t.Stop
}

func (w *localWire) settle() (err error) {
	late, stop := w.timer()
	defer stop()
	now := w.me.now.Load()
	for _, l := range w.sent {
		select {
		case <-l.read:
			continue
		case <-late:
			w.job.fate.fail(l.to, errLate(l.what.String(), w.job.patience))
		case <-now.over:
		}
		if err = now.error(); !l.begun.CompareAndSwap(false, true) {
			<-l.read
		}
	}
	w.sent = w.sent[:0]
	return err
}

// gate lets ranks leave together.
type gate struct {
	mu   sync.Mutex
	left int
	gone []chan struct{} // of each rank
	open chan struct{}
}

func newGate(n int) *gate {
	g := &gate{left: n, open: make(chan struct{})}
	for range n {
		g.gone = append(g.gone, make(chan struct{}))
	}
	return g
}

// leave waits for all others, or for the job to fail.
func (g *gate) leave(rank int, f *fate) error {
	g.mu.Lock()
	close(g.gone[rank])
	if g.left--; g.left == 0 {
		close(g.open)
	}
	g.mu.Unlock()
	select {
	case <-g.open:
		return f.error()
	case <-f.failed:
		return f.error()
	}
}
