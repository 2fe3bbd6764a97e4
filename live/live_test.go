package live_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"

	"github.com/headroom-go/headroom/alloc"
	"github.com/headroom-go/headroom/device"
	"github.com/headroom-go/headroom/live"
	"github.com/headroom-go/headroom/trace"
)

// A program of one's own shows its memory beside what else it serves.
func Example() {
	dev, err := device.Open("null:64MiB")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	mem, err := alloc.New(dev, alloc.Options{StackDepth: 16})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer mem.Close()

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	job := live.New(mem, live.Options{Name: "my job"})
	go job.Run(ctx)
	server := httptest.NewServer(job) // or http.Handle("/", job)
	defer server.Close()

	stream, err := dev.NewStream()
	if err != nil {
		fmt.Println(err)
		return
	}
	weights, err := mem.Alloc(6<<20, trace.Parameter, stream)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer weights.Free()
	job.Step(1, 3.25)
	for line := range strings.Lines(read(server.URL + "/metrics")) {
		if strings.HasPrefix(line, "headroom_parameter_live_bytes") || strings.HasPrefix(line, "headroom_train_loss") {
			fmt.Print(line)
		}
	}
	// Output:
	// headroom_parameter_live_bytes 6.291456e+06
	// headroom_train_loss 3.25
}

// read gives the body that is at an address.
func read(url string) string {
	r, err := http.Get(url)
	if err != nil {
		return err.Error()
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// open gives an allocator that records stacks, and a stream.
func open(t *testing.T) (*alloc.Allocator, device.Stream) {
	t.Helper()
	dev, err := device.Open("null:64MiB")
	if err != nil {
		t.Fatal(err)
	}
	mem, err := alloc.New(dev, alloc.Options{StackDepth: 16})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mem.Close(); err != nil {
			t.Error(err)
		}
		if err := stream.Close(); err != nil {
			t.Error(err)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return mem, stream
}

// TestProfileNamesThePlace finds this test in the profile of device memory.
func TestProfileNamesThePlace(t *testing.T) {
	mem, stream := open(t)
	b, err := mem.Alloc(3<<20, trace.Activation, stream)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Free()
	s := httptest.NewServer(live.New(mem, live.Options{}))
	defer s.Close()
	p, err := profile.Parse(bytes.NewReader([]byte(read(s.URL + "/debug/pprof/device"))))
	if err != nil {
		t.Fatal(err)
	}
	if text := p.String(); !strings.Contains(text, "TestProfileNamesThePlace") || !strings.Contains(text, "3145728") {
		t.Error(text)
	}
}

// TestSamplesAreHighs lets a block come and go between two samples, which the
// page shows.
func TestSamplesAreHighs(t *testing.T) {
	mem, stream := open(t)
	job := live.New(mem, live.Options{Every: time.Millisecond})
	s := httptest.NewServer(job)
	defer s.Close()
	b, err := mem.Alloc(5<<20, trace.Gradient, stream)
	if err != nil {
		t.Fatal(err)
	}
	b.Free()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go job.Run(ctx)
	for !strings.Contains(read(s.URL+"/api/samples?to=1&width=9"), "5242880") {
		if err := t.Context().Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWhileMemoryMoves reads all pages while blocks come and go: the race
// detector looks on..
func TestWhileMemoryMoves(t *testing.T) {
	mem, stream := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	job := live.New(mem, live.Options{Every: 1})
	ended := make(chan error, 1)
	go func() { ended <- job.Serve(ctx, listener) }()
	stop, moved := make(chan struct{}), make(chan error, 1)
	go func() { moved <- move(mem, stream, job, stop) }()
	for range 30 {
		for _, path := range []string{"/healthz", "/metrics", "/api/live", "/debug/pprof/device", "/api/samples?to=100&width=50"} {
			r, err := http.Get("http://" + listener.Addr().String() + path)
			if err != nil {
				t.Fatal(err)
			}
			if r.Body.Close(); r.StatusCode != http.StatusOK {
				t.Errorf("%s: %s", path, r.Status)
			}
		}
	}
	close(stop)
	if err := <-moved; err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// move allocates and frees until stop.
func move(mem *alloc.Allocator, stream device.Stream, job *live.Job, stop chan struct{}) error {
	for i := 1; ; i++ {
		var blocks []*alloc.Block
		for j := range 8 {
			b, err := mem.Alloc(uint64(1+(i+j)%5)<<18, trace.Activation, stream)
			if err != nil {
				return err
			}
			blocks = append(blocks, b)
		}
		for _, b := range blocks {
			b.Free()
		}
		job.Step(i, 1/float64(i))
		select {
		case <-stop:
			return mem.Check()
		default:
		}
	}
}
