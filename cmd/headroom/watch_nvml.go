package main

import (
	"context"
	"time"

	"github.com/headroom-go/headroom/internal/cuda"
	"github.com/headroom-go/headroom/watch"
)

// nvmlSource is the driver as a source.
type nvmlSource struct{ *cuda.NVML }

// openNVML opens the driver's library.
func openNVML() (*nvmlSource, error) {
	n, err := cuda.OpenNVML(cudaFolders())
	return &nvmlSource{n}, err
}

// Scan asks the driver what all GPUs hold.
func (s *nvmlSource) Scan(context.Context) (watch.Scan, error) {
	all, err := s.Statuses()
	return scanOf(time.Now(), all, err), nil
}

// scanOf is what the driver told as a scan.
func scanOf(now time.Time, all []cuda.Status, err error) watch.Scan {
	scan := watch.Scan{Time: now}
	if err != nil {
		scan.Error = err.Error()
		return scan
	}
	for _, g := range all {
		d := watch.Device{
			Index: g.Index, Instance: known(g.Instance), UUID: g.UUID, Name: g.Name, TotalBytes: g.Total, UsedBytes: g.Used, FreeBytes: g.Free, ReservedBytes: g.Reserved,
			Utilisation: known(g.Busy), Temperature: known(g.Temperature), Error: message(g.Err), ProcessesError: message(g.ProcessesErr),
		}
		for _, p := range g.Processes {
			d.Processes = append(d.Processes, processOf(p))
		}
		scan.Devices = append(scan.Devices, d)
	}
	return scan
}

func processOf(p cuda.Process) watch.Process {
	if p.Memory == ^uint64(0) {
		return watch.Process{PID: p.PID, MPS: p.MPS, BytesUnknown: true}
	}
	return watch.Process{PID: p.PID, MPS: p.MPS, Bytes: p.Memory}
}

// known is nil for −1, which means that a figure is unknown.
func known(n int) *int {
	if n < 0 {
		return nil
	}
	return &n
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
