package web

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// guard lets only such requests through as a page of this server, or a person
// at an address bar, sends. A page of another site can make a browser send
// requests here: their Origin or Sec-Fetch-Site tells. It can also give its own
// name this server's address, so that the browser takes both for one site:
// then the Host tells, and only names of ours and plain addresses are heard.
func guard(names []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "only GET is answered", http.StatusMethodNotAllowed)
		case !ours(r.Host, names):
			http.Error(w, "this server has no such name: use its address, or localhost", http.StatusForbidden)
		case foreign(r):
			http.Error(w, "a page of another site asked", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// ours says whether a Host header names this server: an address, localhost, or
// one of the names.
func ours(host string, names []string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return host == "localhost" || slices.Contains(names, host)
}

// foreign says whether a page of another site sent a request. A link that leads
// to the page itself is no harm.
func foreign(r *http.Request) bool {
	if origin := r.Header.Get("Origin"); origin != "" {
		_, host, ok := strings.Cut(origin, "://")
		return !ok || host != r.Host
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return false
	}
	return !(r.URL.Path == "/" && r.Header.Get("Sec-Fetch-Mode") == "navigate")
}

// Limits bound what clients can take of a server.
type Limits struct {
	Clients int           // connections at once
	Header  time.Duration // to send a request
	Answer  time.Duration // to take an answer, from its first byte: a large file may take longer to read
	Idle    time.Duration // between two requests
}

// DefaultLimits are for people with browsers, and for profiles of half a minute.
func DefaultLimits() Limits {
	return Limits{Clients: 256, Header: 10 * time.Second, Answer: time.Minute, Idle: 2 * time.Minute}
}

// Serve answers requests until ctx ends, and then lets those that are running
// finish for a second. It closes the listener.
func Serve(ctx context.Context, listener net.Listener, h http.Handler, limits Limits) error {
	const largestHeader = 16 << 10
	s := &http.Server{Handler: hasty(limits.Answer, h), ReadTimeout: limits.Header, IdleTimeout: limits.Idle, MaxHeaderBytes: largestHeader}
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		err := s.Shutdown(patience)
		if errors.Is(err, context.DeadlineExceeded) {
			err = s.Close()
		}
		stopped <- err
	})
	err := s.Serve(&limited{Listener: listener, room: make(chan struct{}, limits.Clients), closed: make(chan struct{})})
	if stop() {
		return err // ctx has not ended
	}
	return <-stopped
}

// hasty gives clients so much time to take an answer, however long it took to
// work it out.
func hasty(limit time.Duration, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // the one of the connection's last answer
		h := &hastyWriter{ResponseWriter: w, limit: limit}
		next.ServeHTTP(h, r)
		h.begin() // an answer without a body is written after this
	})
}

// hastyWriter sets the deadline when the first byte is written.
type hastyWriter struct {
	http.ResponseWriter
	limit time.Duration
	begun bool
}

// Unwrap is for http.ResponseController.
func (h *hastyWriter) Unwrap() http.ResponseWriter { return h.ResponseWriter }

func (h *hastyWriter) Write(b []byte) (int, error) {
	h.begin()
	return h.ResponseWriter.Write(b)
}

func (h *hastyWriter) begin() {
	if !h.begun {
		h.begun = true
		_ = http.NewResponseController(h.ResponseWriter).SetWriteDeadline(time.Now().Add(h.limit)) // every connection of ours has deadlines
	}
}

// limited is a listener with so many connections at once. Those beyond wait in
// the system's queue.
type limited struct {
	net.Listener
	room   chan struct{}
	closed chan struct{}
	once   sync.Once
}

func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.room <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.room
		return nil, err
	}
	return &counted{Conn: c, leave: func() { <-l.room }}, nil
}

func (l *limited) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// counted is a connection that makes room when it is closed.
type counted struct {
	net.Conn
	once  sync.Once
	leave func()
}

func (c *counted) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.leave)
	return err
}
