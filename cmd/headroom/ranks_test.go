package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headroom-go/headroom/inspect"
	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/plan"
	"github.com/headroom-go/headroom/train"
)

// asCommand makes the test binary the command itself, for tests that start
// processes.
const asCommand = "HEADROOM_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// ourselves is the program to start, as the command.
func ourselves(t *testing.T) string {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(asCommand, "1")
	return program
}

// runLosses reads the losses of a run's steps, by their numbers.
func runLosses(t *testing.T, out string) map[int]float64 {
	t.Helper()
	f, err := os.Open(filepath.Join(out, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	losses := map[int]float64{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var p train.Progress
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
			t.Fatal(err)
		}
		losses[p.Step] = p.Loss
	}
	return losses
}

// sameLosses compares losses with those wanted, of which some may be missing: a
// process that is killed between a checkpoint and its line has not written it.
func sameLosses(t *testing.T, what string, got, want map[int]float64, missing int) {
	t.Helper()
	if len(got) < len(want)-missing || len(got) > len(want) {
		t.Errorf("%s: %d steps, want %d", what, len(got), len(want))
	}
	for step, loss := range got {
		if math.Abs(loss-want[step]) > 1e-5*want[step] {
			t.Errorf("%s: step %d has the loss %v, want %v", what, step, loss, want[step])
			return
		}
	}
}

// TestRanksFromTheCommandLine: several devices in this process, and several
// processes, have the losses of one device, and all the peak that was predicted.
func TestRanksFromTheCommandLine(t *testing.T) {
	data, dir := text(t), t.TempDir()
	out := func(name string) string { return filepath.Join(dir, name) }
	for _, family := range [][]string{{"--model", "gpt2-nano"}, {"--model", "bert-mini", "--validation", "0.2"}, {"--model", "moe-mini"}} {
		name := family[1]
		if invariant.Slow && name != "gpt2-nano" { // checking them takes its time
			continue
		}
		common := append([]string{"--batch", "4", "--seq", "16", "--steps", "3", "--data", data}, family...)
		if status, _, stderr := headroom(append([]string{"train", "--device", "host:256MiB", "--out", out(name)}, common...)...); status != 0 {
			t.Fatalf("status %d: %s", status, stderr)
		}
		want := runLosses(t, out(name))

		status, stdout, stderr := headroom(append([]string{"train", "--devices", "host:256MiB,host:200MiB", "--shard", "gradients", "--out", out(name + "2")}, common...)...)
		if status != 0 || !strings.Contains(stderr, "ranks   2, each with 2 samples of a batch; sharded: gradients") {
			t.Fatalf("status %d: %s", status, stderr)
		}
		two := runLosses(t, out(name+"2"))
		if name == "bert-mini" { // it has dropout, which each rank draws for itself
			want = two
		}
		sameLosses(t, name+" on two devices", two, want, 0)
		var predicted, measured int
		line := stdout[strings.Index(stdout, "rank 1"):]
		if _, err := fmt.Sscanf(line[strings.Index(line, "predicted"):], "predicted peak %s (%d bytes), measured %s (%d bytes)", new(string), &predicted, new(string), &measured); err != nil || predicted != measured {
			t.Errorf("%v, predicted %d, measured %d: %s", err, predicted, measured, line)
		}
		if s := summary(t, out(name+"2")); s.Ranks != 2 || s.MeasuredPeakBytes != s.PredictedPeakBytes || s.Batch != 4 {
			t.Errorf("summary %+v", s)
		}
		if name == "gpt2-nano" {
			leave(t, out("tensor"), "memory.1.pickle", "memory.7.pickle")
			status, _, stderr := headroom(append([]string{"train", "--devices", "2xhost:64MiB", "--tensor", "2", "--out", out("tensor")}, common...)...)
			if s := summary(t, out("tensor")); status != 0 || s.MeasuredPeakBytes != s.PredictedPeakBytes || s.Batch != 4 {
				t.Errorf("status %d, summary %+v: %s", status, s, stderr)
			}
			sameLosses(t, "two devices along tensor", runLosses(t, out("tensor")), want, 0)
			ranksOf(t, out(name+"2"), "rank 0 of 2: data 0 of 2, gradients sharded", "rank 1 of 2: data 1 of 2, gradients sharded")
			ranksOf(t, out("tensor"), "rank 0 of 2: tensor 0 of 2, state sharded", "rank 1 of 2: tensor 1 of 2, state sharded")
		}

		var words bytes.Buffer
		l := launchFlags{n: 2}
		if err := l.launch(t.Context(), ourselves(t), append([]string{"train", "--device", "host:256MiB", "--out", out(name + "l")}, common...), &words, &words); err != nil {
			t.Fatalf("%v\n%s", err, &words)
		}
		sameLosses(t, name+" as two processes", runLosses(t, out(name+"l")), two, 0)
		if s := words.String(); !strings.Contains(s, "[0] loss ") || !strings.Contains(s, "[1] rank 1 ") {
			t.Errorf("the processes say\n%s", s)
		}
	}
}

// leave writes what an earlier run might have left in a folder.
func leave(t *testing.T, folder string, names ...string) {
	t.Helper()
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(folder, name), []byte("no snapshot"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// ranksOf explains the snapshots of a run, which must be of ranks in these places.
func ranksOf(t *testing.T, folder string, places ...string) {
	t.Helper()
	status, stdout, stderr := headroom("explain", "--json", folder)
	var r inspect.JobReport
	if err := json.Unmarshal([]byte(stdout), &r); status != 0 || err != nil {
		t.Errorf("status %d, %v: %s", status, err, stderr)
	}
	var got []string
	for _, k := range r.Ranks {
		got = append(got, k.Place)
	}
	if !slices.Equal(got, places) {
		t.Errorf("the ranks of %s stand at %q, want %q", folder, got, places)
	}
}

// TestPlanForRanks: a rank's plan needs less the more is sharded and the more
// ranks there are, and what can't be shared is refused.
func TestPlanForRanks(t *testing.T) {
	least := uint64(math.MaxUint64)
	for _, args := range [][]string{{"--device", "null:1GiB"}, {"--devices", "2xnull:1GiB", "--shard", "nothing"}, {"--devices", "2xnull:1GiB", "--shard", "state"}, {"--devices", "4xnull:1GiB", "--shard", "gradients"}} {
		status, stdout, stderr := headroom(append([]string{"plan", "--batch", "8", "--seq", "64", "--json"}, args...)...)
		var p plan.Plan
		if err := json.Unmarshal([]byte(stdout), &p); status != 0 || err != nil || p.Chosen.PeakBytes >= least {
			t.Errorf("%v: status %d, error %v, peak %d, before %d\n%s", args, status, err, p.Chosen.PeakBytes, least, stderr)
		}
		least = p.Chosen.PeakBytes
	}
	status, stdout, stderr := headroom("plan", "--batch", "8", "--seq", "64", "--devices", "2xnull:1GiB", "--pipeline", "2", "--schedule", "zb-h1")
	if lines := strings.Split(strings.TrimSpace(stdout), "\n"); status != 0 || len(lines) != 6 || !strings.HasPrefix(strings.TrimSpace(lines[4]), "1  ") || !strings.Contains(lines[4], "  micro-batches of ") ||
		!strings.HasPrefix(lines[1], "order   zb-h1 of 4 micro-batches: the slowest rank waits 7.7 % of the time, ") || !strings.HasPrefix(lines[5], "times   are those of one core of a server, since null:1GiB has no speed") { // 1/13
		t.Errorf("status %d: %s\n%s", status, stdout, stderr)
	}
	for _, c := range []struct {
		want string
		args []string
	}{
		{"a multiple", []string{"--batch", "6", "--devices", "4xnull:1GiB", "--shard", "state"}},
		{"can't be spread over 7 ranks along any axis", []string{"--model", "gpt2-nano", "--devices", "7xnull:1GiB"}},
		{"normalises over the whole batch", []string{"--model", "resnet-mini", "--devices", "2xnull:1GiB"}},
		{"--devices answers", []string{"--devices", "2xnull:1GiB", "--max-batch"}},
		{"null:1MiB is not like null:1GiB", []string{"--model", "gpt2-nano", "--devices", "null:1GiB,null:1MiB"}},
		{`"cuda:0,1B"`, []string{"--model", "gpt2-nano", "--devices", "cuda:0,1B,cuda:1,1B"}},
		{"4 ranks can't be laid out as pipeline 3 × expert 1 × tensor 1", []string{"--devices", "4xnull:1GiB", "--pipeline", "3"}},
		{"has 4 blocks, which 5 ranks along pipeline", []string{"--model", "gpt2-nano", "--devices", "5xnull:1GiB", "--pipeline", "5"}},
		{"which can't be 2 × 3 chunks", []string{"--model", "gpt2-nano", "--devices", "2xnull:1GiB", "--pipeline", "2", "--schedule", "interleaved", "--chunks", "3"}},
		{`"zigzag" is none of 1f1b, gpipe, interleaved, zb-h1`, []string{"--devices", "2xnull:1GiB", "--pipeline", "2", "--schedule", "zigzag"}},
		{"the 4 heads of model gpt2-nano can't be shared out among 3 ranks", []string{"--model", "gpt2-nano", "--devices", "3xnull:1GiB", "--tensor", "3"}},
		{"1 ranks can't be laid out", []string{"--device", "null:1GiB", "--tensor", "2"}},
		{"model resnet-mini can't be split along the axis tensor yet", []string{"--model", "resnet-mini", "--devices", "2xnull:1GiB", "--tensor", "2"}},
	} {
		if status, _, stderr := headroom(append([]string{"plan"}, c.args...)...); status != 2 || !strings.Contains(stderr, c.want) {
			t.Errorf("%v: status %d, want 2\n%s", c.args, status, stderr)
		}
	}
	if status, _, stderr := headroom("plan", "--model", "gpt2-nano", "--devices", "2xnull:1MiB"); status != 1 || !strings.Contains(stderr, "in any layout: it needs at least") {
		t.Errorf("devices that are too small: status %d, want 1\n%s", status, stderr)
	}
	if status, _, stderr := headroom("train", "--data", text(t), "--out", t.TempDir(), "--model", "gpt2-nano", "--devices", "3xhost:64MiB", "--tensor", "2"); status != 2 || !strings.Contains(stderr, "3 ranks can't be laid out") {
		t.Errorf("train: status %d, want 2\n%s", status, stderr)
	}
}

// TestPlanLayouts: without a flag that lays ranks out, layouts are compared, the best
// one first with flags that plan it alone, at the same memory.
func TestPlanLayouts(t *testing.T) {
	common := []string{"plan", "--model", "gpt2-nano", "--batch", "4", "--seq", "64", "--devices", "2xnull:64MiB"}
	status, stdout, stderr := headroom(common...)
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if status != 0 || len(lines) < 3 || !strings.HasPrefix(lines[2], "* --") {
		t.Fatalf("status %d: %s\n%s", status, stdout, stderr)
	}
	var flags []string
	for _, word := range strings.Fields(lines[2])[1:] {
		if strings.Contains(word, "iB") {
			break
		}
		flags = append(flags, word)
	}
	var all []plan.Layout
	status, stdout, stderr = headroom(append(common, "--json")...)
	if err := json.Unmarshal([]byte(stdout), &all); status != 0 || err != nil || len(all) != len(lines)-3 || !all[0].Fits {
		t.Fatalf("status %d, error %v: %s\n%s", status, err, stdout, stderr)
	}
	orders := map[train.Schedule]bool{}
	for _, l := range all {
		orders[l.Schedule] = true
	}
	if len(orders) != 2 || !orders[train.ZeroBubble] {
		t.Errorf("pipelines of the orders %v are compared", orders)
	}
	if status, stdout, stderr := headroom(append(common, "--schedule", "1f1b")...); status != 0 || !strings.Contains(stdout, "--pipeline 2") || strings.Contains(stdout, "zb-h1") {
		t.Errorf("with 1f1b alone: status %d: %s\n%s", status, stdout, stderr)
	}
	var p plan.Plan
	status, stdout, stderr = headroom(append(append(common, "--json"), flags...)...)
	if err := json.Unmarshal([]byte(stdout), &p); status != 0 || err != nil || p.Chosen.PeakBytes != all[0].PeakBytes || p.Chosen.Seconds != all[0].Seconds {
		t.Errorf("%v: status %d, error %v: %+v, of layouts %+v\n%s", flags, status, err, p.Chosen, all[0], stderr)
	}
}

// TestRankIsKilled kills each of three processes in turn: the others end soon
// and name it, and the run goes on from its checkpoint with the losses that it
// would have had.
func TestRankIsKilled(t *testing.T) {
	if invariant.Slow {
		t.Skip("it would take minutes, and dist and train have their own tests of ranks that end, with invariants")
	}
	data, dir := text(t), t.TempDir()
	const steps = 60
	command := func(out string, more ...string) []string {
		return append([]string{"train", "--model", "gpt2-nano", "--batch", "6", "--seq", "32", "--steps", strconv.Itoa(steps), "--save-every", "2", "--device", "host:32MiB", "--data", data, "--out", out}, more...)
	}
	alone := filepath.Join(dir, "alone")
	if status, _, stderr := headroom(command(alone)...); status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	want := runLosses(t, alone)
	for victim := range 3 {
		out := filepath.Join(dir, fmt.Sprint("run", victim))
		processes, words := startRanks(t, 3, command(out))
		waitForFile(t, filepath.Join(out, train.CheckpointFile))
		if err := processes[victim].Process.Kill(); err != nil {
			t.Fatal(err)
		}
		killed := time.Now()
		for rank, p := range processes {
			if err := p.Wait(); err == nil {
				t.Errorf("rank %d ended well", rank)
			}
			if s := words[rank].String(); rank != victim && !strings.Contains(s, fmt.Sprintf("headroom: rank %d: it died", victim)) {
				t.Errorf("rank %d says\n%s", rank, s)
			}
		}
		if d := time.Since(killed); d > 30*time.Second {
			t.Errorf("the others ended after %v", d)
		}
		if status, _, stderr := headroom(command(out, "--resume")...); status != 0 {
			t.Fatalf("status %d: %s", status, stderr)
		}
		sameLosses(t, "after the death of a rank", runLosses(t, out), want, 1)
	}
}

// startRanks starts the ranks of a job by hand.
func startRanks(t *testing.T, n int, args []string) (processes []*exec.Cmd, words []*bytes.Buffer) {
	t.Helper()
	program, l := ourselves(t), launchFlags{n: n}
	env, err := l.environment()
	if err != nil {
		t.Fatal(err)
	}
	for rank := range n {
		p, w := exec.Command(program, args...), new(bytes.Buffer)
		p.Env = append(append(os.Environ(), env...), "RANK="+strconv.Itoa(rank), "LOCAL_RANK="+strconv.Itoa(rank))
		p.Stderr = w
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Process.Kill() })
		processes, words = append(processes, p), append(words, w)
	}
	return processes, words
}

func waitForFile(t *testing.T, path string) {
	t.Helper()
	for range 3000 {
		if _, err := os.Stat(path); err == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("no %s after half a minute", path)
}

// TestLaunchEnds: where one process fails, launch ends the others and names it;
// a signal lets all finish their step and save.
func TestLaunchEnds(t *testing.T) {
	data, dir := text(t), t.TempDir()
	program := ourselves(t)
	args := func(out string, more ...string) []string {
		return append([]string{"train", "--model", "gpt2-nano", "--batch", "4", "--seq", "32", "--steps", "100000", "--save-every", "1", "--data", data, "--out", filepath.Join(dir, out)}, more...)
	}
	var words bytes.Buffer
	l := launchFlags{n: 2}
	err := l.launch(t.Context(), program, args("a", "--devices", "host:32MiB,host:1MiB"), &words, &words)
	if err == nil || !strings.Contains(err.Error(), "rank ") || !strings.Contains(words.String(), "does not fit 1MiB") {
		t.Errorf("error %v\n%s", err, &words)
	}
	words.Reset()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		waitForFile(t, filepath.Join(dir, "b", train.CheckpointFile))
	}()
	if err := l.launch(ctx, program, args("b", "--device", "host:32MiB"), &words, &words); err == nil || err != errInterrupted {
		t.Errorf("error %v", err)
	}
	if s := words.String(); !strings.Contains(s, "[0] headroom: interrupted after step") || !strings.Contains(s, "[1] headroom: interrupted") {
		t.Errorf("the processes say\n%s", s)
	}
	for _, bad := range [][]string{{"launch"}, {"launch", "train"}, {"launch", "-n", "0", "--", "train"}} {
		if status, _, _ := headroom(bad...); status != 2 {
			t.Errorf("%q: status %d, want 2", bad, status)
		}
	}
}

// TestLaunchRestarts kills a process in mid-run, once or each time that it is
// started: the job is started again from its checkpoint, with the losses of an
// undisturbed one, as often as it may be.
func TestLaunchRestarts(t *testing.T) {
	if invariant.Slow {
		t.Skip("it would take minutes, and nothing in it is new to invariants")
	}
	data, dir := text(t), t.TempDir()
	program, undisturbed, out := ourselves(t), filepath.Join(dir, "undisturbed"), filepath.Join(dir, "run")
	command := func(out string, more ...string) []string {
		return append([]string{"train", "--model", "gpt2-nano", "--batch", "4", "--seq", "32", "--steps", "20", "--save-every", "2", "--device", "host:32MiB", "--data", data, "--out", out}, more...)
	}
	if status, _, stderr := headroom(command(undisturbed)...); status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	// Rank 1 is killed once there is a checkpoint, as often as there are lives.
	script := filepath.Join(dir, "mortal")
	if err := os.WriteFile(script, []byte(fmt.Sprintf(`#!/bin/sh
cd %s
if [ "$RANK" = 1 ] && rm life 2>/dev/null; then
	(while [ ! -e run/%s ]; do sleep 0.01; done; kill -KILL $$) >/dev/null 2>&1 &
fi
exec %s "$@"
`, dir, train.CheckpointFile, program)), 0o755); err != nil {
		t.Fatal(err)
	}
	for restarts, want := range []string{"rank 1 was the first to fail: signal: killed", ""} {
		if err := os.WriteFile(filepath.Join(dir, "life"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		var words bytes.Buffer
		l := launchFlags{n: 2, restarts: restarts}
		err := l.launchAgain(t.Context(), script, command(out, "--resume=auto"), &words, &words)
		if fmt.Sprint(err) != cmp.Or(want, "<nil>") || strings.Count(words.String(), "it is started again") != restarts {
			t.Errorf("%d restarts: error %v, want %q\n%s", restarts, err, want, &words)
		}
	}
	sameLosses(t, "started again", runLosses(t, out), runLosses(t, undisturbed), 1)
	for _, bad := range [][]string{{"launch", "--restarts", "1", "--", "train"}, {"launch", "--restarts", "-1", "--", "train"}, {"train", "--resume=never"}, {"train", "--resume=auto"}} {
		if status, _, _ := headroom(bad...); status != 2 {
			t.Errorf("%q: status %d, want 2", bad, status)
		}
	}
}

// TestPrefixedUnheard writes a line where nobody reads it.
func TestPrefixedUnheard(t *testing.T) {
	r, w := io.Pipe()
	r.Close()
	p := &prefixed{to: new(sync.Mutex), w: w}
	if n, err := p.Write([]byte("step 1\n")); n != 7 || err != nil {
		t.Errorf("%d, %v: the process would end", n, err)
	}
}

func TestWorldOf(t *testing.T) {
	for _, c := range []struct {
		env  string
		want world
	}{
		{"", world{}},
		{"RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=5 TORCHELASTIC_RUN_ID=x", world{3, 4, 1, 2, "a:5", "x", ""}},
		{"WORLD_SIZE=4 MASTER_ADDR=a", world{}},
		{"PET_NNODES=4 PET_NODE_RANK=2 PET_NPROC_PER_NODE=1 PET_MASTER_ADDR=a PET_MASTER_PORT=5", world{2, 4, 0, 1, "a:5", "", ""}},
		{"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2", world{1, 2, 1, 2, "127.0.0.1:29500", "", "Open MPI"}},
		{"PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1 MASTER_ADDR=b", world{1, 2, 0, 1, "b:29500", "", "MPICH"}},
		{"SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_LOCALID=1 SLURM_STEP_ID=0 SLURM_JOB_ID=40017 SLURM_STEP_NODELIST=gpu[07-09,12]-x,other", world{5, 8, 1, 0, "gpu07-x:20017", "40017", ""}},
		{"SLURM_PROCID=0 SLURM_NTASKS=8", world{}}, // the batch script
		{"RANK=1 WORLD_SIZE=2", world{1, 2, 0, 0, "", "", ""}},
	} {
		env := map[string]string{}
		for _, pair := range strings.Fields(c.env) {
			name, value, _ := strings.Cut(pair, "=")
			env[name] = value
		}
		if got, err := worldOf(func(name string) string { return env[name] }); err != nil || got != c.want {
			t.Errorf("%s: %+v, error %v; want %+v", c.env, got, err, c.want)
		}
	}
	for _, bad := range []string{"one 2 0", "-1 2 0", "2 2 0", "1 0 0", "0 -1 0", "0 99999999999 0", "0 2 -1"} {
		words := strings.Fields(bad)
		env := map[string]string{"RANK": words[0], "WORLD_SIZE": words[1], "LOCAL_RANK": words[2], "MASTER_ADDR": "a"}
		if w, err := worldOf(func(name string) string { return env[name] }); err == nil {
			t.Errorf("%v gives %+v", env, w)
		}
	}
	for list, want := range map[string][]string{
		"": nil, "host:1GiB,shared,cuda:0,8GiB,host,cuda:1": {"host:1GiB,shared", "cuda:0,8GiB", "host", "cuda:1"},
		"2xnull:80GiB,host": {"null:80GiB", "null:80GiB", "host"}, "x": {"x"}, "0xnull:1GiB": {"0xnull:1GiB"},
	} {
		if got := splitDevices(list); !slices.Equal(got, want) {
			t.Errorf("%s: devices %q, want %q", list, got, want)
		}
	}
}
