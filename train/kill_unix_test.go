//go:build unix

package train_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headroom-go/headroom/data"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/train"
)

// childKind and childDir tell a process of this test what to run, and where.
const (
	childKind = "HEADROOM_TEST_KIND"
	childDir  = "HEADROOM_TEST_DIR"
)

// TestKilledAnywhere kills processes that train, at any moment, with a
// checkpoint after every step, and starts them again until one comes to the
// end: the losses are those of a run that was left alone. Text, a file of
// tokens, hidden words, images, and text on several ranks, which write a file each.
func TestKilledAnywhere(t *testing.T) {
	for _, kind := range []string{"text", "tokens", "masked", "images", "ranks"} {
		t.Run(kind, func(t *testing.T) {
			dir := t.TempDir()
			writeData(t, dir)
			want := finish(t, kind, dir, "whole", 0)
			got := finish(t, kind, dir, "killed", 3)
			if len(want) != killSteps || !slices.Equal(got, want) {
				t.Errorf("losses %v, want %v", got, want)
			}
		})
	}
}

const killSteps = 12

// finish runs children until one is done, and kills the first so many.
func finish(t *testing.T, kind, dir, out string, kills int) []float64 {
	t.Helper()
	out = filepath.Join(dir, out)
	if err := os.MkdirAll(out, 0o755); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(rand.Uint64(), 0))
	for i := 0; ; i++ {
		cmd := exec.Command(os.Args[0], "-test.run=^TestChild$")
		cmd.Env = append(os.Environ(), childKind+"="+kind, childDir+"="+out)
		var stderr strings.Builder
		cmd.Stdout, cmd.Stderr = &stderr, &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if i < kills {
			awaitSteps(out, 2+3*i)
			time.Sleep(time.Duration(r.IntN(3000)) * time.Microsecond) // somewhere in a step or a checkpoint
			cmd.Process.Kill()
		}
		err := cmd.Wait()
		if i >= kills && err != nil {
			t.Fatalf("%v\n%s", err, &stderr)
		}
		if err == nil {
			if i < kills {
				t.Logf("the process was done before it could be killed a %d. time", i+1)
			}
			return lossesIn(t, out)
		}
	}
}

// awaitSteps waits until the metrics in dir have so many lines.
func awaitSteps(dir string, n int) {
	for range 5000 {
		text, _ := os.ReadFile(filepath.Join(dir, "metrics.jsonl"))
		if strings.Count(string(text), "\n") >= n {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func lossesIn(t *testing.T, dir string) (losses []float64) {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var p train.Progress
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
			t.Fatal(err)
		}
		losses = append(losses, p.Loss)
	}
	return losses
}

// TestChild is the process that is killed.
func TestChild(t *testing.T) {
	kind, dir := os.Getenv(childKind), os.Getenv(childDir)
	if kind == "" {
		t.Skip("it is run by TestKilledAnywhere")
	}
	c := map[string]train.Config{"text": config(), "ranks": config(), "tokens": config(), "masked": families()["masked"], "images": families()["resnet"]}[kind]
	c.Schedule.Steps = killSteps
	c.BERT.Vocab = min(1, c.BERT.Vocab) * 258
	c.ResNet.Channels, c.ResNet.Classes = min(1, c.ResNet.Channels), min(1, c.ResNet.Classes)*4
	if kind != "ranks" {
		if err := child(t, kind, dir, c, train.Parallel{}); err != nil {
			t.Fatal(err)
		}
		return
	}
	for rank, err := range eachRank(2, func(g dist.Group) error {
		return child(t, kind, dir, c, train.Parallel{Group: g, Shard: train.ShardState})
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// child goes on with the run in dir, or begins one.
func child(t *testing.T, kind, dir string, c train.Config, p train.Parallel) error {
	share := c
	if p.Group != nil {
		share.Batch /= p.Group.Size()
	}
	dev, err := device.Open("host:64MiB")
	if err != nil {
		return err
	}
	tr, err := train.NewParallel(dev, share, share.Plain(), p)
	if err != nil {
		return err
	}
	feed, done := childFeed(t, kind, filepath.Dir(dir), c)
	r := &train.Run{Trainer: tr, Feed: feed, Dir: dir, SaveEvery: 1}
	cp, err := train.OpenCheckpoint(dir)
	if err == nil {
		err = errors.Join(r.Resume(cp), cp.Close())
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		_, err = r.Do(context.Background())
	}
	done()
	return errors.Join(err, tr.Close(), dev.Close())
}

// childFeed opens what writeData wrote.
func childFeed(t *testing.T, kind, dir string, c train.Config) (feed train.Feed, done func()) {
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	if kind == "images" {
		set, err := data.OpenImageSet(dir, "train")
		must(err)
		l, err := train.NewLoaded(t.Context(), train.Samples{set.Images, set.Labels}, c.Batch, c.Seed)
		must(err)
		return l, func() { l.Close(); must(set.Close()) }
	}
	var corpus *data.Corpus
	var err error
	if kind == "tokens" {
		corpus, err = data.OpenCorpus(filepath.Join(dir, "tokens.bin"), data.Uint16, data.Bytes{})
	} else {
		corpus, err = data.Load(t.Context(), []string{filepath.Join(dir, "text")}, data.Bytes{})
	}
	must(err)
	b, err := data.NewBatches(corpus, c.Batch, c.Seq, c.Seed)
	must(err)
	done = func() { must(corpus.Close()) }
	if kind == "masked" {
		return train.HiddenWords(data.NewMasked(b, data.Mask{Token: 256, Random: 256})), done
	}
	return train.Text(b), done
}

// writeData writes a text, a file of tokens, and images with labels.
func writeData(t *testing.T, dir string) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	text := []byte(strings.Repeat("Everyone has the right to life, liberty and security of person. ", 20))
	var tokens []byte
	for range 2000 {
		tokens = binary.LittleEndian.AppendUint16(tokens, uint16(r.IntN(256)))
	}
	images, labels := []byte{0, 0, 8, 3, 0, 0, 0, 40, 0, 0, 0, 12, 0, 0, 0, 10}, []byte{0, 0, 8, 1, 0, 0, 0, 40}
	for range 40 * 12 * 10 {
		images = append(images, byte(r.IntN(256)))
	}
	for range 40 {
		labels = append(labels, byte(r.IntN(4)))
	}
	for name, content := range map[string][]byte{"text": text, "tokens.bin": tokens, "train-images-idx3-ubyte": images, "train-labels-idx1-ubyte": labels} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
