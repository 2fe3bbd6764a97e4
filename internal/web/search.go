package web

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/headroom-go/headroom/internal/size"
)

// query is what somebody looks for: an address (0x7f…), a size (512MiB, >=1GiB,
// <4KiB), or any other text, which is looked for in the frames of stacks
// without regard to case.
type query struct {
	least, most uint64 // of the size
	addr        uint64
	text        string
	kind        string
}

// The kinds of queries.
const (
	queryAddress = "address"
	querySize    = "size"
	queryText    = "text"
)

// parseQuery reads a query; assets/embedded.js does the same.
func parseQuery(text string) query {
	text = strings.TrimSpace(text)
	if hex, ok := strings.CutPrefix(strings.ToLower(text), "0x"); ok {
		if addr, err := strconv.ParseUint(hex, 16, 64); err == nil {
			return query{kind: queryAddress, addr: addr}
		}
	}
	for _, op := range []string{">=", "<=", ">", "<", "="} {
		if rest, ok := strings.CutPrefix(text, op); ok {
			if n, err := size.Parse(strings.TrimSpace(rest)); err == nil {
				return sizeQuery(op, n)
			}
		}
	}
	if n, err := size.Parse(text); err == nil {
		return sizeQuery("=", n)
	}
	return query{kind: queryText, text: strings.ToLower(text)}
}

func sizeQuery(op string, n uint64) query {
	q := query{kind: querySize, most: math.MaxUint64}
	switch op {
	case ">=":
		q.least = n
	case ">":
		q.least = n + 1
	case "<=":
		q.most = n
	case "<":
		q.most = max(n, 1) - 1
	default:
		// A rounded figure means what is shown as that figure.
		q.least, q.most = n-min(n, n/200), n+n/200
	}
	return q
}

// Found is what a search gives. Lives are the largest of the leases found.
type Found struct {
	Lives
	Kind   string `json:"kind"`
	Stacks []int  `json:"stacks"` // of a text: those that hold it
}

// Search finds leases at any moment.
func (r *Record) Search(text string, most int) *Found {
	q := parseQuery(text)
	f := &Found{Kind: q.kind, Stacks: []int{}}
	in := make([]bool, len(r.stacks))
	if q.kind == queryText && q.text != "" {
		for i, s := range r.stacks {
			for _, frame := range s.Frames() {
				if strings.Contains(strings.ToLower(fmt.Sprintf("%s:%d %s", frame.File, frame.Line, frame.Func)), q.text) {
					in[i] = true
					f.Stacks = append(f.Stacks, i)
					break
				}
			}
		}
	}
	matching := func(yield func(int) bool) {
		for k := range r.h.Leases {
			if l := &r.h.Leases[k]; q.matches(l.Addr, l.Size, r.bytes(k), in[r.stackOf[l.Stack]]) && !yield(k) {
				return
			}
		}
	}
	f.Lives = *r.choose(matching, most, func(k int) float64 { return float64(r.bytes(k)) })
	return f
}

func (q *query) matches(addr, asked, bytes uint64, inStack bool) bool {
	switch q.kind {
	case queryAddress:
		return addr <= q.addr && q.addr-addr < bytes
	case querySize:
		return asked >= q.least && asked <= q.most || bytes >= q.least && bytes <= q.most
	}
	return inStack
}
