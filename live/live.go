// Package live shows the memory of a running program in a browser: a page with
// memory over time, loss, events and the allocator's figures, and beside it
// metrics for Prometheus and profiles for go tool pprof.
//
//	job := live.New(mem, live.Options{Name: "my job"})
//	go job.Run(ctx)
//	http.Handle("/", job)
//
// A [Job] asks an [alloc.Allocator] a few times a second and keeps a bounded
// number of samples, however long the program runs. The page's questions are
// answered from these, so that a step never waits for whoever looks on for
// longer than it takes to copy the allocator's figures or, for a profile, to
// list its blocks.
package live

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/internal/web"
	"github.com/headroom-go/headroom/trace"
)

// Options are the choices of a Job. The zero value is ready.
type Options struct {
	Name    string        // of the job, for the page's title
	Version string        // of the program, for the page's foot
	Names   []string      // hosts' names by which browsers reach the server, beside addresses and localhost
	Every   time.Duration // between two samples; 0: a quarter of a second
}

// Job shows a program that runs. Its methods may be called from several
// goroutines at once, also while the program allocates and frees.
type Job struct{ page *web.Live }

// New gives a Job that shows the memory of mem, for which it takes its highs
// ([alloc.Allocator.TakeHigh]). The profile of device memory
// names the places of those blocks whose stacks the allocator records
// ([alloc.Options].StackDepth, [alloc.Allocator.SetSink]).
func New(mem *alloc.Allocator, o Options) *Job {
	return &Job{web.NewLive(web.LiveOptions{Name: o.Name, Version: o.Version, Names: o.Names, Every: o.Every,
		Budget: mem.Device().Info().Capacity, Stats: mem.Stats, High: mem.TakeHigh,
		Snapshot: func() (*trace.Snapshot, error) { return mem.Snapshot(), nil }})}
}

// Run takes samples until ctx ends.
func (j *Job) Run(ctx context.Context) { j.page.Run(ctx) }

// Step tells that a step is done, with its loss. A loss that is not finite is
// shown as none.
func (j *Job) Step(step int, loss float64) { j.page.Step(step, loss) }

// Event tells what else has happened, in a sentence. The last 500 are kept.
func (j *Job) Event(text string) { j.page.Event(text) }

// ServeHTTP answers at / with the page, at /metrics with figures for
// Prometheus, at /healthz with «ok», and below /debug/pprof/ with profiles:
// those of [net/http/pprof], and device, which is that of device memory. It
// answers requests that name the machine by an address, as localhost or by one
// of Options.Names, and none that another site's page has sent. A program that
// mounts it below another path strips that path first.
func (j *Job) ServeHTTP(w http.ResponseWriter, r *http.Request) { j.page.ServeHTTP(w, r) }

// Serve takes samples and answers at the listener, which it closes, until ctx
// ends, which is its success. It bounds the connections at once and the time
// that each may take.
func (j *Job) Serve(ctx context.Context, l net.Listener) error {
	go j.Run(ctx)
	return web.Serve(ctx, l, j, web.DefaultLimits())
}
