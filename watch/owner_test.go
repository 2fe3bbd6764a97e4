package watch

import (
	"io/fs"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

const (
	id1 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	id2 = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"
	uid = "8dbc5577_d0e2_4706_8787_57d52c03ddf2"
)

func TestCgroups(t *testing.T) {
	pod := strings.ReplaceAll(uid, "_", "-")
	for text, want := range map[string]Owner{
		"":         {},
		"nonsense": {},
		"0::/":     {},
		"0::/user.slice/user-1000.slice/session-3.scope\n":                                                                                   {},
		"0::/system.slice/docker-" + id1 + ".scope\n":                                                                                        {Container: id1[:12], Runtime: "docker"},
		"12:memory:/docker/" + id1 + "\n11:cpu,cpuacct:/docker/" + id1 + "\n":                                                                {Container: id1[:12], Runtime: "docker"},
		"0::/machine.slice/libpod-" + id1 + ".scope/container\n":                                                                             {Container: id1[:12], Runtime: "podman"},
		"0::/machine.slice/libpod-conmon-" + id1 + ".scope\n":                                                                                {},
		"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + id1 + ".scope\n":                                             {Container: id1[:12], Runtime: "podman"},
		"0::/libpod_parent/libpod-" + id1 + "\n":                                                                                             {Container: id1[:12], Runtime: "podman"},
		"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uid + ".slice/cri-containerd-" + id1 + ".scope\n":             {Container: id1[:12], Runtime: "containerd", Pod: pod},
		"0::/kubepods.slice/kubepods-pod" + uid + ".slice/crio-" + id1 + ".scope\n":                                                          {Container: id1[:12], Runtime: "cri-o", Pod: pod},
		"0::/system.slice/containerd.service/kubepods-besteffort-pod" + uid + ".slice:cri-containerd:" + id1 + "\n":                          {Container: id1[:12], Runtime: "containerd", Pod: pod},
		"4:memory:/kubepods/burstable/pod" + pod + "/" + id1 + "\n":                                                                          {Container: id1[:12], Pod: pod},
		"0::/kubepods/pod0123456789abcdef0123456789abcdef/" + id1 + "\n":                                                                     {Container: id1[:12], Pod: "0123456789abcdef0123456789abcdef"},
		"0::/docker/" + id1 + "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + uid + ".slice/cri-containerd-" + id2 + ".scope": {Container: id2[:12], Runtime: "containerd", Pod: pod},
		"9:memory:/slurm/uid_1000/job_4242/step_0/task_0\n":                                                                                  {Job: "4242"},
		"9:memory:/slurm_node7/uid_1000/job_4242/step_batch\n":                                                                               {Job: "4242"},
		"0::/system.slice/slurmstepd.scope/job_77/step_0/user/task_0\n":                                                                      {Job: "77"},
		"0::/system.slice/slurmstepd.scope/job_77/step_0/user/task_0/docker/" + id1:                                                          {Job: "77", Container: id1[:12], Runtime: "docker"},
		"0::/mine/job_77\n":                         {},
		"0::/ecs/task/" + id1 + "\n":                {Container: id1[:12]},
		"0::/docker/" + id1[:63] + "\n":             {},
		"0::/docker/" + strings.ToUpper(id1) + "\n": {},
	} {
		if got := parseCgroup(text); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

func FuzzCgroup(f *testing.F) {
	f.Add("0::/kubepods.slice/kubepods-pod" + uid + ".slice/crio-" + id1 + ".scope\n")
	f.Add("9:memory:/slurm/uid_1000/job_4242/step_0/task_0\n0::/docker/" + id1)
	plain := regexp.MustCompile(`^[0-9a-f]*$`)
	podForm := regexp.MustCompile(`^([0-9a-f-]{36}|[0-9a-f]{32})?$`)
	jobForm := regexp.MustCompile(`^[0-9]{0,20}$`)
	f.Fuzz(func(t *testing.T, text string) {
		o := parseCgroup(text)
		if !plain.MatchString(o.Container) || len(o.Container)%shortID != 0 || len(o.Container) > shortID || !podForm.MatchString(o.Pod) || !jobForm.MatchString(o.Job) {
			t.Errorf("%q gives %+v", text, o)
		}
		for _, found := range []string{o.Container, strings.ReplaceAll(o.Pod, "-", "_"), o.Job} {
			if !strings.Contains(strings.ReplaceAll(text, "-", "_"), found) {
				t.Errorf("%q does not hold %q", text, found)
			}
		}
	})
}

func TestCommands(t *testing.T) {
	for text, want := range map[string]string{
		"":                             "",
		"\x00":                         "",
		"/usr/bin/Xorg\x00:0\x00":      "Xorg",
		"ollama\x00serve\x00--key=abc": "ollama",
		"/usr/bin/python3\x00-u\x00/home/ann/train.py\x00--token\x00abc\x00": "python3 train.py",
		"python\x00-W\x00ignore\x00train.py\x00":                             "python train.py",
		"python\x00-m\x00torch.distributed.run\x00--x":                       "python -m torch.distributed.run",
		"python\x00-c\x00password = 'abc'\x00":                               "python",
		"python3.11\x00/opt/bin/vllm\x00serve\x00":                           "python3.11 vllm",
		"python\x00-m": "python",
		"python\x00-X": "python",
	} {
		if got := commandOf(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// proc is a tree like /proc.
func proc(namespace string) fstest.MapFS {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	return fstest.MapFS{
		"self/ns/pid": {Data: []byte(namespace), Mode: fs.ModeSymlink},
		"7/status":    file("Name:\tpython\nState:\tR (running)\nUid:\t1000\t1000\t1000\t1000\n"),
		"7/cmdline":   file("python\x00train.py\x00--password=abc\x00"),
		"7/cgroup":    file("0::/system.slice/docker-" + id1 + ".scope\n"),
		"7/environ":   file("A=1\x00SLURM_JOB_ID=123\x00B=2\x00"),
		"8/status":    file("Name:\tzombie\nState:\tZ (zombie)\nUid:\t1001\n"),
		"9/status":    file("Name:\tkworker\nState:\tS\nUid:\t0\t0\n"),
		"9/cmdline":   file(""),
		"10/status":   file("Uid:"),
		"10/environ":  file("SLURM_JOB_ID=$(reboot)\x00" + strings.Repeat("x", environBytes) + "\x00SLURM_JOB_ID=5\x00"),
	}
}

func scanOf(pids ...int) Scan {
	var d Device
	for _, pid := range pids {
		d.Processes = append(d.Processes, Process{PID: pid})
	}
	return Scan{Devices: []Device{d}}
}

func TestOwners(t *testing.T) {
	o := Owners{proc(hostNamespace), func(uid string) string { return map[string]string{"1000": "ann", "0": "root"}[uid] }}
	s := scanOf(7, 8, 9, 10, 11)
	o.Fill(&s)
	want := []Process{
		{PID: 7, Owner: Owner{User: "ann", Command: "python train.py", Container: id1[:12], Runtime: "docker", Job: "123"}},
		{PID: 8, Dead: true, Owner: Owner{User: "1001", Command: "zombie"}},
		{PID: 9, Owner: Owner{User: "root", Command: "kworker"}},
		{PID: 10},
		{PID: 11, Dead: true},
	}
	for i, p := range s.Devices[0].Processes {
		if p != want[i] {
			t.Errorf("%+v, want %+v", p, want[i])
		}
	}
}

// TestOwnersInAContainer: the driver's numbers are those of the host, so nothing
// may be said of them, least of all that they are dead.
func TestOwnersInAContainer(t *testing.T) {
	o := Owners{proc("pid:[4026532999]"), func(string) string { return "" }}
	s := scanOf(7, 11)
	o.Fill(&s)
	if d := s.Devices[0]; len(d.Processes) != 0 || !strings.Contains(d.ProcessesError, "--pid=host") {
		t.Errorf("%+v", d)
	}
	if _, known := s.Devices[0].Unowned(); known {
		t.Error("it is said what nobody holds")
	}
}

// TestOwnersUnreadable: files that can't be read are as if they were not there,
// and a process whose folder can't be looked at is not called dead.
func TestOwnersUnreadable(t *testing.T) {
	o := Owners{refusing{proc(hostNamespace)}, func(string) string { return "" }}
	s := scanOf(7, 8)
	o.Fill(&s)
	for _, p := range s.Devices[0].Processes {
		if p != (Process{PID: p.PID}) {
			t.Errorf("%+v", p)
		}
	}
}

// refusing lets nobody read.
type refusing struct{ fstest.MapFS }

func (refusing) Open(string) (fs.File, error)     { return nil, fs.ErrPermission }
func (refusing) Stat(string) (fs.FileInfo, error) { return nil, fs.ErrPermission }
