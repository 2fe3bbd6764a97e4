package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/klauspost/compress/gzip"
)

// server answers the page's questions about the files of a library.
type server struct {
	library *Library
	working chan struct{} // as many tokens as questions are worked on at once
}

// ServerOptions are the choices of a server.
type ServerOptions struct {
	Version string   // of the program, for the foot of the page
	Names   []string // hosts' names that lead to the server beside addresses and localhost
}

// NewServer gives the handler that shows the files of a library. It only reads.
func NewServer(l *Library, o ServerOptions) http.Handler {
	s := &server{library: l, working: make(chan struct{}, 2*runtime.GOMAXPROCS(0))}
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", showPage(page{mode: "serve", title: "Headroom", version: o.Version, records: []json.RawMessage{}}))
	mux.HandleFunc("/healthz", healthy)
	mux.HandleFunc("/api/files", func(w http.ResponseWriter, r *http.Request) {
		files, err := l.List()
		answer(w, r, files, err)
	})
	mux.HandleFunc("/api/open", s.open)
	mux.HandleFunc("/api/{question}", s.ask)
	return guard(o.Names, mux)
}

func healthy(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }

// showPage gives a handler of the page.
func showPage(p page) http.HandlerFunc {
	var text bytes.Buffer
	if err := p.write(&text); err != nil {
		panic("web: " + err.Error()) // a Buffer takes everything
	}
	policy := p.policy() + "; frame-ancestors 'none'"
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", policy)
		send(w, r, text.Bytes())
	}
}

// open gives what the page knows of each record of a file from the start.
func (s *server) open(w http.ResponseWriter, r *http.Request) {
	records, err := s.library.Open(r.Context(), r.FormValue("file"))
	metas := []meta{}
	for _, one := range records {
		metas = append(metas, one.meta())
	}
	answer(w, r, metas, err)
}

// errQuestion is returned for a question that makes no sense.
var errQuestion = errors.New("not a question of this server's")

// ask answers a question about a record.
func (s *server) ask(w http.ResponseWriter, r *http.Request) {
	records, err := s.library.Open(r.Context(), r.FormValue("file"))
	if err != nil {
		answer(w, r, nil, err)
		return
	}
	i, err := strconv.Atoi(r.FormValue("record"))
	if err != nil || i < 0 || i >= len(records) {
		answer(w, r, nil, fmt.Errorf("%w: record %q of %d", errQuestion, r.FormValue("record"), len(records)))
		return
	}
	select {
	case s.working <- struct{}{}:
		defer func() { <-s.working }()
	case <-r.Context().Done():
		return
	}
	v, err := records[i].answer(r)
	answer(w, r, v, err)
}

// answer gives the answer to a question.
func (r *Record) answer(req *http.Request) (any, error) {
	number := func(name string) int {
		n, _ := strconv.Atoi(req.FormValue(name)) // what is no number is 0, which every question takes
		return n
	}
	switch question := req.PathValue("question"); question {
	case "samples":
		return r.Samples(number("from"), number("to"), number("width")), nil
	case "lives":
		return r.Lives(number("from"), number("to"), number("most")), nil
	case "weights":
		return r.Weights(number("from"), number("to")), nil
	case "state":
		return r.State(number("moment")), nil
	case "block":
		return r.Block(number("lease")), nil
	case "search":
		return r.Search(req.FormValue("text"), number("most")), nil
	case "stacks":
		return r.Stacks(), nil
	case "sites":
		return r.sites, nil
	case "findings":
		return r.findings(), nil
	case "settings":
		names := []string{}
		for _, s := range r.otherSettings() {
			names = append(names, s.name)
		}
		return names, nil
	case "whatif":
		return r.tried(req.FormValue("setting"))
	default:
		return nil, fmt.Errorf("%w: %q", errQuestion, question)
	}
}

// tried replays under one of the settings that are offered, once.
func (r *Record) tried(name string) (*WhatIf, error) {
	for i, s := range r.otherSettings() {
		if s.name == name {
			return r.tries[i]()
		}
	}
	return nil, fmt.Errorf("%w: settings %q", errQuestion, name)
}

// answer writes an answer as JSON, or what is wrong.
func answer(w http.ResponseWriter, r *http.Request, v any, err error) {
	if err != nil {
		http.Error(w, err.Error(), status(err))
		return
	}
	text, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	send(w, r, text)
}

// status is how HTTP calls an error.
func status(err error) int {
	switch {
	case errors.Is(err, errQuestion):
		return http.StatusBadRequest
	case errors.Is(err, fs.ErrNotExist), errors.As(err, new(*os.PathError)), errors.As(err, new(*fs.PathError)):
		return http.StatusNotFound
	}
	return http.StatusUnprocessableEntity
}

// worthPacking is the size from which answers are compressed.
const worthPacking = 4 << 10

// send writes a body, compressed where that is wanted and worth it. An error
// means that the client has gone.
func send(w http.ResponseWriter, r *http.Request, body []byte) {
	w.Header().Set("Vary", "Accept-Encoding")
	if len(body) < worthPacking || !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		_, _ = w.Write(body)
		return
	}
	w.Header().Set("Content-Encoding", "gzip")
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		panic("web: " + err.Error()) // the level is one
	}
	_, _ = z.Write(body)
	_ = z.Close()
}
