package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/live"
	"github.com/headroom-go/headroom/train"
)

// liveFlag is --serve: where a job that runs shows itself.
type liveFlag struct {
	addr     string
	listener net.Listener // nil: nowhere
}

func (l *liveFlag) add(f *pflag.FlagSet) {
	f.StringVar(&l.addr, "serve", "", "show the running job in a browser at `ADDR`, with /metrics for Prometheus, /debug/pprof and /healthz; a port alone is on 127.0.0.1, and port 0 any that is free")
}

// wanted says whether the job is to be shown.
func (l *liveFlag) wanted() bool { return l.addr != "" }

// listen takes the address, before the job does anything that takes long.
func (l *liveFlag) listen() (err error) {
	if !l.wanted() {
		return nil
	}
	if l.addr, err = addressOf("--serve", l.addr); err != nil {
		return err
	}
	if l.listener, err = net.Listen("tcp", l.addr); err != nil {
		return usagef("--serve %s: %w", l.addr, err)
	}
	return nil
}

// close gives the address back; after show has begun it changes nothing.
func (l *liveFlag) close() {
	if l.listener != nil {
		_ = l.listener.Close() // nobody was answered, or the server has closed it
	}
}

// show shows a job from now on until end is called, also while an interrupted
// one saves. Without --serve the job is nil.
func (l *liveFlag) show(name string, mem *alloc.Allocator, stderr io.Writer) (job *live.Job, end func() error) {
	if l.listener == nil {
		return nil, func() error { return nil }
	}
	job = live.New(mem, live.Options{Name: name, Version: version(), Names: namesOf(l.addr)})
	fact(stderr, "live", "http://%s/", l.listener.Addr())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- job.Serve(ctx, l.listener) }()
	return job, func() error { cancel(); return <-ended }
}

// tell tells a live page of a step.
func tell(job *live.Job, p train.Progress) {
	if p.Skipped {
		job.Event(fmt.Sprintf("step %d: numbers overflowed, and it is done again with other data", p.Step))
	} else {
		job.Step(p.Step, p.Loss)
	}
	for _, e := range p.Events {
		job.Event(fmt.Sprintf("step %d: %s", p.Step, e.Text))
	}
	if s := p.Test; s != nil {
		text := fmt.Sprintf("step %d: loss %.3f on %d samples that are not learned from", p.Step, s.Loss, s.Samples)
		if s.Accuracy > 0 {
			text += fmt.Sprintf(", %.2f %% right", 100*s.Accuracy)
		}
		job.Event(text)
	}
}

// addressOf completes an address to listen at: without a host it is on this
// machine alone.
func addressOf(flag, addr string) (string, error) {
	if !strings.Contains(addr, ":") {
		addr = ":" + addr
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port == "" {
		return "", usagef("%s %q is no address: write it like 127.0.0.1:9401, or 0.0.0.0:9401 for all interfaces", flag, addr)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port), nil
}

// namesOf are the names by which a server at an address may be called: the
// address's own and the machine's.
func namesOf(addr string) []string {
	var names []string
	if host, _, err := net.SplitHostPort(addr); err == nil {
		names = append(names, strings.ToLower(host))
	}
	if name, err := os.Hostname(); err == nil {
		names = append(names, strings.ToLower(name))
	}
	return names
}
