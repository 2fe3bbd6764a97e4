package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/internal/library"
	"github.com/headroom-go/headroom/internal/mpi"
)

// choiceFlag is one of some words.
type choiceFlag struct {
	word *string
	of   []string
}

func (c choiceFlag) String() string { return *c.word }
func (c choiceFlag) Type() string   { return "HOW" }

func (c choiceFlag) Set(text string) error {
	_, err := oneOf(c.of, text)
	if err == nil {
		*c.word = text
	}
	return err
}

var (
	engines     = []string{"auto", "mpi", "tcp"}     // what the processes of a job talk over
	collectives = []string{"auto", "nccl", "copies"} // what GPUs exchange data by
)

// gpuGroup is a group of GPUs, made of one of the host's.
type gpuGroup interface {
	dist.Group
	End() error
}

// openGPUs makes the group of GPUs for a rank of base, on dev, by one of collectives.
func openGPUs(how string, base dist.Group, dev *device.CUDADevice) (gpuGroup, error) {
	if how == "copies" {
		return openPeers(base, dev)
	}
	g, err := dist.NewNCCL(base, dev, cudaFolders())
	if how == "nccl" || !errors.Is(err, library.ErrUnavailable) {
		return g, err
	}
	peers, failed := openPeers(base, dev)
	if failed != nil {
		return nil, fmt.Errorf("%w; and without it: %w", err, failed)
	}
	return peers, nil
}

func openPeers(base dist.Group, dev *device.CUDADevice) (gpuGroup, error) {
	g, err := dist.NewPeers(base, dev)
	if err != nil {
		return nil, fmt.Errorf("--collectives copies: %w", err)
	}
	return g, nil
}

// join makes this process a rank of its job; nil is the one that trains alone, beside
// those that lend.
func (f *ranksFlags) join(ctx context.Context, w world) (dist.Group, error) {
	o := dist.JoinOptions{Options: dist.Options{Patience: patience}, Rank: w.rank, Size: w.size, Address: w.address, Job: w.job}
	if f.engine == "mpi" || f.engine == "auto" && w.mpirun != "" {
		m, err := startMPI(ctx, w, 0)
		switch {
		case err == nil:
			f.mpi, o.MPI = m, m
			if o.Rank, o.Size, o.Address = m.Place(); o.Size == 1 {
				return nil, nil
			}
		case f.engine == "mpi" || !errors.Is(err, library.ErrUnavailable):
			return nil, err
		}
	}
	if o.Address == "" {
		return nil, usagef("rank %d of %d does not know where the others are: set MASTER_ADDR (and MASTER_PORT) to the machine of rank 0", w.rank, w.size)
	}
	return dist.Join(ctx, o)
}

// mpis are the libraries that are looked for, by what starts their processes.
var mpis = []struct {
	name  string
	files []string
	get   string
}{
	{"Open MPI", mpi.OpenMPI, "apt-get install openmpi-bin"},
	{"MPICH", mpi.MPICH, "apt-get install mpich"},
}

// startMPI starts the library of the mpirun that started this process, or, if it
// was none, the first that there is, in order to train or, if lend is not 0, to lend so
// many bytes.
func startMPI(ctx context.Context, w world, lend uint64) (*dist.MPI, error) {
	var files []string
	for _, m := range mpis {
		if w.mpirun == "" || w.mpirun == m.name {
			files = append(files, m.files...)
		}
	}
	const arrival = 5 * time.Minute
	ctx, cancel := context.WithTimeoutCause(ctx, arrival, fmt.Errorf("%v are over", arrival))
	defer cancel()
	m, err := dist.StartMPI(ctx, files, lend)
	if err == nil && (m.Rank() != w.rank || m.Size() != w.size) {
		err = fmt.Errorf("MPI has this process as rank %d of %d, its environment as rank %d of %d: the library that was found is not of the mpirun that started it; --engine tcp does without", m.Rank(), m.Size(), w.rank, w.size)
	}
	return m, err
}

// over says what the ranks talk over, if that is not to be expected.
func (f *ranksFlags) over() string {
	if f.mpi == nil {
		return ""
	}
	return "; over MPI"
}

// endMPI ends MPI, if it was started, after a run that went well or failed.
func (f *ranksFlags) endMPI(well bool) error {
	if f.mpi == nil {
		return nil
	}
	return f.mpi.Close(well)
}

// examineMPI says which MPI libraries there are.
func examineMPI() (found []finding) {
	for _, m := range mpis {
		lib, err := mpi.Look(m.files)
		if err != nil {
			found = append(found, finding{"library", m.name, false, fmt.Sprintf("%v. Processes that its mpirun starts talk over TCP without it: %s", err, m.get)})
			continue
		}
		found = append(found, finding{"library", m.name, true, fmt.Sprintf("%s, %s", strings.ReplaceAll(lib.Version(), "\t", " "), lib.Place())})
	}
	return found
}
