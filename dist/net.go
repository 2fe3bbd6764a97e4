package dist

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// How processes find each other, and notice that one is gone.
//
// Rank 0 listens at an address that all know. Every other rank connects to it
// and says where it listens itself; when all have come, rank 0 tells them all
// addresses. These connections stay. Both ends send a beat now and then: a
// connection that ends without a farewell, or is silent too long, is a rank that
// died. What rank 0 learns so, or is told, it tells all. Where rank 0 dies, all
// notice by themselves.
//
// Data go over other connections, one for each pair of ranks in each group. One
// that breaks tells less: its other end may have died, or only have heard first
// that another one did. So who finds it broken waits a moment for word from
// rank 0. When an attempt is abandoned, all connections for data are closed and made
// anew: bytes that were on their way, also half a message, are gone with them.
//
// All this goes over TCP, or over an MPI library in its place, which knows where
// the ranks are; but nothing tells there that a process ended, so that a rank that
// died is one that is silent.
//
// Nothing is encrypted, and whoever knows the address and the job's name is let
// in: it is for networks that are trusted.

// network connects processes.
type network interface {
	listen(ctx context.Context, address string) (net.Listener, error)
	dial(ctx context.Context, address string) (net.Conn, error)
}

// tcp is the system's network.
type tcp struct{}

func (tcp) listen(ctx context.Context, address string) (net.Listener, error) {
	return new(net.ListenConfig).Listen(ctx, "tcp", address)
}

func (tcp) dial(ctx context.Context, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}

// JoinOptions say who a process is in a job.
type JoinOptions struct {
	Options
	Rank, Size int
	MPI        *MPI          // carries the connections; nil: TCP does
	Address    string        // where rank 0 listens, as host:port; of MPI as rank:port
	Job        string        // tells jobs at one address apart; may be empty
	Arrival    time.Duration // how long ranks wait for each other at the start; 0: 5 minutes
	Silence    time.Duration // after which a rank that says nothing has died; 0: 15 seconds
}

// Join makes this process a rank of a job and gives the group of all
// its ranks, on devices with memory of the host. It waits until all have come.
func Join(ctx context.Context, o JoinOptions) (Group, error) {
	if o.Size < 1 || o.Rank < 0 || o.Rank >= o.Size {
		return nil, fmt.Errorf("rank %d of %d: ranks are 0 to the number of ranks − 1", o.Rank, o.Size)
	}
	if o.Arrival == 0 {
		o.Arrival = 5 * time.Minute
	}
	if o.Silence == 0 {
		o.Silence = 15 * time.Second
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.Arrival, fmt.Errorf("not all %d ranks had come to %s within %v", o.Size, o.Address, o.Arrival))
	defer cancel()
	j := &netJob{o: o, network: tcp{}, fate: newFate(1), arrived: map[arrival]chan *dataConn{}, gone: make([]chan struct{}, o.Size), allGone: make(chan struct{})}
	j.me = newMember(o.Rank, j.fate)
	j.me.renew, j.fate.abandoned = j.renew, func(a *attempt) { go j.spreadAbandoned(a) }
	j.me.onOver(func(a *attempt) { j.hangUp(a.number) })
	for r := range j.gone {
		j.gone[r] = make(chan struct{})
	}
	if o.MPI != nil {
		j.network = o.MPI
	}
	g, err := j.start(ctx)
	if err != nil {
		j.shut()
		if ctx.Err() != nil {
			err = errors.Join(context.Cause(ctx), err)
		}
		return nil, fmt.Errorf("rank %d of %d could not join the job at %s: %w", o.Rank, o.Size, o.Address, err)
	}
	return g, nil
}

// netJob is a job as one of its processes sees it.
type netJob struct {
	o         JoinOptions
	network   network
	fate      *fate
	me        *member
	listener  net.Listener // for data
	addresses []string     // of all ranks' listeners
	controls  []*control   // rank 0's with all others, by rank (its own is nil); else that with rank 0

	gone    []chan struct{} // closed when a rank leaves
	allGone chan struct{}
	leaving atomic.Bool
	tasks   sync.WaitGroup

	mu      sync.Mutex
	left    int        // ranks that left, as rank 0 counts them
	wires   []*netWire // of all groups
	data    []*dataConn
	arrived map[arrival]chan *dataConn
	closed  bool
}

// start meets the other ranks and connects to them.
func (j *netJob) start(ctx context.Context) (Group, error) {
	meet := j.visit
	if j.o.Rank == 0 {
		meet = j.host
	}
	if err := meet(ctx); err != nil {
		return nil, err
	}
	j.tasks.Go(j.accept)
	j.fate.onFailure(func() { go j.spread() })
	for _, c := range j.controls {
		if c != nil {
			j.tasks.Go(func() { j.listen(c) })
			j.tasks.Go(func() { c.beat(j.o.Silence / 5) })
		}
	}
	all := make([]int, j.o.Size)
	for r := range all {
		all[r] = r
	}
	return j.group(ctx, "", all, j.o.Rank)
}

// host is how rank 0 meets the others.
func (j *netJob) host(ctx context.Context) error {
	l, err := j.network.listen(ctx, j.o.Address)
	if err != nil {
		return err
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	if err := j.listenBeside(ctx, l.Addr()); err != nil {
		return err
	}
	j.addresses, j.controls = make([]string, j.o.Size), make([]*control, j.o.Size)
	j.addresses[0] = j.listener.Addr().String()
	for missing := j.o.Size - 1; missing > 0; {
		conn, err := l.Accept()
		if err != nil {
			err = fmt.Errorf("ranks %v did not come: %w", j.missing(), err)
			j.tell(note{Kind: "refused", Text: err.Error()})
			return err
		}
		if j.welcome(newControl(conn)) {
			missing--
		}
	}
	for _, c := range j.controls {
		if c == nil {
			continue
		}
		if err := c.write(note{Kind: "welcome", Addresses: j.addresses}, j.o.Silence); err != nil {
			return err
		}
	}
	return nil
}

// missing are the ranks that have not come.
func (j *netJob) missing() (ranks []int) {
	for r, c := range j.controls {
		if r > 0 && c == nil {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// welcome takes in a rank that introduces itself.
func (j *netJob) welcome(c *control) bool {
	n, err := c.read(j.o.Silence)
	switch {
	case err != nil || n.Kind != "hello":
		c.conn.Close() // a stranger
		return false
	case n.Job != j.o.Job:
		err = fmt.Errorf("it is of job %q, here is %q", n.Job, j.o.Job)
	case n.Size != j.o.Size:
		err = fmt.Errorf("it is of %d ranks, here are %d", n.Size, j.o.Size)
	case n.Rank < 1 || n.Rank >= j.o.Size || j.controls[n.Rank] != nil:
		err = fmt.Errorf("there is a rank %d already", n.Rank)
	}
	if err != nil {
		c.write(note{Kind: "refused", Text: err.Error()}, j.o.Silence)
		c.conn.Close()
		return false
	}
	c.peer = n.Rank
	j.controls[n.Rank], j.addresses[n.Rank] = c, n.Address
	return true
}

// visit is how another rank meets rank 0.
func (j *netJob) visit(ctx context.Context) error {
	conn, err := j.dialUntil(ctx, j.o.Address)
	if err != nil {
		return err
	}
	c := newControl(conn)
	j.controls = []*control{c}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := j.listenBeside(ctx, conn.LocalAddr()); err != nil {
		return err
	}
	hello := note{Kind: "hello", Job: j.o.Job, Rank: j.o.Rank, Size: j.o.Size, Address: j.listener.Addr().String()}
	if err := c.write(hello, j.o.Silence); err != nil {
		return err
	}
	n, err := c.read(0)
	if err == nil && n.Kind == "refused" {
		err = errors.New(n.Text)
	}
	if err == nil && (n.Kind != "welcome" || len(n.Addresses) != j.o.Size) {
		err = fmt.Errorf("rank 0 answered with %q", n.Kind)
	}
	j.addresses = n.Addresses
	return err
}

// listenBeside listens for data at the host of an address of this process.
func (j *netJob) listenBeside(ctx context.Context, a net.Addr) (err error) {
	host, _, err := net.SplitHostPort(a.String())
	if err == nil {
		j.listener, err = j.network.listen(ctx, net.JoinHostPort(host, "0"))
	}
	return err
}

// dialUntil connects to a program that may not have started yet.
func (j *netJob) dialUntil(ctx context.Context, address string) (net.Conn, error) {
	for {
		conn, err := j.network.dial(ctx, address)
		if err == nil {
			return conn, nil
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// listen takes what the other end of a control connection says until it ends.
func (j *netJob) listen(c *control) {
	for {
		n, err := c.read(j.o.Silence)
		switch {
		case err != nil:
			if !j.leaving.Load() {
				j.fate.fail(c.peer, lost(err, j.o.Silence))
			}
			return
		case !j.sane(c, n):
			j.fate.fail(c.peer, fmt.Errorf("it sent a note %q of rank %d and attempt %d, which no rank of this job does", n.Kind, n.Rank, n.Attempt))
			return
		case n.Kind == "fail":
			j.fate.fail(n.Rank, errors.New(n.Text))
		case n.Kind == "abandon":
			j.fate.abandon(n.Attempt, n.Rank, errors.New(n.Text))
		case n.Kind == "left":
			j.leave(n.Rank)
		case n.Kind == "end":
			close(j.allGone)
			return
		}
	}
}

// sane says whether n is a note that the other end of c may send.
func (j *netJob) sane(c *control, n note) bool {
	const mostAhead = 1 << 10 // attempts, by abandoning one after the other
	return n.Rank >= 0 && n.Rank < j.o.Size && n.Attempt <= j.me.now.Load().number+mostAhead && (n.Kind != "end" || c.peer == 0)
}

// lost says how a connection came to its end.
func lost(err error, silence time.Duration) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("it has said nothing for %v: it hangs, or its machine or the network is down", silence)
	}
	return fmt.Errorf("it died, or left without a word (%w)", err)
}

// leave notes that a rank has left. Rank 0 tells the others, and when all have
// left lets them go.
func (j *netJob) leave(rank int) {
	j.mu.Lock()
	select {
	case <-j.gone[rank]:
		j.mu.Unlock()
		return
	default:
		close(j.gone[rank])
	}
	j.left++
	last := j.left == j.o.Size
	j.mu.Unlock()
	if j.o.Rank > 0 {
		return
	}
	j.tell(note{Kind: "left", Rank: rank})
	if last {
		j.leaving.Store(true)
		j.tell(note{Kind: "end"})
		close(j.allGone)
	}
}

// tell sends a note over all control connections.
func (j *netJob) tell(n note) {
	for _, c := range j.controls {
		if c != nil {
			c.write(n, j.o.Silence) // what fails here, listen notices
		}
	}
}

// spread tells the others of a failure and ends what waits for data.
func (j *netJob) spread() {
	var failure *Error
	errors.As(j.fate.error(), &failure)
	j.tell(note{Kind: "fail", Rank: failure.Rank, Text: failure.Err.Error()})
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, c := range j.data {
		c.conn.Close()
	}
}

// spreadAbandoned tells the others that an attempt is over.
func (j *netJob) spreadAbandoned(a *attempt) {
	j.tell(note{Kind: "abandon", Attempt: a.number, Rank: a.err.Rank, Text: a.err.Err.Error()})
}

// close leaves the job.
func (j *netJob) close() error {
	j.mu.Lock()
	for _, c := range j.data {
		c.finish()
	}
	j.mu.Unlock()
	switch {
	case j.fate.error() != nil: // else it would be taken for one that left, by who hears that first
	case j.o.Rank == 0:
		j.leave(0)
	default:
		j.tell(note{Kind: "left", Rank: j.o.Rank})
	}
	select {
	case <-j.allGone:
	case <-j.fate.failed:
		j.spread() // once more, so that it is said before this process ends
	}
	j.shut()
	return j.fate.error()
}

// shut ends all connections.
func (j *netJob) shut() {
	j.leaving.Store(true)
	j.mu.Lock()
	j.closed = true
	if j.listener != nil {
		j.listener.Close()
	}
	for _, c := range j.controls {
		if c != nil {
			c.end()
		}
	}
	for _, c := range j.data {
		c.finish()
		c.conn.Close()
	}
	j.mu.Unlock()
	j.tasks.Wait()
}

// group connects the ranks of a group, as the one at place sees it.
func (j *netJob) group(ctx context.Context, name string, ranks []int, place int) (Group, error) {
	w := &netWire{job: j, name: name, ranks: ranks, place: place}
	if err := w.connect(ctx, j.me.now.Load().generation); err != nil {
		return nil, err
	}
	j.mu.Lock()
	j.wires = append(j.wires, w)
	j.mu.Unlock()
	g := &hostGroup{rank: place, size: len(ranks), wire: w, me: j.me, close: j.close}
	g.sub = func(sub string, places []int) (Group, error) {
		members := make([]int, len(places))
		for i, p := range places {
			members[i] = ranks[p]
		}
		ctx, cancel := context.WithTimeout(context.Background(), j.o.Arrival)
		defer cancel()
		return j.group(ctx, fmt.Sprintf("%s/%s%v", name, sub, members), members, slices.Index(places, place))
	}
	return g, nil
}

// renew connects all groups once more. What was on its way ends with the connections
// of before.
func (j *netJob) renew(a *attempt) error {
	j.hangUp(a.generation - 1)
	j.mu.Lock()
	j.data = slices.DeleteFunc(j.data, func(c *dataConn) bool {
		old := c.generation < a.generation
		if old {
			c.finish()
		}
		return old
	})
	maps.DeleteFunc(j.arrived, func(k arrival, _ chan *dataConn) bool { return k.generation < a.generation })
	wires := j.wires
	j.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(context.Background(), j.o.Arrival, fmt.Errorf("not all ranks began a new attempt within %v", j.o.Arrival))
	defer cancel()
	for _, w := range wires {
		if err := w.connect(ctx, a.generation); err != nil {
			return err
		}
	}
	return nil
}

// hangUp ends the connections for data that were made up to an attempt.
func (j *netJob) hangUp(number int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, c := range j.data {
		if c.generation <= number {
			c.conn.Close()
		}
	}
}

// eof is the end of a connection that the other end closed.
func eof(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }
