package watch

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"sync"
	"time"
)

// Action is what is done about a change.
type Action interface {
	// Name is the kind of action, for counts and errors.
	Name() string
	// Do does it once. It returns when ctx ends. again says whether another try
	// may help.
	Do(ctx context.Context, c Change) (again bool, err error)
}

// Webhook posts changes as JSON to a URL.
type Webhook struct {
	URL    string
	Client *http.Client // its timeout, if any, bounds a try, too
}

// Name is "webhook".
func (*Webhook) Name() string { return "webhook" }

// Do posts a change. Other statuses than 2xx are errors; of those 429 and 5xx
// may go away.
func (w *Webhook) Do(ctx context.Context, c Change) (again bool, err error) {
	body, err := json.Marshal(c)
	if err != nil {
		return false, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL, bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := w.Client.Do(r)
	if err != nil {
		return true, err
	}
	defer answer.Body.Close()
	io.CopyN(io.Discard, answer.Body, 64<<10) // so that the connection can be used again
	if code := answer.StatusCode; code < 200 || code > 299 {
		return code == http.StatusTooManyRequests || code >= 500, fmt.Errorf("the server answered %s", answer.Status)
	}
	return false, nil
}

// Command runs a program for each change, without a shell. Its arguments are
// the event, the rule, the GPU's index (or all) and the text; the environment
// has the same as HEADROOM_EVENT, HEADROOM_RULE, HEADROOM_GPU and HEADROOM_TEXT, and
// HEADROOM_UUID, HEADROOM_HOST, HEADROOM_TIME (RFC 3339) and HEADROOM_VALUE.
type Command struct {
	Path    string
	Environ []string // what the program gets beside that
}

// Name is "exec".
func (*Command) Name() string { return "exec" }

// Do runs the program. It has no second try, since it may have done a part.
func (p *Command) Do(ctx context.Context, c Change) (again bool, err error) {
	gpu := strconv.Itoa(c.GPU)
	if c.GPU == HostGPU {
		gpu = "all"
	}
	cmd := exec.CommandContext(ctx, p.Path, string(c.Event), string(c.Rule), gpu, c.Text)
	cmd.Env = append(append([]string{}, p.Environ...),
		"HEADROOM_EVENT="+string(c.Event), "HEADROOM_RULE="+string(c.Rule), "HEADROOM_GPU="+gpu, "HEADROOM_TEXT="+c.Text,
		"HEADROOM_UUID="+c.UUID, "HEADROOM_HOST="+c.Host, "HEADROOM_TIME="+c.Time.Format(time.RFC3339),
		"HEADROOM_VALUE="+strconv.FormatFloat(c.Value, 'g', -1, 64))
	cmd.WaitDelay = time.Second // for children that keep its output open
	return false, cmd.Run()
}

// Tries says how patient a Notifier is.
type Tries struct {
	Most    int           // tries of one action
	Limit   time.Duration // for one try
	Backoff time.Duration // after the first; doubles each time
}

// queueLength is how many changes wait for an action at most.
const queueLength = 64

// Notifier does actions about changes in the background: a goroutine and a
// bounded queue for each, so that scanning never waits.
type Notifier struct {
	tries  Tries
	report func(error)
	lines  []*line
	wait   sync.WaitGroup
	stop   context.CancelFunc
}

// line is the queue of one action.
type line struct {
	action Action
	queue  chan Change
	mu     sync.Mutex
	count  ActionCount
}

// ActionCount is what became of the changes that an action was asked to do.
type ActionCount struct {
	Action                string
	Done, Failed, Dropped uint64
}

// NewNotifier starts a notifier. It calls report, from several goroutines, with
// each action that failed for good or was dropped. Close it.
func NewNotifier(tries Tries, report func(error), actions ...Action) *Notifier {
	ctx, stop := context.WithCancel(context.Background())
	n := &Notifier{tries: tries, report: report, stop: stop}
	for _, a := range actions {
		l := &line{action: a, queue: make(chan Change, queueLength), count: ActionCount{Action: a.Name()}}
		n.lines = append(n.lines, l)
		n.wait.Go(func() {
			for c := range l.queue {
				n.do(ctx, l, c)
			}
		})
	}
	return n
}

// Notify queues a change for every action and returns at once. Where a queue is
// full its oldest change is dropped. It must not be called after Close.
func (n *Notifier) Notify(c Change) {
	for _, l := range n.lines {
		for queued := false; !queued; {
			select {
			case l.queue <- c:
				queued = true
			default:
				n.drop(l)
			}
		}
	}
}

// drop takes the oldest change out of a queue, if it is still full.
func (n *Notifier) drop(l *line) {
	select {
	case c := <-l.queue:
		l.add(&l.count.Dropped)
		n.report(fmt.Errorf("%s: dropped %q: %d changes were waiting", l.action.Name(), c.Text, queueLength))
	default:
	}
}

// do tries an action until it is done, no more tries are left or help, or ctx ends.
func (n *Notifier) do(ctx context.Context, l *line, c Change) {
	pause := n.tries.Backoff
	for try := 1; ; try++ {
		again, err := n.once(ctx, l.action, c)
		if err == nil {
			l.add(&l.count.Done)
			return
		}
		if !again || try >= n.tries.Most || ctx.Err() != nil {
			l.add(&l.count.Failed)
			n.report(fmt.Errorf("%s: after %d tries: %w", l.action.Name(), try, err))
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause *= 2
	}
}

func (n *Notifier) once(ctx context.Context, a Action, c Change) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, n.tries.Limit)
	defer cancel()
	return a.Do(ctx, c)
}

func (l *line) add(counter *uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*counter++
}

// Counts tells what became of the changes.
func (n *Notifier) Counts() []ActionCount {
	var counts []ActionCount
	for _, l := range n.lines {
		l.mu.Lock()
		counts = append(counts, l.count)
		l.mu.Unlock()
	}
	return counts
}

// Close does what is queued, for at most the time given, and stops.
func (n *Notifier) Close(within time.Duration) {
	timer := time.AfterFunc(within, n.stop)
	for _, l := range n.lines {
		close(l.queue)
	}
	n.wait.Wait()
	timer.Stop()
	n.stop()
}
