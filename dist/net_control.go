package dist

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"sync"
	"time"
)

// note is a line of a control connection, or the first one of one for data.
type note struct {
	Kind      string   `json:"kind"` // hello, welcome, refused, data, beat, abandon, fail, left, end
	Job       string   `json:"job,omitempty"`
	Group     string   `json:"group,omitempty"`
	Rank      int      `json:"rank,omitempty"`
	Attempt   int      `json:"attempt,omitempty"` // that is abandoned; of data: the generation
	Size      int      `json:"size,omitempty"`
	Address   string   `json:"address,omitempty"`
	Addresses []string `json:"addresses,omitempty"`
	Text      string   `json:"text,omitempty"`
}

// control is a connection between rank 0 and another one, for notes.
type control struct {
	conn net.Conn
	in   *bufio.Scanner
	peer int // rank 0 for the others

	mu    sync.Mutex // of writing
	once  sync.Once
	ended chan struct{}
}

func newControl(conn net.Conn) *control {
	const longest = 1 << 20
	in := bufio.NewScanner(conn)
	in.Buffer(nil, longest)
	return &control{conn: conn, in: in, ended: make(chan struct{})}
}

// read waits for a note, for so long; 0: without end.
func (c *control) read(wait time.Duration) (n note, err error) {
	deadline := time.Time{}
	if wait > 0 {
		deadline = time.Now().Add(wait)
	}
	c.conn.SetReadDeadline(deadline)
	if !c.in.Scan() {
		if err = c.in.Err(); err == nil {
			err = io.EOF
		}
		return n, err
	}
	return n, json.Unmarshal(c.in.Bytes(), &n)
}

func (c *control) write(n note, wait time.Duration) error {
	line, err := json.Marshal(n)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn.SetWriteDeadline(time.Now().Add(wait))
	_, err = c.conn.Write(append(line, '\n'))
	return err
}

// beat says now and then that this process lives, until end.
func (c *control) beat(every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			c.write(note{Kind: "beat"}, every) // where it fails, the reader notices
		case <-c.ended:
			return
		}
	}
}

func (c *control) end() {
	c.once.Do(func() { close(c.ended) })
	c.conn.Close()
}
