package web

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"regexp"
	"strings"

	"github.com/klauspost/compress/gzip"
)

//go:embed assets
var assets embed.FS

// modules are the page's scripts, each after those that it imports.
var modules = []string{"text.js", "colours.js", "canvas.js", "timeline.js", "segments.js", "lifetimes.js", "flame.js",
	"verdict.js", "job.js", "details.js", "panels.js", "remote.js", "embedded.js", "live.js", "main.js"}

// page is what differs from page to page.
type page struct {
	mode    string // report, serve or live
	title   string
	plain   string // the verdict for those without JavaScript
	version string
	job     *job              // nil: it is about none
	records []json.RawMessage // described
	columns [][]byte          // by record, compressed
}

// described is a record of a report, without its columns.
type described struct {
	Meta     meta      `json:"meta"`
	Findings verdict   `json:"findings"`
	WhatIf   []*WhatIf `json:"whatIf"`
	Stacks   *Stacks   `json:"stacks"`
	Sites    any       `json:"sites"` // by stack
	Columns  []column  `json:"columns"`
	Summary  int       `json:"summary"` // moments in a span
	RestMax  uint64    `json:"restMax"` // see History.BlockSize
	MaxSplit uint64    `json:"maxSplit"`
}

// asset gives a file of the page, which is there.
func asset(name string) string {
	b, err := assets.ReadFile("assets/" + name)
	if err != nil {
		panic("web: " + err.Error())
	}
	return string(b)
}

var (
	importLine = regexp.MustCompile(`(?m)^import (?:\* as )?(\w+|\{[^}]*\}) from "\./([\w.]+)";$`)
	exportWord = regexp.MustCompile(`(?m)^export ((?:async )?(?:function|class|const) (\w+))`)
)

// script links the modules to one script: each becomes a function that is
// called once and gives what the module exports.
func script() string {
	var out strings.Builder
	out.WriteString("const modules = {};\n")
	for _, name := range modules {
		text := asset(name)
		var exports []string
		for _, e := range exportWord.FindAllStringSubmatch(text, -1) {
			exports = append(exports, e[2])
		}
		text = importLine.ReplaceAllString(text, `const $1 = modules["$2"];`)
		text = exportWord.ReplaceAllString(text, "$1")
		fmt.Fprintf(&out, "modules[%q] = (() => {\n%sreturn { %s };\n})();\n", name, text, strings.Join(exports, ", "))
	}
	return out.String()
}

// policy says what the page may do: run its one script, use its one style and,
// where a server stands behind it, ask that server.
func (p *page) policy() string {
	connect := "'none'"
	if p.mode != "report" {
		connect = "'self'"
	}
	return fmt.Sprintf("default-src 'none'; script-src %s; style-src %s; img-src data:; connect-src %s; base-uri 'none'; form-action 'none'",
		hashed(script()), hashed(asset("style.css")), connect)
}

func hashed(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// write writes the page. JSON escapes what could end a script element.
func (p *page) write(w io.Writer) error {
	data, err := json.Marshal(map[string]any{"mode": p.mode, "job": p.job, "records": p.records})
	if err != nil {
		return err
	}
	blocks := fmt.Sprintf("<script type=\"application/json\" id=\"data\">%s</script>\n", data)
	pieces := map[string]string{
		"Policy": html.EscapeString(p.policy()), "Title": html.EscapeString(p.title), "Plain": html.EscapeString(p.plain),
		"Version": html.EscapeString(strings.TrimRight(" "+p.version, " ")), "Style": asset("style.css"), "Script": script(), "Data": blocks,
	}
	rest := asset("index.html")
	for rest != "" {
		before, after, found := strings.Cut(rest, "{{.")
		if _, err := io.WriteString(w, before); err != nil || !found {
			return err
		}
		name, after, _ := strings.Cut(after, "}}")
		if _, err := io.WriteString(w, pieces[name]); err != nil {
			return err
		}
		if name == "Data" {
			if err := p.writeColumns(w); err != nil {
				return err
			}
		}
		rest = after
	}
	return nil
}

func (p *page) writeColumns(w io.Writer) error {
	for i, c := range p.columns {
		if _, err := fmt.Fprintf(w, "<script type=\"application/octet-stream\" id=\"columns-%d\">", i); err != nil {
			return err
		}
		e := base64.NewEncoder(base64.StdEncoding, w)
		if _, err := e.Write(c); err != nil {
			return err
		}
		if err := e.Close(); err != nil {
			return err
		}
		if _, err := io.WriteString(w, "</script>\n"); err != nil {
			return err
		}
	}
	return nil
}

// compressed gives b as gzip packs it best.
func compressed(b []byte) ([]byte, error) {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(b); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
