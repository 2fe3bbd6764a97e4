package dist_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headroom-go/headroom/dist"
	"github.com/headroom-go/headroom/dist/disttest"
)

func TestTCP(t *testing.T) {
	disttest.Run(t, func(t *testing.T, size int, o dist.Options) []dist.Group {
		return joinAll(t, size, dist.JoinOptions{Options: o, Arrival: 20 * time.Second})
	})
}

// freeAddress is one where nobody listens.
func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// joinAll joins a job over TCP with all its ranks in this process.
func joinAll(t testing.TB, size int, o dist.JoinOptions) []dist.Group {
	t.Helper()
	o.Address = freeAddress(t)
	return joinEach(t, size, o, func(int, *dist.JoinOptions) {})
}

// joinEach joins a job as each of its ranks, with what that one has of its own.
func joinEach(t testing.TB, size int, o dist.JoinOptions, own func(rank int, o *dist.JoinOptions)) []dist.Group {
	t.Helper()
	groups, errs := make([]dist.Group, size), make([]error, size)
	var joined sync.WaitGroup
	for r := range groups {
		o := o
		o.Rank, o.Size = r, size
		own(r, &o)
		joined.Go(func() { groups[r], errs[r] = dist.Join(context.Background(), o) })
	}
	joined.Wait()
	for r, err := range errs {
		if err != nil {
			t.Fatalf("rank %d: %v", r, err)
		}
	}
	return groups
}

// TestTCPStart lets ranks not come, come from another job, or come twice.
func TestTCPStart(t *testing.T) {
	short := 300 * time.Millisecond
	join := func(o dist.JoinOptions) <-chan error {
		failed := make(chan error, 1)
		go func() {
			g, err := dist.Join(context.Background(), o)
			if err == nil {
				err = g.Close()
			}
			failed <- err
		}()
		return failed
	}
	says := func(what string, err error, words ...string) {
		t.Helper()
		for _, w := range words {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: error %v does not say %q", what, err, w)
			}
		}
	}
	o := dist.JoinOptions{Size: 3, Address: freeAddress(t), Arrival: short}
	first := join(o)
	o.Rank = 1
	o.Arrival = time.Minute
	says("rank 1 without 2", <-join(o), "ranks [2] did not come")
	says("rank 0 without 2", <-first, "not all 3 ranks had come", "ranks [2] did not come")

	whole := dist.JoinOptions{Size: 2, Address: freeAddress(t), Arrival: 10 * time.Second, Job: "ours"}
	first = join(whole)
	for what, change := range map[string]func(*dist.JoinOptions){
		`of job "other", here is "ours"`: func(o *dist.JoinOptions) { o.Job = "other" },
		"of 3 ranks, here are 2":         func(o *dist.JoinOptions) { o.Size = 3 },
	} {
		o := whole
		o.Rank = 1
		change(&o)
		says(what, <-join(o), what)
	}
	stranger, err := net.Dial("tcp", whole.Address)
	if err != nil {
		t.Fatal(err)
	}
	stranger.Write([]byte("GET / HTTP/1.1\n\n"))
	whole.Rank = 1
	if err := <-join(whole); err != nil {
		t.Errorf("rank 1: %v", err)
	}
	if err := <-first; err != nil {
		t.Errorf("rank 0: %v", err)
	}
	if _, err := dist.Join(context.Background(), dist.JoinOptions{Rank: 2, Size: 2}); err == nil {
		t.Error("rank 2 of 2 joined")
	}
}

// TestDeath lets each rank of three, in turn, end all its connections as a
// killed process does, or fall silent as on a machine that hangs, while the
// others wait for it in a collective: both name it.
func TestDeath(t *testing.T) {
	for name, join := range map[string]func(o dist.JoinOptions) []dist.Group{
		"TCP": func(o dist.JoinOptions) []dist.Group { return joinAll(t, 3, o) },
		"MPI": func(o dist.JoinOptions) []dist.Group { return joinMPI(t, dist.FakeMPI(3), 1, o) },
	} {
		for what, end := range map[string]func(dist.Group){"it died": dist.Kill, "it has said nothing for 1s": dist.Hush} {
			for dead := range 3 {
				t.Run(fmt.Sprint(name, " ", what, " ", dead), func(t *testing.T) {
					t.Parallel()
					groups := join(dist.JoinOptions{Arrival: 20 * time.Second, Silence: time.Second})
					end(groups[dead])
					var ended sync.WaitGroup
					for rank, g := range groups {
						if rank == dead {
							continue
						}
						ended.Go(func() {
							if err, want := g.Barrier(), fmt.Sprintf("rank %d: %s", dead, what); err == nil || !strings.Contains(err.Error(), want) {
								t.Errorf("rank %d has the error %v, want %q", rank, err, want)
							}
						})
					}
					ended.Wait()
					for _, g := range groups {
						g.Close()
					}
				})
			}
		}
	}
}

// TestStrangeNotes lets rank 1 send notes that none sends: the job fails, and names it.
func TestStrangeNotes(t *testing.T) {
	for _, text := range []string{`{"kind":"left","rank":2}`, `{"kind":"left","rank":-1}`, `{"kind":"end"}`, `{"kind":"abandon","rank":1,"attempt":1000000}`} {
		address := freeAddress(t)
		data, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		joined := make(chan dist.Group)
		go func() {
			g, err := dist.Join(context.Background(), dist.JoinOptions{Address: address, Size: 2})
			if err != nil {
				t.Error(err)
			}
			joined <- g
		}()
		var conn net.Conn
		for conn == nil {
			time.Sleep(time.Millisecond)
			conn, _ = net.Dial("tcp", address)
		}
		fmt.Fprintf(conn, `{"kind":"hello","rank":1,"size":2,"address":%q}`+"\n", data.Addr())
		g := <-joined
		if g == nil {
			t.FailNow()
		}
		fmt.Fprintln(conn, text)
		if err := g.Barrier(); err == nil || !strings.Contains(err.Error(), "rank 1: it sent a note") {
			t.Errorf("%s: %v", text, err)
		}
		g.Close()
		conn.Close()
		data.Close()
	}
}
