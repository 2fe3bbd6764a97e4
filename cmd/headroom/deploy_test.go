package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/headroom-go/headroom/internal/invariant"
)

// What the files in deploy/kubernetes use of Kubernetes' interfaces: a field that
// is not here is an error.
type (
	named struct {
		Name   string            `yaml:"name"`
		Labels map[string]string `yaml:"labels"`
	}
	resources struct {
		Requests map[string]string `yaml:"requests"`
		Limits   map[string]string `yaml:"limits"`
	}
	container struct {
		Name, Image   string
		Command, Args []string
		Env           []struct {
			Name, Value string
			ValueFrom   struct {
				FieldRef struct {
					FieldPath string `yaml:"fieldPath"`
				} `yaml:"fieldRef"`
			} `yaml:"valueFrom"`
		}
		Resources    resources
		VolumeMounts []struct {
			Name      string
			MountPath string `yaml:"mountPath"`
		} `yaml:"volumeMounts"`
	}
	pod struct {
		RestartPolicy string `yaml:"restartPolicy"`
		Grace         int    `yaml:"terminationGracePeriodSeconds"`
		Containers    []container
		Volumes       []struct {
			Name  string
			Claim struct {
				Name string `yaml:"claimName"`
			} `yaml:"persistentVolumeClaim"`
		}
	}
	jobSet struct {
		FailurePolicy struct {
			MaxRestarts int `yaml:"maxRestarts"`
		} `yaml:"failurePolicy"`
		ReplicatedJobs []struct {
			Name     string
			Replicas int
			Template struct {
				Metadata named
				Spec     struct {
					CompletionMode string `yaml:"completionMode"`
					Parallelism    int
					Completions    int
					BackoffLimit   *int `yaml:"backoffLimit"`
					Template       struct{ Spec pod }
				}
			}
		} `yaml:"replicatedJobs"`
	}
	trainingRuntime struct {
		MLPolicy struct {
			NumNodes int `yaml:"numNodes"`
			Torch    struct {
				NumProcPerNode int `yaml:"numProcPerNode"`
			}
		} `yaml:"mlPolicy"`
		Template struct{ Spec jobSet }
	}
	trainJob struct {
		RuntimeRef struct {
			APIGroup string `yaml:"apiGroup"`
			Kind     string
			Name     string
		} `yaml:"runtimeRef"`
		Trainer struct {
			NumNodes         int `yaml:"numNodes"`
			Args             []string
			ResourcesPerNode resources `yaml:"resourcesPerNode"`
		}
	}
	claim struct {
		AccessModes []string `yaml:"accessModes"`
		Resources   resources
	}
)

// object is a document of a file.
type object struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   named
	Spec       yaml.Node
}

// readObjects reads the documents of a file, and each one's specification into
// what specs has for its kind.
func readObjects(t *testing.T, name string, specs map[string]any) map[string]object {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../deploy/kubernetes", name))
	if err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{"JobSet": "jobset.x-k8s.io/v1alpha2", "TrainingRuntime": "trainer.kubeflow.org/v1alpha1", "TrainJob": "trainer.kubeflow.org/v1alpha1", "PersistentVolumeClaim": "v1"}
	objects := map[string]object{}
	documents := yaml.NewDecoder(bytes.NewReader(text))
	documents.KnownFields(true)
	for {
		var o object
		if err := documents.Decode(&o); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		spec, err := yaml.Marshal(&o.Spec)
		if err != nil {
			t.Fatal(err)
		}
		fields := yaml.NewDecoder(bytes.NewReader(spec))
		fields.KnownFields(true)
		if specs[o.Kind] == nil || o.APIVersion != versions[o.Kind] || o.Metadata.Name == "" {
			t.Fatalf("%s: an object of kind %q, version %q, name %q", name, o.Kind, o.APIVersion, o.Metadata.Name)
		}
		if err := fields.Decode(specs[o.Kind]); err != nil {
			t.Fatalf("%s: %s: %v", name, o.Kind, err)
		}
		objects[o.Kind] = o
	}
	if len(objects) != len(specs) {
		t.Fatalf("%s holds %d kinds, want %d", name, len(objects), len(specs))
	}
	return objects
}

// checkPod compares what a rank's pod says with what the command needs: one
// failure ends all, and results are where all see them.
func checkPod(t *testing.T, s jobSet, claimed object, c claim) container {
	t.Helper()
	job := s.ReplicatedJobs[0].Template.Spec
	p := job.Template.Spec
	if len(s.ReplicatedJobs) != 1 || job.BackoffLimit == nil || *job.BackoffLimit != 0 || s.FailurePolicy.MaxRestarts < 1 || p.RestartPolicy != "Never" || p.Grace < 60 || len(p.Containers) != 1 {
		t.Errorf("a failure is not followed by a start of all: %+v", s)
	}
	if len(p.Volumes) != 1 || p.Volumes[0].Claim.Name != claimed.Metadata.Name || !slices.Equal(c.AccessModes, []string{"ReadWriteMany"}) || c.Resources.Requests["storage"] == "" {
		t.Errorf("volumes %+v, claim %+v", p.Volumes, c)
	}
	only := p.Containers[0]
	if only.Image == "" || len(only.VolumeMounts) != 1 || only.VolumeMounts[0].Name != p.Volumes[0].Name || only.VolumeMounts[0].MountPath != "/results" {
		t.Errorf("container %+v", only)
	}
	return only
}

// checkTraining parses a command line with the program's own flags, and plans what
// it asks for on so many ranks.
func checkTraining(t *testing.T, command []string, ranks int, out string) {
	t.Helper()
	if len(command) < 2 || command[0] != "headroom" {
		t.Fatalf("the command is %q", command)
	}
	cmd, rest, err := rootCommand(io.Discard, io.Discard).Find(command[1:])
	if err == nil {
		err = cmd.ParseFlags(rest)
	}
	fl := cmd.Flags()
	if err != nil || cmd.Name() != "train" || fl.NArg() > 0 {
		t.Fatalf("%q: %v, arguments %q", command, err, fl.Args())
	}
	value := func(flag string) string { return fl.Lookup(flag).Value.String() }
	if every, _ := strconv.Atoi(value("save-every")); every < 1 || value("resume") != string(resumeAuto) || !strings.HasPrefix(value("out"), out) {
		t.Errorf("%q does not go on where it was", command)
	}
	if invariant.Slow { // package plan tests plans with invariants
		return
	}
	size, ok := strings.CutPrefix(value("device"), "host:")
	devices := fmt.Sprintf("%dxnull:%s", ranks, size)
	if status, _, stderr := headroom("plan", "--model", value("model"), "--batch", value("batch"), "--seq", value("seq"), "--devices", devices, "--shard", value("shard")); !ok || status != 0 {
		t.Errorf("%q does not fit %s: %s", command, devices, stderr)
	}
}

// checkPlaces compares what each rank reads in its environment with its place.
func checkPlaces(t *testing.T, ranks int, address string, env func(index int) map[string]string) {
	t.Helper()
	for i := range ranks {
		vars := env(i)
		if got, err := worldOf(func(name string) string { return vars[name] }); err != nil || got != (world{rank: i, size: ranks, here: 1, address: address}) {
			t.Errorf("pod %d is %+v, error %v; want one of %d at %s", i, got, err, ranks, address)
		}
	}
}

// TestJobSet reads the example as the command in its pods does.
func TestJobSet(t *testing.T) {
	var s jobSet
	var c claim
	objects := readObjects(t, "jobset.yaml", map[string]any{"JobSet": &s, "PersistentVolumeClaim": &c})
	only := checkPod(t, s, objects["PersistentVolumeClaim"], c)
	set := s.ReplicatedJobs[0]
	job, ranks := set.Template.Spec, set.Template.Spec.Parallelism
	if set.Replicas != 1 || job.Completions != ranks || ranks < 2 || job.CompletionMode != "Indexed" || only.Resources.Limits["memory"] == "" {
		t.Errorf("the job is %+v", job)
	}
	name := objects["JobSet"].Metadata.Name
	checkPlaces(t, ranks, fmt.Sprintf("%s-%s-0-0.%[1]s:29500", name, set.Name), func(index int) map[string]string {
		vars := map[string]string{}
		for _, e := range only.Env {
			if vars[e.Name] = e.Value; e.ValueFrom.FieldRef.FieldPath == "metadata.annotations['batch.kubernetes.io/job-completion-index']" {
				vars[e.Name] = strconv.Itoa(index)
			}
		}
		return vars
	})
	checkTraining(t, append(only.Command, only.Args...), ranks, "/results/")
}

// TestKubeflowTrainer reads the example as the command in its pods does, with the
// variables that Trainer 2.0 sets for the policy torch.
func TestKubeflowTrainer(t *testing.T) {
	var r trainingRuntime
	var j trainJob
	var c claim
	objects := readObjects(t, "trainer.yaml", map[string]any{"TrainingRuntime": &r, "TrainJob": &j, "PersistentVolumeClaim": &c})
	only := checkPod(t, r.Template.Spec, objects["PersistentVolumeClaim"], c)
	node, ref, ranks := r.Template.Spec.ReplicatedJobs[0], j.RuntimeRef, j.Trainer.NumNodes
	if node.Name != "node" || only.Name != "node" || node.Template.Metadata.Labels["trainer.kubeflow.org/trainjob-ancestor-step"] != "trainer" {
		t.Errorf("Trainer does not find the ranks in %+v", node)
	}
	if ref.APIGroup != "trainer.kubeflow.org" || ref.Kind != "TrainingRuntime" || ref.Name != objects["TrainingRuntime"].Metadata.Name || ranks < 2 || j.Trainer.ResourcesPerNode.Limits["memory"] == "" || r.MLPolicy.NumNodes != 1 {
		t.Errorf("the job is %+v", j)
	}
	name := objects["TrainJob"].Metadata.Name
	checkPlaces(t, ranks, fmt.Sprintf("%s-node-0-0.%[1]s:29500", name), func(index int) map[string]string {
		return map[string]string{"PET_NNODES": strconv.Itoa(ranks), "PET_NPROC_PER_NODE": strconv.Itoa(r.MLPolicy.Torch.NumProcPerNode), "PET_NODE_RANK": strconv.Itoa(index),
			"PET_MASTER_ADDR": fmt.Sprintf("%s-node-0-0.%[1]s", name), "PET_MASTER_PORT": "29500"}
	})
	checkTraining(t, append(only.Command, j.Trainer.Args...), ranks, "/results/")
}

// TestSlurm runs the batch script with an srun that writes down what it was asked.
func TestSlurm(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	const script = "../../deploy/slurm/train.sbatch"
	dir := t.TempDir()
	asked := filepath.Join(dir, "asked")
	if err := os.WriteFile(filepath.Join(dir, "srun"), []byte("#!/bin/sh\nprintf '%s\\n' \"$@\" >"+asked+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bash, script)
	cmd.Env = []string{"PATH=" + dir + ":/usr/bin:/bin", "HOME=/home/user", "SLURM_CPUS_PER_TASK=16"}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(asked)
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	at := slices.Index(words, "headroom")
	if !slices.Equal(words[:max(at, 0)], []string{"--cpus-per-task=16", "--kill-on-bad-exit=1"}) {
		t.Fatalf("srun is called with %q", words)
	}
	options := sbatchOptions(t, script)
	nodes, _ := strconv.Atoi(options["nodes"])
	if nodes < 2 || options["ntasks-per-node"] != "1" || options["cpus-per-task"] != "16" || !strings.HasPrefix(options["signal"], "TERM@") {
		t.Errorf("options %v", options)
	}
	checkTraining(t, words[at:], nodes, "/home/user/")
}

// sbatchOptions are the options that a script has for sbatch, which must be known
// ones.
func sbatchOptions(t *testing.T, script string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	options := map[string]string{}
	for line := range strings.Lines(string(text)) {
		option, ok := strings.CutPrefix(line, "#SBATCH --")
		if !ok {
			continue
		}
		name, value, _ := strings.Cut(strings.TrimSpace(option), "=")
		if known := []string{"job-name", "nodes", "ntasks-per-node", "cpus-per-task", "mem", "time", "signal", "requeue", "open-mode", "output"}; !slices.Contains(known, name) {
			t.Errorf("sbatch has no option --%s", name)
		}
		options[name] = value
	}
	return options
}
