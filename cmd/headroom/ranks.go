package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/train"
)

// seat is the place of one rank of a run: its device, and how it sees the
// others; nil for a run on one device.
type seat struct {
	device string
	group  dist.Group
	mesh   meshFlags
	shard  train.Shard
	here   int // ranks on this machine, as far as is known
}

// first says whether the seat is that of the rank that speaks and writes.
func (s seat) first() bool { return s.group == nil || s.group.Rank() == 0 }

func (s seat) ranks() int {
	if s.group == nil {
		return 1
	}
	return s.group.Size()
}

// parallel is how the rank trains.
func (s seat) parallel() train.Parallel {
	return s.mesh.parallel(s.group, s.shard)
}

// planned is parallel for plans.
func (s seat) planned() train.Parallel {
	p := s.parallel()
	if p.Group != nil {
		p.Group = dist.Null(p.Group.Rank(), p.Group.Size())
	}
	return p
}

// ranksFlags say over what a run is spread.
type ranksFlags struct {
	devices string
	mesh    meshFlags
	shard   shardFlag
	engine  string // one of engines

	collectives string // one of these
	env         func(string) string
	mpi         *dist.MPI // once started
}

// meshFlags are how the ranks are laid out, and what those along pipeline do.
type meshFlags struct {
	train.Mesh
	schedule scheduleFlag
	chunks   int
}

func (m *meshFlags) add(f *pflag.FlagSet) {
	f.IntVar(&m.Tensor, "tensor", 1, "`N` ranks share out every layer's matrices, and the tokens between these")
	f.IntVar(&m.Pipeline, "pipeline", 1, "`N` ranks have each a part of the layers")
	f.IntVar(&m.Expert, "expert", 1, "`N` ranks share out the experts")
	f.Var(&m.schedule, "schedule", "in which order the ranks of --pipeline compute micro-batches: 1f1b, gpipe, interleaved or zb-h1")
	f.IntVar(&m.chunks, "chunks", 2, "`N` parts of the layers that each rank of --pipeline has, with --schedule interleaved")
}

// parallel is how a rank of g trains.
func (m meshFlags) parallel(g dist.Group, shard train.Shard) train.Parallel {
	p := train.Parallel{Group: g, Mesh: m.Mesh, Shard: shard, Schedule: m.schedule.Schedule}
	if p.Schedule == train.Interleaved {
		p.Chunks = m.chunks
	}
	return p
}

// share is what one place of so many ranks computes of c.
func (m meshFlags) share(c train.Config, ranks int, shard train.Shard) (train.Config, error) {
	places, err := m.Places(ranks)
	if err == nil {
		err = c.Splits(m.Mesh)
	}
	if err == nil {
		err = m.parallel(nil, shard).Check(c)
	}
	if err != nil {
		return c, usageError{fmt.Errorf("--tensor %d --pipeline %d --expert %d: %w", m.Tensor, m.Pipeline, m.Expert, err)}
	}
	if c, err = c.Share(places); err != nil {
		return c, usageError{err}
	}
	return c, nil
}

// scheduleFlag is the order in which stages compute.
type scheduleFlag struct{ train.Schedule }

func (s *scheduleFlag) Type() string          { return "ORDER" }
func (s *scheduleFlag) Set(text string) error { return s.UnmarshalText([]byte(text)) }

// oneOf is the place of text among names.
func oneOf(names []string, text string) (int, error) {
	if i := slices.Index(names, text); i >= 0 {
		return i, nil
	}
	return 0, fmt.Errorf("%q is none of %s", text, strings.Join(names, ", "))
}

// shardFlag is what each rank keeps only a part of.
type shardFlag struct{ train.Shard }

var shardNames = []string{"nothing", "state", "gradients", "parameters"}

func (s *shardFlag) String() string { return shardNames[s.Shard] }
func (s *shardFlag) Type() string   { return "WHAT" }

func (s *shardFlag) Set(text string) error {
	i, err := oneOf(shardNames, text)
	s.Shard = train.Shard(i)
	return err
}

// patience is how long a rank waits in a collective for another one that lives.
const patience = 30 * time.Minute

// seats are the ranks of this process: of a job of several processes one, by the
// environment, with --devices one for each, and else one that is alone.
func (f *ranksFlags) seats(ctx context.Context, alone string) ([]seat, error) {
	devices := splitDevices(f.devices)
	w, err := worldOf(f.env)
	if err != nil {
		return nil, usageError{err}
	}
	if w.size > 1 {
		if len(devices) == 0 {
			devices = []string{alone}
		}
		g, err := f.join(ctx, w)
		return []seat{{devices[w.local%len(devices)], g, f.mesh, f.shard.Shard, w.here}}, err
	}
	if len(devices) < 2 {
		return []seat{{device: strings.Join(append(devices, alone)[:1], "")}}, nil
	}
	var seats []seat
	for i, g := range dist.Local(len(devices), dist.Options{Patience: patience}) {
		seats = append(seats, seat{devices[i], g, f.mesh, f.shard.Shard, len(devices)})
	}
	return seats, nil
}

// splitDevices cuts a list of devices, some of which have a comma themselves;
// 4xhost:1GiB stands for four.
func splitDevices(list string) []string {
	var devices []string
	for _, word := range strings.Split(list, ",") {
		m := regexp.MustCompile(`^(?:([1-9]\d{0,3})x)?((?:host|cuda|null)(?::.*)?)$`).FindStringSubmatch(word)
		last := len(devices) - 1
		if m == nil && last >= 0 {
			devices[last] += "," + word
			continue
		}
		n := 1
		if m != nil && m[1] != "" {
			n, _ = strconv.Atoi(m[1])
			word = m[2]
		}
		for range n {
			if word != "" {
				devices = append(devices, word)
			}
		}
	}
	return devices
}

// world is a job of several processes, as one of them finds it in its
// environment.
type world struct {
	rank, size  int
	local, here int    // rank on this machine, and how many there are; 0 where it is not known
	address     string // where rank 0 listens; empty where it is not known
	job         string
	mpirun      string // the MPI whose mpirun started it
}

// worldOf reads what torchrun, Kubeflow Trainer, Open MPI, MPICH or Slurm tell a
// process of its place. A size of 0 or 1 is a process alone.
func worldOf(env func(string) string) (w world, err error) {
	w.job = env("TORCHELASTIC_RUN_ID")
	host, port := env("MASTER_ADDR"), env("MASTER_PORT")
	number := func(name string) int {
		const most = 1 << 16
		n, failed := strconv.Atoi(env(name))
		if (failed != nil || n < 0 || n > most) && env(name) != "" && err == nil {
			err = fmt.Errorf("the environment's %s is %q: want a number from 0 to %d", name, env(name), most)
		}
		return n
	}
	switch {
	case env("WORLD_SIZE") != "" && env("RANK") != "":
		w.rank, w.size, w.local = number("RANK"), number("WORLD_SIZE"), number("LOCAL_RANK")
		w.here = number("LOCAL_WORLD_SIZE")
	case env("PET_NNODES") != "" && env("PET_NODE_RANK") != "": // what Trainer tells torchrun, for one process a node
		w.rank, w.size, w.here = number("PET_NODE_RANK"), number("PET_NNODES"), 1
		host, port = env("PET_MASTER_ADDR"), env("PET_MASTER_PORT")
	case env("OMPI_COMM_WORLD_SIZE") != "":
		w.rank, w.size, w.local = number("OMPI_COMM_WORLD_RANK"), number("OMPI_COMM_WORLD_SIZE"), number("OMPI_COMM_WORLD_LOCAL_RANK")
		w.here, w.mpirun = number("OMPI_COMM_WORLD_LOCAL_SIZE"), "Open MPI"
	case env("PMI_SIZE") != "":
		w.rank, w.size, w.local = number("PMI_RANK"), number("PMI_SIZE"), number("MPI_LOCALRANKID")
		w.here, w.mpirun = number("MPI_LOCALNRANKS"), "MPICH"
	case env("SLURM_STEP_ID") != "" && env("SLURM_PROCID") != "": // srun's, not the batch script itself
		w.rank, w.size, w.local = number("SLURM_PROCID"), number("SLURM_NTASKS"), number("SLURM_LOCALID")
		w.job = env("SLURM_JOB_ID")
		if host == "" {
			host = firstHost(env("SLURM_STEP_NODELIST"))
		}
		if port == "" {
			const from, ports = 20000, 20000
			job, _ := strconv.ParseUint(w.job, 10, 64) // what is no number is 0
			port = strconv.FormatUint(from+job%ports, 10)
		}
	}
	if err == nil && w.rank >= max(w.size, 1) {
		err = fmt.Errorf("the environment has this process as rank %d of %d: ranks are 0 to their number − 1", w.rank, w.size)
	}
	if w.size < 2 || err != nil {
		return w, err
	}
	if host == "" && w.here == w.size {
		host = "127.0.0.1"
	}
	if port == "" {
		port = "29500"
	}
	if host != "" {
		w.address = net.JoinHostPort(host, port)
	}
	return w, nil
}

// firstHost is the first machine of a list of Slurm's, such as node[07-09,12].
func firstHost(list string) string {
	m := regexp.MustCompile(`^([^,\[]*)(?:\[(\w+)[^\]]*\])?([^,\[]*)`).FindStringSubmatch(list)
	return m[1] + m[2] + m[3]
}

// eachSeat runs f in every seat at the same time. The first failure ends all.
func eachSeat(seats []seat, f func(i int, s seat) error) error {
	errs := make([]error, len(seats))
	var ended sync.WaitGroup
	for i, s := range seats {
		ended.Go(func() {
			errs[i] = attempt(func() error { return f(i, s) })
			if s.group == nil {
				return
			}
			if errs[i] != nil {
				s.group.Fail(errs[i])
			}
			if err := s.group.Close(); err != nil {
				errs[i] = err // the job's, which names the rank
			}
		})
	}
	ended.Wait()
	for _, err := range errs {
		if failure := new(dist.Error); errors.As(err, &failure) {
			return failure
		}
	}
	return errors.Join(errs...)
}

// onSeats trains in all seats and sums up each.
func (f *trainFlags) onSeats(ctx context.Context, seats []seat, c train.Config, cp *train.Checkpoint, stderr io.Writer) ([]train.Summary, error) {
	summaries := make([]train.Summary, len(seats))
	asked := *f // seats copy it, while the first one's data becomes f's
	err := eachSeat(seats, func(i int, s seat) error {
		mine := asked
		mine.seat, mine.device = s, s.device
		if !s.first() {
			mine.live = liveFlag{}
		}
		words := stderr
		if !s.first() {
			words = io.Discard
		}
		dev, err := openDevice(s.device, s.here)
		if err != nil {
			return usageError{err}
		}
		if dev.Info().Kind == device.Null {
			err = usagef("%s computes nothing, so that nothing can be trained there: headroom plan runs on it", mine.device)
		} else {
			summaries[i], err = mine.onGPUs(dev, func() (train.Summary, error) { return mine.onDevice(ctx, dev, c, cp, words) })
		}
		if s.first() {
			f.data = mine.data
		}
		return errors.Join(err, dev.Close())
	})
	return summaries, err
}

// onGPUs calls run with the seat's group one of GPUs, where dev is one of several.
func (f *trainFlags) onGPUs(dev device.Device, run func() (train.Summary, error)) (s train.Summary, err error) {
	gpu := device.CUDAOf(dev)
	if gpu == nil || f.seat.group == nil {
		return run()
	}
	g, err := openGPUs(f.collectives, f.seat.group, gpu)
	if err != nil {
		return s, err
	}
	f.seat.group = g
	if err = attempt(func() (err error) { s, err = run(); return err }); err != nil {
		g.Fail(err) // before End, which may wait for others
	}
	return s, errors.Join(err, g.End())
}

// reportRanks prints what the other ranks of this process came to.
func reportRanks(seats []seat, summaries []train.Summary, w io.Writer) {
	for i, s := range summaries {
		if !seats[i].first() {
			newPage(w).line(plain, "rank %-4d on %s: predicted peak %s, measured %s", seats[i].group.Rank(), s.Device, bytesText(s.PredictedPeakBytes), bytesText(s.MeasuredPeakBytes))
		}
	}
}
