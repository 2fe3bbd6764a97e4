package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headroom-go/headroom/watch"
)

// watchOutput shows what a watch finds.
type watchOutput interface {
	scan(changes []watch.Change) error
	end(ctx context.Context) error // the source has no more
}

// output picks how to show what is found, and how to leave the terminal.
func (w *watching) output(cmd *cobra.Command, quit func()) (watchOutput, func()) {
	stdout := cmd.OutOrStdout()
	switch {
	case w.json:
		return &jsonOutput{json.NewEncoder(stdout), w.watcher, w.once}, func() {}
	case w.once:
		return &onceOutput{newPage(stdout), w.watcher}, func() {}
	case columnsOf(stdout) > 0:
		return openView(stdout, cmd.InOrStdin(), w.watcher, quit)
	}
	return &lineOutput{p: newPage(stdout), watcher: w.watcher}, func() {}
}

// jsonOutput prints a document for each scan, or only at the end.
type jsonOutput struct {
	*json.Encoder
	watcher *watch.Watcher
	last    bool
}

func (o *jsonOutput) scan([]watch.Change) error {
	if o.last {
		return nil
	}
	return o.Encode(o.watcher.Report())
}

func (o *jsonOutput) end(context.Context) error {
	if !o.last {
		return nil
	}
	return o.Encode(o.watcher.Report())
}

// onceOutput prints a line for each GPU at the end.
type onceOutput struct {
	p       *page
	watcher *watch.Watcher
}

func (o *onceOutput) scan([]watch.Change) error { return nil }

func (o *onceOutput) end(context.Context) error {
	r := o.watcher.Report()
	for _, line := range r.Lines() {
		o.p.line(plain, "%s", line)
	}
	return o.p.err
}

// lineOutput prints a line for each GPU every minute, and each alarm at once.
type lineOutput struct {
	p       *page
	watcher *watch.Watcher
	next    time.Time
}

const lineEvery = time.Minute

func (o *lineOutput) scan(changes []watch.Change) error {
	r := o.watcher.Report()
	at := r.Time.Format("2006-01-02 15:04:05")
	for _, c := range changes {
		o.p.line(plain, "%s  %s", at, alarmText(c))
	}
	if r.Time.Before(o.next) && o.next.Sub(r.Time) <= lineEvery {
		return o.p.err
	}
	o.next = r.Time.Add(lineEvery)
	for _, line := range r.Lines() {
		o.p.line(plain, "%s  %s", at, line)
	}
	return o.p.err
}

func (o *lineOutput) end(context.Context) error { return o.p.err }

// alarmText tells of an alarm that opened or closed.
func alarmText(c watch.Change) string {
	if c.Event == watch.Closed {
		return fmt.Sprintf("%s is over (%s)", strings.ToUpper(string(c.Rule)), c.Text)
	}
	return fmt.Sprintf("%s  %s", strings.ToUpper(string(c.Rule)), c.Text)
}
