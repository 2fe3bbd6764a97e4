package watch

import (
	"regexp"
	"strings"
)

// Note [Control groups]
//
// /proc/PID/cgroup has lines HIERARCHY:CONTROLLERS:PATH, one for each hierarchy of
// version 1 and one with number 0 for version 2. The path tells who made the group:
//
//	/system.slice/docker-ID.scope, /docker/ID
//	/machine.slice/libpod-ID.scope, /libpod_parent/libpod-ID
//	/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/cri-containerd-ID.scope
//	/system.slice/containerd.service/kubepods-burstable-podUID.slice:cri-containerd:ID
//	/kubepods/burstable/podUID/ID
//	/slurm/uid_1000/job_JOB/step_0, /system.slice/slurmstepd.scope/job_JOB/step_0
//
// ID is 64 hexadecimal digits. UID is that of the pod, with _ for - where systemd
// names the group.

var (
	containerPart = regexp.MustCompile(`^(?:(.*)-)?([0-9a-f]{64})(?:\.scope)?$`)
	podPart       = regexp.MustCompile(`(?:^|-)pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?$`)
	jobPart       = regexp.MustCompile(`^job_([0-9]{1,20})$`)
)

// runtimeNames are the runtimes by what their groups begin with.
var runtimeNames = map[string]string{
	"docker": "docker", "libpod": "podman", "cri-containerd": "containerd", "crio": "cri-o", "nerdctl": "containerd",
}

// shortID is how many digits of a container's id the runtimes show.
const shortID = 12

// parseCgroup finds the container, the pod and the job in the text of
// /proc/PID/cgroup. The innermost container counts.
func parseCgroup(text string) Owner {
	var o Owner
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) == 3 {
			o.addGroup(fields[2])
		}
	}
	return o
}

func (o *Owner) addGroup(path string) {
	slurm := false
	folder := ""
	for part := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '/' || r == ':' }) {
		if m := containerPart.FindStringSubmatch(part); m != nil && m[1] != "libpod-conmon" {
			o.Container, o.Runtime = m[2][:shortID], runtimeOf(m[1], folder)
		}
		if m := podPart.FindStringSubmatch(part); m != nil {
			o.Pod = strings.ReplaceAll(m[1], "_", "-")
		}
		slurm = slurm || strings.HasPrefix(part, "slurm")
		if m := jobPart.FindStringSubmatch(part); m != nil && slurm {
			o.Job = m[1]
		}
		folder = part
	}
}

// runtimeOf names the runtime by what stands before the id or in the part of
// the path before it.
func runtimeOf(prefix, folder string) string {
	if name := runtimeNames[prefix]; name != "" {
		return name
	}
	return runtimeNames[folder]
}
