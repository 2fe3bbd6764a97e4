package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/internal/size"
	"github.com/headroom-go/headroom/internal/spill"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/tensor"
	"github.com/headroom-go/headroom/train"
)

// awayFlag is memory outside the device: any number of places. It is empty by
// default.
type awayFlag struct {
	places []awayPlace
	as     string                    // --away-as
	rates  map[string]plan.CopyRates // of places, as far as they are known
	notes  *notes                    // of lenders; nil before use
	mpi    *dist.MPI                 // of this process, if it is started
}

// know takes in the speed of copies to places.
func (a *awayFlag) know(rates map[string]plan.CopyRates) {
	if a.rates = maps.Clone(a.rates); a.rates == nil {
		a.rates = map[string]plan.CopyRates{}
	}
	maps.Copy(a.rates, rates)
}

// awayPlace is SIZE of the host's memory, or SIZE,WHERE: of a file in a folder, of
// another GPU (cuda:N), of a lender's (tcp://HOST:PORT), or of ranks of the same MPI job
// that lend (mpi).
type awayPlace struct {
	bytes uint64
	at    string
}

func (p awayPlace) String() string {
	if p.at == "" {
		return size.Exact(p.bytes)
	}
	return size.Exact(p.bytes) + "," + p.at
}

func (a *awayFlag) String() string {
	var list []string
	for _, p := range a.places {
		list = append(list, p.String())
	}
	return strings.Join(list, " ")
}

func (a *awayFlag) Set(text string) error {
	amount, at, _ := strings.Cut(text, ",")
	bytes, err := size.Parse(amount)
	if err != nil {
		return err
	}
	if number, ok := strings.CutPrefix(at, "cuda:"); ok {
		if n, err := strconv.Atoi(number); err != nil || n < 0 {
			return fmt.Errorf("%q is no number of a GPU: write it like cuda:1", number)
		}
	}
	if scheme, address, ok := strings.Cut(at, "://"); ok && (scheme != "tcp" || !isAddress(address)) {
		return fmt.Errorf("%q is no address of a lender: write it like tcp://host:9402, as headroom lend says it", at)
	}
	if bytes > 0 {
		a.places = append(a.places, awayPlace{bytes, at})
	}
	return nil
}

// isAddress says whether a text names a host and a port.
func isAddress(text string) bool {
	host, port, err := net.SplitHostPort(text)
	return err == nil && host != "" && port != ""
}

func (a *awayFlag) Type() string { return "SIZE[,WHERE]" }

// bytes is the room in all places.
func (a *awayFlag) bytes() (sum uint64) {
	for _, p := range a.places {
		sum += p.bytes
	}
	return sum
}

// windows is how many places are what ranks of the same MPI job lend.
func (a *awayFlag) windows() (n int) {
	for _, p := range a.places {
		if p.kind() == "mpi" {
			n++
		}
	}
	return n
}

// name is what a file of rates calls a place.
func (p awayPlace) name() string { return cmp.Or(p.at, "host") }

// kind is what a place is: host, dir, cuda, tcp or mpi.
func (p awayPlace) kind() string {
	switch {
	case p.at == "":
		return "host"
	case strings.HasPrefix(p.at, "cuda:"):
		return "cuda"
	case strings.HasPrefix(p.at, "tcp://"):
		return "tcp"
	case p.at == "mpi":
		return "mpi"
	}
	return "dir"
}

// far says whether the host can't compute there.
func (p awayPlace) far() bool { return slices.Contains([]string{"cuda", "tcp", "mpi"}, p.kind()) }

// tier is a place to plan with, on a device. Rates of which nothing was measured are,
// to memory of the host, those of one core of a server, or beside a GPU of sixteen
// lanes of PCI Express 3, the slowest that serve one, as between two GPUs; those to a
// file are a local disk's, and to a lender those of a network of 10 Gbit/s.
func (a *awayFlag) tier(p awayPlace, device string) plan.Tier {
	t := plan.Tier{Bytes: p.bytes, OutBytesPerSecond: 5e9, BackBytesPerSecond: 5e9, Far: p.far()}
	r, known := a.rates[p.name()]
	switch {
	case known:
		t.OutBytesPerSecond, t.BackBytesPerSecond = r.OutBytesPerSecond, r.BackBytesPerSecond
	case p.kind() == "dir":
		t.OutBytesPerSecond, t.BackBytesPerSecond = 1e9, 2e9
	case p.kind() == "tcp" || p.kind() == "mpi":
		t.OutBytesPerSecond, t.BackBytesPerSecond = 1.1e9, 1.1e9
	case strings.HasPrefix(device, "cuda"):
		t.OutBytesPerSecond, t.BackBytesPerSecond = 12e9, 12e9
	}
	return t
}

// options are a search's for a device, and puts the places in the order of their
// speed, the fastest first.
func (a *awayFlag) options(device string) plan.Options {
	speed := func(p awayPlace) float64 {
		t := a.tier(p, device)
		return 1/t.OutBytesPerSecond + 1/t.BackBytesPerSecond
	}
	a.places = slices.Clone(a.places) // ranks of this process have it, too
	slices.SortStableFunc(a.places, func(p, q awayPlace) int { return cmp.Compare(speed(p), speed(q)) })
	away := plan.Away{As: tensor.AwayForm(a.as), Workers: runtime.GOMAXPROCS(0)}
	for _, p := range a.places {
		away.Tiers = append(away.Tiers, a.tier(p, device))
	}
	if len(away.Tiers) == 0 {
		return plan.Options{}
	}
	return plan.Options{Away: away}
}

// check says what is wrong with the flags, if anything.
func (a *awayFlag) check() error {
	if err := tensor.AwayForm(a.as).Validate(); err != nil {
		return usagef("--away-as: %v", err)
	}
	if a.windows() > 1 {
		return usagef("--away %v: give SIZE,mpi once, with all that is to wait there", a)
	}
	if a.as != "" && len(a.places) == 0 {
		return usagef("--away-as %s: give --away SIZE, too", a.as)
	}
	return nil
}

// measure finds how fast copies to the places are, where that decides something and
// is not known, and says whether it did.
func (a *awayFlag) measure(ctx context.Context, dev device.Device, stderr io.Writer) (bool, error) {
	if len(a.places) == 0 || len(a.places) == 1 && !a.places[0].far() {
		return false, nil
	}
	found := map[string]plan.CopyRates{}
	for _, p := range a.places {
		if _, known := a.rates[p.name()]; known {
			continue
		}
		r, err := a.measureOne(ctx, p, dev)
		if err != nil {
			return false, fmt.Errorf("--away %v: %w", p, err)
		}
		found[p.name()] = r
		fact(stderr, "away", "%v: %.3g GB/s out, %.3g GB/s back", p, r.OutBytesPerSecond/1e9, r.BackBytesPerSecond/1e9)
	}
	a.know(found)
	return len(found) > 0, nil
}

// measured is the most that is copied to find how fast that is.
const measured = 16 << 20

// measureOne copies to memory of a place that is given back at once.
func (a *awayFlag) measureOne(ctx context.Context, p awayPlace, dev device.Device) (r plan.CopyRates, err error) {
	p.bytes = min(p.bytes, measured, dev.Info().Capacity/2)
	store, done, err := a.open(ctx, p, dev, spill.BorrowOptions{Name: "measuring"})
	if err != nil {
		return r, err
	}
	r.OutBytesPerSecond, r.BackBytesPerSecond, err = spill.Measure(dev, store, p.bytes)
	return r, errors.Join(err, done())
}

// use gives a trainer the memory, and a device that computes there. They end
// with done, which comes after the trainer's Close.
func (a *awayFlag) use(ctx context.Context, t *train.Trainer) (done func(), err error) {
	var ends []func() error
	done = func() {
		for _, end := range slices.Backward(ends) {
			end() // what is left there is of no more use
		}
	}
	dev := t.Memory().Device()
	stores := make(spill.Tiers, len(a.places))
	a.notes = &notes{}
	lent := spill.BorrowOptions{Name: borrower(t.Config.Model), Notify: a.notes.add}
	if slices.ContainsFunc(a.places, func(p awayPlace) bool { return !p.far() }) {
		lent.Spare = stores.TakeBytes
	}
	for _, far := range []bool{false, true} { // loans end first: they may hold memory of others
		for i, p := range a.places {
			if p.far() != far {
				continue
			}
			store, end, err := a.open(ctx, p, dev, lent)
			if err != nil {
				return done, fmt.Errorf("--away %v: %w", p, err)
			}
			stores[i], ends = store, append(ends, end)
		}
	}
	host := dev
	if dev.Info().Kind == device.CUDA {
		beside, err := device.OpenHost(device.HostOptions{Capacity: a.bytes()})
		if err != nil {
			return done, err
		}
		host, ends = beside, append(ends, beside.Close)
	}
	return done, t.UseStore(stores, host)
}

// borrower is this run's name for a lender.
func borrower(model string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "somebody"
	}
	return fmt.Sprintf("%s, process %d, %s", host, os.Getpid(), model)
}

// open gives the memory of a place, for copies to and from a device, until end.
func (a *awayFlag) open(ctx context.Context, p awayPlace, beside device.Device, o spill.BorrowOptions) (s tensor.Store, end func() error, err error) {
	switch p.kind() {
	case "host":
		place, err := spill.Memory(beside, p.bytes)
		return ended(place, err)
	case "dir":
		place, err := spill.File(p.at, p.bytes)
		return ended(place, err)
	case "tcp":
		loan, err := spill.Borrow(ctx, beside, strings.TrimPrefix(p.at, "tcp://"), p.bytes, o)
		return ended(loan, err)
	case "mpi":
		return a.openWindow(p.bytes, beside, o)
	}
	number, err := strconv.Atoi(strings.TrimPrefix(p.at, "cuda:"))
	if err != nil {
		return nil, nil, err
	}
	peer, err := device.OpenPeer(beside, number, p.bytes)
	if err != nil {
		return nil, nil, err
	}
	at, _ := peer.Range()
	return spill.NewNear(at, p.bytes), peer.Close, nil
}

// openWindow is open for what ranks of the same MPI job lend.
func (a *awayFlag) openWindow(bytes uint64, beside device.Device, o spill.BorrowOptions) (s tensor.Store, end func() error, err error) {
	if a.mpi == nil {
		return nil, nil, usagef("no MPI job was started: start a rank that lends with those that train, as in mpirun -n 2 headroom train … : -n 1 headroom lend 64GiB --mpi")
	}
	w, err := a.mpi.Borrow(bytes)
	if err != nil {
		return nil, nil, err
	}
	giveBack := func() error { return w.Close(time.Now().Add(10 * time.Second)) }
	loan, err := spill.BorrowWindow(beside, w, bytes, o)
	if err != nil {
		return nil, nil, errors.Join(err, giveBack())
	}
	return loan, func() error { return errors.Join(loan.Close(), giveBack()) }, nil
}

// ended is a place and its end.
func ended[P interface {
	tensor.Store
	Close() error
}](place P, err error) (tensor.Store, func() error, error) {
	if err != nil {
		return nil, nil, err
	}
	return place, place.Close, nil
}

// notes are what lenders said since the last step.
type notes struct {
	mu     sync.Mutex
	events []train.Event
}

func (n *notes) add(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events = append(n.events, train.Event{Kind: "lender", Text: text})
}

// with gives a step's events and the notes.
func (n *notes) with(events []train.Event) []train.Event {
	if n == nil {
		return events
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	events, n.events = append(events, n.events...), nil
	return events
}
