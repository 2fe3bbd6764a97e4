package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headroom-go/headroom/internal/invariant"
	"github.com/headroom-go/headroom/train"
)

// farHosts makes two hosts, as namespaces of this machine's network, with a cable
// between them. It gives their names and addresses, or skips the test where that
// can't be done.
func farHosts(t *testing.T) (names, addresses [2]string, c *cable) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can make networks")
	}
	c = &cable{}
	for i, side := range []string{"a", "b"} {
		name := fmt.Sprintf("hr%s%d", side, os.Getpid()) // of the host, and of its end of the cable
		names[i], addresses[i] = name, fmt.Sprintf("10.213.77.%d", i+1)
		if err := c.plug(i, name); err != nil {
			t.Skipf("SKIPPED: %v", err)
		}
		t.Cleanup(func() { c.ends[i].Close() })
		t.Cleanup(func() { exec.Command("ip", "netns", "del", name).Run() })
		for _, command := range []string{"netns add %s", "link set %s netns %[1]s", "-n %s addr add " + addresses[i] + "/24 dev %[1]s", "-n %s link set %[1]s mtu 16000 up"} {
			words := strings.Fields(fmt.Sprintf(command, name))
			if out, err := exec.Command("ip", words...).CombinedOutput(); err != nil {
				t.Skipf("SKIPPED: ip %s: %v: %s", strings.Join(words, " "), err, out)
			}
		}
	}
	go c.carry(0, 1)
	go c.carry(1, 0)
	return names, addresses, c
}

// cable carries packets between two hosts, 20 ms each way, and loses each
// hundredth. (The kernel's own netem does the same, where it is built in.)
type cable struct {
	ends [2]*os.File
	lost atomic.Int64
}

// plug makes an end, as an interface of a name.
func (c *cable) plug(end int, name string) error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("/dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		unix.Close(fd)
		return fmt.Errorf("interface %s: %w", name, err)
	}
	c.ends[end] = os.NewFile(uintptr(fd), name) // it can be waited for once it is an interface
	return nil
}

// carry carries packets one way until the ends are closed.
func (c *cable) carry(from, to int) {
	type packet struct {
		data []byte
		due  time.Time
	}
	under := make(chan packet, 1<<12)
	defer close(under)
	go func() {
		for p := range under {
			time.Sleep(time.Until(p.due))
			c.ends[to].Write(p.data)
		}
	}()
	for n := 1; ; n++ {
		data := make([]byte, 1<<16)
		size, err := c.ends[from].Read(data)
		if err != nil {
			return
		}
		if n%100 == 0 {
			c.lost.Add(1)
			continue
		}
		under <- packet{data[:size], time.Now().Add(20 * time.Millisecond)}
	}
}

// startFar starts a rank of two on each of two hosts.
func startFar(t *testing.T, names, addresses [2]string, args []string) (processes [2]*exec.Cmd, words [2]*bytes.Buffer) {
	t.Helper()
	program := ourselves(t)
	for rank, name := range names {
		p := exec.Command("ip", append([]string{"netns", "exec", name, program}, args...)...)
		p.Env = append(os.Environ(), "RANK="+strconv.Itoa(rank), "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1", "MASTER_ADDR="+addresses[0], "MASTER_PORT=29500")
		words[rank] = new(bytes.Buffer)
		p.Stdout, p.Stderr = words[rank], words[rank]
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Process.Kill() })
		processes[rank] = p
	}
	return processes, words
}

// TestFarHosts trains on two hosts with a bad network between them: the losses are
// those of two ranks on one machine, bit for bit, and a rank that is killed is
// named by the other.
func TestFarHosts(t *testing.T) {
	if invariant.Slow {
		t.Skip("it would take minutes, and nothing in it is new to invariants")
	}
	names, addresses, c := farHosts(t)
	data, dir := text(t), t.TempDir()
	command := func(out string, steps int) []string {
		return []string{"train", "--model", "gpt2-nano", "--batch", "4", "--seq", "16", "--steps", strconv.Itoa(steps), "--save-every", "1", "--device", "host:32MiB", "--data", data, "--out", filepath.Join(dir, out)}
	}
	const steps = 3
	var near bytes.Buffer
	l := launchFlags{n: 2}
	if err := l.launch(t.Context(), ourselves(t), command("near", steps), &near, &near); err != nil {
		t.Fatalf("%v\n%s", err, &near)
	}
	processes, words := startFar(t, names, addresses, command("far", steps))
	for rank, p := range processes {
		if err := p.Wait(); err != nil {
			t.Fatalf("rank %d: %v\n%s", rank, err, words[rank])
		}
	}
	if got, want := runLosses(t, filepath.Join(dir, "far")), runLosses(t, filepath.Join(dir, "near")); len(want) != steps || !maps.Equal(got, want) {
		t.Errorf("losses %v, on one machine %v", got, want)
	}
	if c.lost.Load() == 0 {
		t.Error("no packet was lost")
	}

	processes, words = startFar(t, names, addresses, command("killed", 100000))
	waitForFile(t, filepath.Join(dir, "killed", train.CheckpointFile))
	if err := processes[1].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	if err := processes[0].Wait(); err == nil || !strings.Contains(words[0].String(), "headroom: rank 1: it died") {
		t.Errorf("rank 0 ends with %v\n%s", err, words[0])
	}
	if d := time.Since(killed); d > 30*time.Second {
		t.Errorf("it ended after %v", d)
	}
}
