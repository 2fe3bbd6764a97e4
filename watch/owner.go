package watch

import (
	"errors"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// Owners finds whose processes are. The files of /proc belong to strangers: of
// each a bounded part is read, and what can't be read stays unknown.
type Owners struct {
	Proc fs.FS                   // /proc
	User func(uid string) string // name of a user, empty: unknown
}

// Bounds of what is read of a process.
const (
	statusBytes  = 8 << 10
	cgroupBytes  = 64 << 10
	commandBytes = 4 << 10
	environBytes = 256 << 10
)

// hostNamespace is the number of the first namespace of processes, in which the
// numbers that drivers tell are those of /proc.
const hostNamespace = "pid:[4026531836]"

// Fill tells the owners of the processes of a scan, and which of them are dead.
// In a namespace of processes of its own, such as a container's, the driver's
// numbers mean nothing: there the processes are unknown.
func (o *Owners) Fill(s *Scan) {
	hidden := ""
	if at, err := fs.ReadLink(o.Proc, "self/ns/pid"); err == nil && at != hostNamespace {
		hidden = "this program is in a container with its own process numbers: run it with those of the host (--pid=host)"
	}
	for i := range s.Devices {
		d := &s.Devices[i]
		if hidden != "" && d.ProcessesError == "" {
			d.ProcessesError, d.Processes = hidden, nil
		}
		for j := range d.Processes {
			o.fill(&d.Processes[j])
		}
	}
}

func (o *Owners) fill(p *Process) {
	dir := strconv.Itoa(p.PID)
	if _, err := fs.Stat(o.Proc, dir); errors.Is(err, fs.ErrNotExist) {
		p.Dead = true
		return
	}
	status := o.read(dir, "status", statusBytes)
	state := field(status, "State:")
	if state == "Z" || state == "X" { // a zombie is listed until its parent asks for it
		p.Dead = true
	}
	p.Owner = parseCgroup(o.read(dir, "cgroup", cgroupBytes))
	if uid := field(status, "Uid:"); uid != "" {
		p.User = uid
		if name := o.User(uid); name != "" {
			p.User = name
		}
	}
	p.Command = commandOf(o.read(dir, "cmdline", commandBytes))
	if p.Command == "" {
		p.Command = field(status, "Name:")
	}
	if p.Job == "" {
		p.Job = jobOf(o.read(dir, "environ", environBytes))
	}
}

// read is the beginning of a file of a process, empty if it can't be read.
func (o *Owners) read(dir, name string, limit int64) string {
	f, err := o.Proc.Open(path.Join(dir, name))
	if err != nil {
		return ""
	}
	defer f.Close()
	text, _ := io.ReadAll(io.LimitReader(f, limit)) // a process that ends meanwhile leaves a part
	return string(text)
}

// field is the first word after a name in the text of /proc/PID/status.
func field(status, name string) string {
	for line := range strings.Lines(status) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			if words := strings.Fields(rest); len(words) > 0 {
				return words[0]
			}
		}
	}
	return ""
}

// commandOf names the program of a command line and the script that it runs.
// Other arguments are left out: they may hold secrets.
func commandOf(cmdline string) string {
	words := strings.Split(strings.TrimRight(cmdline, "\x00"), "\x00")
	program := path.Base(words[0])
	if words[0] == "" {
		return ""
	}
	if !strings.HasPrefix(program, "python") {
		return program
	}
	for i := 1; i < len(words); i++ {
		switch w := words[i]; {
		case w == "-m" && i+1 < len(words):
			return program + " -m " + words[i+1]
		case w == "-c" || w == "-":
			return program
		case w == "-W" || w == "-X": // have a value
			i++
		case !strings.HasPrefix(w, "-"):
			return program + " " + path.Base(w)
		}
	}
	return program
}

// jobOf is the number of the job of Slurm in the text of /proc/PID/environ.
func jobOf(environ string) string {
	for v := range strings.SplitSeq(environ, "\x00") {
		if id, ok := strings.CutPrefix(v, "SLURM_JOB_ID="); ok {
			if _, err := strconv.ParseUint(id, 10, 64); err == nil {
				return id
			}
		}
	}
	return ""
}
