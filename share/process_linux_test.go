package share

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device/devicetest"
)

// childVariable says in the environment of the borrowing process what it does.
const childVariable = "SHARE_TEST_CHILD"

// child is a borrowing process. What it says comes line by line.
type child struct {
	*exec.Cmd
	lines *bufio.Scanner
	hold  io.WriteCloser
}

// startChild runs the test binary as a borrower, with the connection as its
// file 3.
func startChild(t *testing.T, task string) (*child, *net.UnixConn) {
	t.Helper()
	isolated := task == "isolated"
	x, y := socketPair(t, syscall.SOCK_STREAM)
	f, err := y.File()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{Cmd: exec.Command(os.Args[0], "-test.run=^TestChild$", "-test.v", "-device="+devicetest.Chosen())}
	c.Env = append(os.Environ(), childVariable+"="+task)
	c.ExtraFiles, c.Stderr = []*os.File{f}, os.Stderr
	if isolated {
		c.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 1000, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 1000, HostID: os.Getgid(), Size: 1}},
		}
	}
	out, err1 := c.StdoutPipe()
	hold, err2 := c.StdinPipe()
	err = errors.Join(err1, err2, c.Start(), f.Close(), y.Close())
	if isolated && (errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC)) {
		t.Skip("this system lets us make no namespaces")
	}
	if err != nil {
		t.Fatal(err)
	}
	c.lines, c.hold = bufio.NewScanner(out), hold
	t.Cleanup(func() { _, _, _ = hold.Close(), c.Process.Kill(), c.Wait() })
	return c, x
}

// expect reads what the child says until it says the words.
func (c *child) expect(t *testing.T, words string) {
	t.Helper()
	var said []string
	for c.lines.Scan() {
		if said = append(said, c.lines.Text()); strings.Contains(c.lines.Text(), words) {
			return
		}
	}
	t.Fatalf("the other process did not say %q but\n%s", words, strings.Join(said, "\n"))
}

// TestChild is the borrowing process.
func TestChild(t *testing.T) {
	task := os.Getenv(childVariable)
	if task == "" {
		return
	}
	if task == "isolated" && os.Getppid() != 0 {
		t.Fatalf("the owner is visible: its id is %d", os.Getppid())
	}
	f := os.NewFile(3, "connection")
	c, err := net.FileConn(f)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	if task == "streams" {
		borrowByStreams(t, c.(*net.UnixConn))
		return
	}
	b, err := NewBorrower(c.(*net.UnixConn), openDevice(t, 1))
	if err != nil {
		t.Fatal(err)
	}
	for i := byte(0); ; i++ {
		m, err := b.Receive()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		expectContent(t, "the other process", m.Ptr(), pattern(m.Size(), i))
		copy(content(m.Ptr(), m.Size()), pattern(m.Size(), 100+i))
		if task == "hold" {
			fmt.Println("child holds the block")
			_, _ = io.Copy(io.Discard, os.Stdin)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestOtherProcess lends a block on stitched pages and one that begins in the
// middle of a page to another process, which reads and writes them.
func TestOtherProcess(t *testing.T) { lendToChild(t, "answer") }

// TestOtherNamespace does the same with a process that cannot name us by an id
// and has no rights over us, as one in another container.
func TestOtherNamespace(t *testing.T) { lendToChild(t, "isolated") }

func lendToChild(t *testing.T, task string) {
	o := newOwner(t, 12)
	stitched, walls := o.stitchedBlock()
	blocks := []*alloc.Block{stitched, o.block(512), o.block(3*page + 12_345), o.block(700)}
	c, conn := startChild(t, task)
	l, err := NewLender(conn, o.Allocator)
	if err != nil {
		t.Fatal(err)
	}
	var loans []*Loan
	for i, b := range blocks {
		copy(content(b.Ptr(), b.Size()), pattern(b.Size(), byte(i)))
		loans = append(loans, lend(t, l, b))
	}
	for i, b := range blocks {
		wait(t, loans[i])
		expectContent(t, "the owner", b.Ptr(), pattern(b.Size(), byte(100+i)))
		b.Free()
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	c.expect(t, "PASS")
	for _, b := range walls {
		b.Free()
	}
	expectAllFree(t, o)
}

// TestCrashedBorrower kills a process that holds a block and has not looked at
// another one. Both loans end, once, and all memory becomes free.
func TestCrashedBorrower(t *testing.T) {
	o := newOwner(t, 8)
	held, waiting := o.block(page+700), o.block(page)
	copy(content(held.Ptr(), held.Size()), pattern(held.Size(), 0))
	before := openFiles(t)
	c, conn := startChild(t, "hold")
	l, err := NewLender(conn, o.Allocator)
	if err != nil {
		t.Fatal(err)
	}
	loans := []*Loan{lend(t, l, held), lend(t, l, waiting)}
	c.expect(t, "child holds the block")
	if !isLent(loans[0]) || !isLent(loans[1]) {
		t.Fatal("a loan ended while the borrower lives")
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, loan := range loans {
		wait(t, loan)
	}
	expectContent(t, "what it wrote", held.Ptr(), pattern(held.Size(), 100))
	held.Free()
	waiting.Free()
	expectAllFree(t, o)
	_, _, _ = l.Close(), c.hold.Close(), c.Wait()
	expectFiles(t, "after the end", before)
}
