package web

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
)

// metric is a figure in Prometheus's text format.
type metric struct {
	name, doc string
	value     float64
}

// metrics writes the allocator's table of figures and those of the job.
func (l *Live) metrics(w http.ResponseWriter, _ *http.Request) {
	list := []metric{}
	for _, s := range l.o.Stats().Table() {
		list = append(list, metric{s.Name, s.Doc, float64(s.Value)})
	}
	l.mu.Lock()
	list = append(list,
		metric{"budget_bytes", "Bytes that the device has; 0 where it was not told.", float64(l.o.Budget)},
		metric{"train_steps_total", "Steps that are done.", float64(l.step)},
		metric{"train_loss", "Loss of the last step; NaN before the first.", l.loss},
		metric{"train_events_total", "Things out of the ordinary that have happened.", float64(l.told)})
	l.mu.Unlock()
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	writeMetrics(w, list)
}

// writeMetrics writes figures; those whose names end in _total only grow. An
// error means that the client has gone.
func writeMetrics(w io.Writer, list []metric) {
	var out strings.Builder
	for _, m := range list {
		kind := "gauge"
		if strings.HasSuffix(m.name, "_total") {
			kind = "counter"
		}
		doc := strings.NewReplacer(`\`, `\\`, "\n", `\n`).Replace(m.doc)
		fmt.Fprintf(&out, "# HELP headroom_%[1]s %[2]s\n# TYPE headroom_%[1]s %[3]s\nheadroom_%[1]s %[4]s\n", m.name, doc, kind, number(m.value))
	}
	_, _ = io.WriteString(w, out.String())
}

func number(v float64) string {
	if math.IsNaN(v) {
		return "NaN"
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}
