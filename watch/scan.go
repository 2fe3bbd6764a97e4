package watch

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Scan is what the GPUs of a machine held at one moment. Its JSON form is a
// line of a record.
type Scan struct {
	Time    time.Time `json:"time"`
	Error   string    `json:"error,omitempty"` // why the whole query failed; then Devices is empty
	Devices []Device  `json:"devices,omitempty"`
}

// Device is one GPU or one instance of a GPU that is partitioned (MIG). Used, free and reserved bytes make the total, where the
// driver tells what it has reserved for itself, and otherwise used and free do.
type Device struct {
	Index          int       `json:"gpu"`                    // as nvidia-smi counts
	Instance       *int      `json:"gpu_instance,omitempty"` // of the GPU, as nvidia-smi numbers them; nil: the whole GPU
	UUID           string    `json:"uuid,omitempty"`         // tells devices apart where it is known
	Name           string    `json:"name,omitempty"`
	TotalBytes     uint64    `json:"total_bytes"`
	UsedBytes      uint64    `json:"used_bytes"`
	FreeBytes      uint64    `json:"free_bytes"`
	ReservedBytes  uint64    `json:"reserved_bytes,omitempty"`
	Utilisation    *int      `json:"utilisation,omitempty"` // per cent of the time with a kernel running; nil: unknown
	Temperature    *int      `json:"temperature,omitempty"` // degrees Celsius; nil: unknown
	Error          string    `json:"error,omitempty"`       // why the query of this device failed; then its figures mean nothing
	ProcessesError string    `json:"processes_error,omitempty"`
	Processes      []Process `json:"processes,omitempty"` // none where ProcessesError says why they are unknown
}

// Process is a program that holds memory of a GPU.
type Process struct {
	PID          int    `json:"pid"`
	Bytes        uint64 `json:"bytes"`
	BytesUnknown bool   `json:"bytes_unknown,omitempty"` // the driver does not say how many
	MPS          bool   `json:"mps,omitempty"`           // it computes through an MPS server
	Dead         bool   `json:"dead,omitempty"`          // there is no living process of that number
	Owner
	GrownBytes int64 `json:"grown_bytes,omitempty"` // over the last ten minutes; filled by the watcher
}

// Owner says whose a process is. What is not known is empty.
type Owner struct {
	User      string `json:"user,omitempty"`
	Command   string `json:"command,omitempty"`   // program and script, without their arguments
	Container string `json:"container,omitempty"` // id, as the runtime shows it in short (12 digits)
	Runtime   string `json:"runtime,omitempty"`   // docker, podman, containerd, cri-o
	Pod       string `json:"pod,omitempty"`       // uid in Kubernetes
	Job       string `json:"job,omitempty"`       // number in Slurm
}

// key tells devices apart.
func (d *Device) key() string {
	if d.UUID != "" {
		return d.UUID
	}
	return d.Label()
}

// Label names a device: GPU 0, or GPU 0 instance 7.
func (d *Device) Label() string {
	if d.Instance != nil {
		return fmt.Sprintf("GPU %d instance %d", d.Index, *d.Instance)
	}
	return fmt.Sprintf("GPU %d", d.Index)
}

// living is the bytes that living processes hold, if all is known of them.
func (d *Device) living() (bytes uint64, known bool) {
	if d.ProcessesError != "" {
		return 0, false
	}
	for _, p := range d.Processes {
		if p.Dead {
			continue
		}
		if p.BytesUnknown {
			return 0, false
		}
		bytes += p.Bytes
	}
	return bytes, true
}

// Unowned is the bytes in use that no living process holds, if that is known.
// Where a driver does not tell what it reserves, a few hundred MiB are its own.
func (d *Device) Unowned() (bytes uint64, known bool) {
	living, known := d.living()
	if !known || d.Error != "" {
		return 0, false
	}
	return d.UsedBytes - min(living, d.UsedBytes), true
}

// What is taken from one scan.
const (
	maxDevices   = 64
	maxProcesses = 1024 // of a device
	maxText      = 200  // characters
	maxBytes     = 1 << 50
)

// sanitise copies a scan, with bounds on everything and no control characters.
func sanitise(s Scan) Scan {
	s.Error = clean(s.Error)
	if s.Error != "" {
		s.Devices = nil
	}
	if len(s.Devices) > maxDevices {
		s.Error = fmt.Sprintf("the scan lists %d devices, more than %d", len(s.Devices), maxDevices)
		s.Devices = nil
	}
	devices := make([]Device, 0, len(s.Devices))
	seen := map[string]bool{}
	for _, d := range s.Devices {
		d = sanitiseDevice(d)
		if !seen[d.key()] {
			devices = append(devices, d)
		}
		seen[d.key()] = true
	}
	s.Devices = devices
	return s
}

func sanitiseDevice(d Device) Device {
	d.UUID, d.Name, d.Error, d.ProcessesError = clean(d.UUID), clean(d.Name), clean(d.Error), clean(d.ProcessesError)
	if d.Error == "" {
		d.Error = untrue(&d)
	}
	if d.Utilisation != nil && (*d.Utilisation < 0 || *d.Utilisation > 100) {
		d.Utilisation = nil
	}
	if d.Error != "" {
		d.TotalBytes, d.UsedBytes, d.FreeBytes, d.ReservedBytes = 0, 0, 0, 0
		d.Utilisation, d.Temperature, d.Processes = nil, nil, nil
	}
	if len(d.Processes) > maxProcesses {
		d.ProcessesError = fmt.Sprintf("there are %d processes, more than %d", len(d.Processes), maxProcesses)
	}
	if d.ProcessesError != "" {
		d.Processes = nil
	}
	processes := make([]Process, len(d.Processes))
	for i, p := range d.Processes {
		if p.Bytes > d.TotalBytes {
			p.Bytes, p.BytesUnknown = 0, true
		}
		o := &p.Owner
		for _, text := range []*string{&o.User, &o.Command, &o.Container, &o.Runtime, &o.Pod, &o.Job} {
			*text = clean(*text)
		}
		p.GrownBytes = 0
		processes[i] = p
	}
	d.Processes = processes
	return d
}

// untrue says what is wrong with figures that no GPU has, such as counters that
// went below zero.
func untrue(d *Device) string {
	if d.TotalBytes == 0 || d.TotalBytes > maxBytes || d.UsedBytes > d.TotalBytes || d.FreeBytes > d.TotalBytes || d.ReservedBytes > d.TotalBytes {
		return fmt.Sprintf("the driver gave figures that cannot be true: total %d, used %d, free %d, reserved %d bytes", d.TotalBytes, d.UsedBytes, d.FreeBytes, d.ReservedBytes)
	}
	return ""
}

// clean bounds a text and replaces characters that would steer a terminal.
func clean(text string) string {
	if len(text) > 4*maxText {
		text = text[:4*maxText]
	}
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == 0x2028 || r == 0x2029 {
			return unicode.ReplacementChar
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	if utf8.RuneCountInString(text) > maxText {
		text = string([]rune(text)[:maxText-1]) + "…"
	}
	return text
}
