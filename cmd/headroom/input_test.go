package main

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headroom-go/headroom/trace"
)

// badFiles writes files that are no memory snapshots, or damaged ones, into a
// folder.
func badFiles(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	whole, err := os.ReadFile(record(t, 4<<20, nil))
	if err != nil {
		t.Fatal(err)
	}
	zipped := gzipped(t, whole)
	length := func(op string, n uint64) string { return op + string(binary.LittleEndian.AppendUint64(nil, n)) }
	for name, content := range map[string]string{
		"zero":          "",
		"page.html":     "<!DOCTYPE html>\n<html><head><title>memory.pickle</title></head></html>\n",
		"log.txt":       "step 1\nstep 2\n",
		"class.pickle":  "\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R.",
		"long.pickle":   length("\x80\x04}\x8d", 10<<30) + "abc",
		"other.pickle":  "\x80\x04}\x8c\x05modelK\x01s.",
		"start.pickle":  string(whole[:40]),
		"cut.pickle":    string(whole[:len(whole)*3/4]),
		"cut.gz":        string(zipped[:len(zipped)*3/4]),
		"garbage.gz":    string(gzipped(t, []byte{0xd1, 0x8b, 0x00, 0x39, 0x74})),
		"damaged.gz":    "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x00" + strings.Repeat("\xff", 50),
		"weights.pt":    "PK\x03\x04" + strings.Repeat("\x00", 60),
		"config.json":   `{"model": "bert"}`,
		"empty.pickle":  "\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces]u.",
		"random.pickle": "\x0d\x14\x00\x00\xf4\x6a\x79",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func gzipped(t *testing.T, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	z.Write(b)
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestBadRecords: each is a message of its own with the file's name, nothing
// on standard output, and exit status 1.
func TestBadRecords(t *testing.T) {
	dir := badFiles(t)
	const noError = "no memory error found"
	for name, want := range map[string]struct{ explain, others string }{
		"zero":          {"the input is empty", "the input is empty"},
		"page.html":     {"this is an HTML page", "the input is a web page"},
		"log.txt":       {noError + " in 14 bytes", `the input is text, no memory snapshot: it begins "step 1"`},
		"class.pickle":  {"posix.system, which can run code", "posix.system, which can run code"},
		"long.pickle":   {"a string of 10737418240 bytes is longer than", "a string of 10737418240 bytes is longer than"},
		"other.pickle":  {`a dictionary with the keys "model"`, `a dictionary with the keys "model"`},
		"start.pickle":  {"nothing could be read: the file ends early, after 40 bytes", "nothing could be read: the file ends early, after 40 bytes"},
		"garbage.gz":    {"of an unknown format", "of an unknown format"},
		"damaged.gz":    {"the compressed data are damaged", "the compressed data are damaged"},
		"weights.pt":    {"a zip archive", "a zip archive"},
		"config.json":   {`an object with the keys "model"`, `an object with the keys "model"`},
		"random.pickle": {"of an unknown format", "of an unknown format"},
	} {
		path := filepath.Join(dir, name)
		expect(t, []string{"explain", path}, 1, "", path+": ")
		expect(t, []string{"explain", path}, 1, "", want.explain)
		for _, args := range [][]string{{"check", path}, {"replay", path}, {"diff", path, path}} {
			expect(t, args, 1, "", want.others)
		}
	}
	for _, command := range []string{"explain", "check", "replay"} {
		if command == "explain" {
			expect(t, []string{command, dir}, 1, "", "class.pickle: ") // the first of its snapshots
		} else {
			expect(t, []string{command, dir}, 1, "", "is a folder")
		}
		expect(t, []string{command, os.DevNull}, 1, "", "the input is empty")
	}
	expect(t, []string{"explain", "gone.pickle"}, 1, "", "there is no file gone.pickle")
	expect(t, []string{"explain", "gone.pickle", "went.pickle"}, 1, "", "there is no file gone.pickle")
	expect(t, []string{"explain", filepath.Join(dir, "empty.pickle")}, 1, "", "neither events nor segments")
}

// TestCutRecords: what stands before the end is shown, and standard error says
// that it is not all.
func TestCutRecords(t *testing.T) {
	dir := badFiles(t)
	for _, name := range []string{"cut.pickle", "cut.gz"} {
		path := filepath.Join(dir, name)
		for _, command := range []string{"explain", "check", "replay"} {
			status, stdout, stderr := headroom(command, path)
			if status != 0 || stdout == "" || !strings.Contains(stderr, path+": the file ends early, after") {
				t.Errorf("%s %s: status %d\n%s%s", command, name, status, stdout, stderr)
			}
		}
		for _, rules := range []string{"any", "cut"} {
			status, stdout, stderr := headroom("check", path, "--fail-on", rules)
			if status != 1 || !strings.Contains(stdout, "  the file: the file ends early") || !strings.Contains(stderr, `the rule "cut" is broken once`) {
				t.Errorf("check %s --fail-on %s: status %d\n%s%s", name, rules, status, stdout, stderr)
			}
		}
	}
}

// TestEmptyRecords: no command calls a file without events and segments sound.
func TestEmptyRecords(t *testing.T) {
	path := filepath.Join(badFiles(t), "empty.pickle")
	expect(t, []string{"explain", path}, 1, "", "neither events nor segments")
	expect(t, []string{"replay", path}, 1, "", "neither events nor segments")
	expect(t, []string{"diff", path, path}, 1, "", "neither events nor segments")
	if status, stdout, stderr := headroom("check", path, "--fail-on", "any"); status != 1 || !strings.Contains(stdout, "the record is empty") || !strings.Contains(stderr, `the rule "empty" is broken`) {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
}

// TestDamagedRecords: a wrong checksum is told, and the figures are given.
func TestDamagedRecords(t *testing.T) {
	whole, err := os.ReadFile(record(t, 4<<20, nil))
	if err != nil {
		t.Fatal(err)
	}
	zipped := gzipped(t, whole)
	zipped[len(zipped)-5] ^= 1
	path := filepath.Join(t.TempDir(), "wrong.gz")
	if err := os.WriteFile(path, zipped, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"explain", "check", "replay"} {
		status, stdout, stderr := headroom(command, path)
		if status != 0 || stdout == "" || !strings.Contains(stderr, path+": the file is damaged or cut behind byte") {
			t.Errorf("%s: status %d\n%s%s", command, status, stdout, stderr)
		}
	}
}

// TestCompressedLogs: a text is explained also where it is compressed or its
// end is missing, and for what is not unpacked here there is advice.
func TestCompressedLogs(t *testing.T) {
	const message = "CUDA out of memory. Tried to allocate 7.00 GiB. GPU 0 has a total capacity of 6.00 GiB\n"
	dir := t.TempDir()
	log := strings.Repeat("step 1: loss 2.3\n", 300) + message
	zipped := gzipped(t, []byte(log))
	for name, c := range map[string]struct {
		content        string
		status         int
		stdout, stderr string
	}{
		"log":     {log, 0, "OVERSIZE_REQUEST  ", ""},
		"log.gz":  {string(zipped), 0, "OVERSIZE_REQUEST  ", ""},
		"cut.gz":  {string(zipped[:len(zipped)-6]), 0, "OVERSIZE_REQUEST  ", "the input is damaged or cut after"},
		"log.xz":  {"\xfd7zXZ\x00\x00\x04\xe6", 1, "", "xz -dc FILE | headroom explain -"},
		"log.bz2": {"BZh91AY&SY\x01", 1, "", "bzip2 -dc FILE | headroom explain -"},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(c.content), 0o644); err != nil {
			t.Fatal(err)
		}
		status, stdout, stderr := headroom("explain", path)
		if status != c.status || !strings.HasPrefix(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) || c.stderr == "" && stderr != "" {
			t.Errorf("%s: status %d\n%s%s", name, status, stdout, stderr)
		}
	}
}

// TestNoHistory: a snapshot without events, or with its own mark alone, is called
// neither healthy nor exact without a word, and nothing is said to be replayed.
func TestNoHistory(t *testing.T) {
	none, mark := &trace.Trace{}, &trace.Trace{}
	mark.Append(trace.Entry{Event: trace.Event{Action: trace.SnapshotTaken, Size: 20 << 20}})
	for _, events := range []*trace.Trace{none, mark} {
		path := record(t, 4<<20, func(s *trace.Snapshot) { s.Traces[0] = events })
		for command, want := range map[string]string{
			"explain": "UNKNOWN  the snapshot holds no history, so that it does not tell what failed or what grows: 8MiB live, with 20MiB reserved",
			"replay":  "the record holds no events of memory",
			"check":   fmt.Sprintf("events %d\n", events.Len()),
		} {
			if status, stdout, stderr := headroom(command, path); status != 0 || !strings.Contains(stdout, want) || strings.Contains(stdout, "(replayed)") {
				t.Errorf("%s: status %d\n%s%s", command, status, stdout, stderr)
			}
		}
	}
}

// TestStandardInput: "-" is standard input for every command.
func TestStandardInput(t *testing.T) {
	path := record(t, 4<<20, nil)
	from := func(file string, args ...string) (int, string, string) {
		t.Helper()
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		before := os.Stdin
		defer func() { os.Stdin = before }()
		os.Stdin = f
		return headroom(args...)
	}
	for _, command := range []string{"explain", "check", "replay"} {
		_, want, _ := headroom(command, path)
		if status, got, stderr := from(path, command, "-"); status != 0 || got != want || stderr != "" {
			t.Errorf("%s -: status %d\n%s%s", command, status, got, stderr)
		}
		if status, got, stderr := from(os.DevNull, command, "-"); status != 1 || got != "" || !strings.Contains(stderr, "standard input: the input is empty") {
			t.Errorf("%s - of nothing: status %d\n%s%s", command, status, got, stderr)
		}
	}
	if status, _, stderr := from(path, "diff", path, "-"); status != 0 || stderr != "" {
		t.Errorf("diff FILE -: status %d\n%s", status, stderr)
	}
	if status, _, stderr := from(path, "diff", "-", "-"); status != 2 || !strings.Contains(stderr, "only once") {
		t.Errorf("diff - -: status %d\n%s", status, stderr)
	}
}
