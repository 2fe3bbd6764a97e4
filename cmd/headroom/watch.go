package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/watch"
)

// watchFlags are the flags of watch.
type watchFlags struct {
	source, record, serve, webhook, exec string
	interval                             time.Duration
	once, json                           bool
	rules                                rulesFlag
	held                                 sizeFlag
}

func watchCommand() *cobra.Command {
	o := watchFlags{rules: rulesFlag{settings: watch.Defaults()}, held: 1 << 30}
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Watch all GPUs of the machine: who holds memory, how it grows, when it is full",
		Long: `Watch asks the driver (NVML) what the GPUs hold, and shows it with its history:
memory by process with its user, container, pod and Slurm job, growth with a
forecast, and alarms. On a terminal q quits and h turns between an hour and a
day; elsewhere it prints a line for each GPU every minute and each alarm.

An alarm opens after some scans in a row at or above a threshold and closes after
some below another. --rule NAME=OPEN[:CLOSE][,SCANS[:SCANS]] sets them, NAME=off
switches one off:

` + alarmsText(),
		Example: `  headroom watch
  headroom watch --once
  headroom watch --serve 127.0.0.1:9401 --webhook https://example.org/alarms
  headroom watch --rule full=90% --rule idle=1h --exec /usr/local/bin/alarm
  headroom watch --record night.jsonl
  headroom watch --source night.jsonl
  ssh host headroom watch --json | headroom watch --source -`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return o.run(cmd, cmd.Flags().Changed("interval"))
		},
	}
	o.add(cmd.Flags())
	return cmd
}

func (o *watchFlags) add(fl *pflag.FlagSet) {
	fl.StringVar(&o.source, "source", "", "a record or simulation in `FILE`, or - for standard input, instead of the driver; played at once unless --interval is given")
	fl.StringVar(&o.record, "record", "", "append each scan to `FILE`, a line of JSON each")
	fl.DurationVar(&o.interval, "interval", 2*time.Second, "time between scans")
	fl.BoolVar(&o.once, "once", false, "print one line for each GPU and end")
	fl.BoolVar(&o.json, "json", false, "print a JSON document for each scan, a line each; with --once only the last")
	fl.StringVar(&o.serve, "serve", "", "serve /metrics for Prometheus and /healthz on `ADDR`; a port alone is on 127.0.0.1")
	fl.StringVar(&o.webhook, "webhook", "", "post alarms that open or close as JSON to `URL`")
	fl.StringVar(&o.exec, "exec", "", "run the program `CMD` for alarms that open or close, with the event, rule, GPU and text as arguments and in HEADROOM_… variables")
	fl.Var(&o.rules, "rule", "when the alarm of a `RULE` opens and closes, such as full=95%:90%,3:3; may be given several times")
	fl.Var(&o.held, "held", "memory from which a GPU counts as held, for idle")
}

// check refuses flags that don't go together.
func (o *watchFlags) check() error {
	if o.once && (o.serve != "" || o.webhook != "" || o.exec != "") {
		return usagef("--once ends after one look: it goes with neither --serve, --webhook nor --exec")
	}
	if o.interval < 0 {
		return usagef("--interval %v is below 0", o.interval)
	}
	if o.record != "" && o.source != "" {
		return usagef("--source is a record already: it does not go with --record")
	}
	if u, err := url.Parse(o.webhook); o.webhook != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return usagef("--webhook %q is no address that begins with http:// or https://", o.webhook)
	}
	if o.serve != "" {
		addr, err := addressOf("--serve", o.serve)
		o.serve = addr
		return err
	}
	return nil
}

// watching is a watch that runs.
type watching struct {
	*watchFlags
	watcher  *watch.Watcher
	notifier *watch.Notifier
	owners   *watch.Owners // nil: the source tells the owners
	record   io.Writer     // nil: none
	out      watchOutput
}

// queryLimit is how long a query of the driver may take.
const queryLimit = 30 * time.Second

func (o *watchFlags) run(cmd *cobra.Command, paced bool) (err error) {
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	host, _ := os.Hostname()
	if o.source != "" {
		host = "" // whose record it is, it does not say
	}
	w := &watching{watchFlags: o, watcher: watch.New(watch.Options{Host: host, Rules: o.rules.settings, Held: uint64(o.held)})}
	src, pace, closeSource, err := w.open(cmd.InOrStdin(), paced)
	if err != nil {
		return err
	}
	defer closeSource()
	closeRecord, err := w.openRecord()
	if err != nil {
		return err
	}
	defer closeRecord()
	stderr := &lockedWriter{w: cmd.ErrOrStderr()}
	if w.notifier, err = o.startActions(stderr); err != nil {
		return err
	}
	defer w.notifier.Close(closingTime)
	if err := w.startServer(ctx, pace, stderr); err != nil {
		return err
	}
	out, restore := w.output(cmd, cancel)
	defer restore()
	w.out = out
	return w.play(ctx, src, pace)
}

// closingTime is how long actions that are queued at the end may take.
const closingTime = 5 * time.Second

// play runs until there is nothing more to see. Being interrupted is how a watch ends.
func (w *watching) play(ctx context.Context, src watch.Source, pace watch.Pace) error {
	err := watch.Run(ctx, src, pace, w.step)
	if err == nil {
		err = w.out.end(ctx)
	}
	if err == nil && w.serve != "" {
		<-ctx.Done()
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, errOnce) {
		return nil
	}
	return err
}

// errOnce ends a watch after its first scan.
var errOnce = errors.New("one scan was asked for")

func (w *watching) step(s watch.Scan) error {
	if w.owners != nil {
		w.owners.Fill(&s)
	}
	if w.record != nil {
		if err := watch.Write(w.record, s); err != nil {
			return fmt.Errorf("the record: %w", err)
		}
	}
	changes := w.watcher.Add(s)
	for _, c := range changes {
		w.notifier.Notify(c)
	}
	if err := w.out.scan(changes); err != nil {
		return err
	}
	if w.once && w.source == "" {
		if err := w.out.end(context.Background()); err != nil {
			return err
		}
		return onceError(s)
	}
	return nil
}

// onceError is the error of a single scan, errOnce if it told something.
func onceError(s watch.Scan) error {
	if s.Error != "" {
		return fmt.Errorf("query failed: %s", s.Error)
	}
	return errOnce
}

// open opens the source: the driver's library, or a record.
func (w *watching) open(stdin io.Reader, paced bool) (watch.Source, watch.Pace, func(), error) {
	if w.source == "" {
		src, err := openNVML()
		if err != nil {
			return nil, watch.Pace{}, nil, fmt.Errorf("%w%s. Without a GPU, --source FILE shows a record", err, advise(err))
		}
		w.owners = &watch.Owners{Proc: os.DirFS("/proc"), User: userName}
		return src, watch.Pace{Every: w.interval, Limit: queryLimit}, func() { src.Close() }, nil
	}
	in, err := openInput(w.source, stdin)
	if err != nil {
		return nil, watch.Pace{}, nil, err
	}
	var pace watch.Pace
	if paced {
		pace.Every = w.interval
	}
	return &namedSource{watch.NewReader(in), w.source}, pace, func() { in.Close() }, nil
}

// userName is the name of a user, empty if there is none.
func userName(uid string) string {
	u, err := user.LookupId(uid)
	if err != nil {
		return ""
	}
	return u.Username
}

// namedSource puts the name of a file before the errors of its record.
type namedSource struct {
	watch.Source
	path string
}

func (n *namedSource) Scan(ctx context.Context) (watch.Scan, error) {
	s, err := n.Source.Scan(ctx)
	if err != nil && err != io.EOF {
		err = naming(n.path, err)
	}
	return s, err
}

func (w *watching) openRecord() (func(), error) {
	if w.watchFlags.record == "" {
		return func() {}, nil
	}
	f, err := os.OpenFile(w.watchFlags.record, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	w.record = f
	return func() { f.Close() }, nil
}

// startActions starts what is done about alarms. Failures go to stderr.
func (o *watchFlags) startActions(stderr io.Writer) (*watch.Notifier, error) {
	var actions []watch.Action
	if o.webhook != "" {
		actions = append(actions, &watch.Webhook{URL: o.webhook, Client: &http.Client{}})
	}
	if o.exec != "" {
		path, err := exec.LookPath(o.exec)
		if err != nil {
			return nil, usagef("--exec: %w", err)
		}
		actions = append(actions, &watch.Command{Path: path, Environ: os.Environ()})
	}
	tries := watch.Tries{Most: 5, Limit: 10 * time.Second, Backoff: time.Second}
	return watch.NewNotifier(tries, func(err error) { fmt.Fprintln(stderr, "headroom:", err) }, actions...), nil
}

// lockedWriter is a writer for several goroutines.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// startServer serves until ctx ends. The first line says where.
func (w *watching) startServer(ctx context.Context, pace watch.Pace, stderr io.Writer) error {
	if w.serve == "" {
		return nil
	}
	listener, err := net.Listen("tcp", w.serve)
	if err != nil {
		return err
	}
	var stale time.Duration
	if w.source == "" {
		stale = 3*pace.Every + pace.Limit
	}
	server := &http.Server{
		Handler:           watch.Handler(w.watcher, w.notifier, stale, watch.IsLoopback(w.serve)),
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 16 << 10,
	}
	context.AfterFunc(ctx, func() { server.Close() })
	fact(stderr, "live", "http://%s/metrics", listener.Addr())
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			fmt.Fprintln(stderr, "headroom:", err)
		}
	}()
	return nil
}

// rulesFlag is the value of --rule.
type rulesFlag struct{ settings []watch.Setting }

// Set replaces the setting of a rule.
func (f *rulesFlag) Set(text string) error {
	s, err := watch.ParseSetting(text)
	for i := range f.settings {
		if err == nil && f.settings[i].Rule == s.Rule {
			f.settings[i] = s
		}
	}
	return err
}

// String is empty: the help lists the defaults.
func (f *rulesFlag) String() string { return "" }

// Type names the value in the help.
func (f *rulesFlag) Type() string { return "RULE" }

// alarmsText lists the rules of alarms with their defaults.
func alarmsText() string {
	var b strings.Builder
	for _, s := range watch.Defaults() {
		fmt.Fprintf(&b, "  %-26s %s\n", s, s.Rule.Meaning())
	}
	return strings.TrimRight(b.String(), "\n")
}

// sizeFlag is a flag of bytes.
type sizeFlag uint64

// Set reads a size.
func (f *sizeFlag) Set(text string) error {
	n, err := size.Parse(text)
	*f = sizeFlag(n)
	return err
}

// String writes a size.
func (f *sizeFlag) String() string { return size.Format(uint64(*f)) }

// Type names the value in the help.
func (f *sizeFlag) Type() string { return "SIZE" }
