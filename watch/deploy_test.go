package watch

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	alertsFile    = "../deploy/prometheus/alerts.yml"
	alertsTest    = "../deploy/prometheus/alerts_test.yml"
	dashboardFile = "../deploy/grafana/headroom-gpu.json"
)

// promtool runs Prometheus' checker, or skips the test where there is none.
func promtool(t *testing.T, input string, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("NOT CHECKED: promtool is not installed; it is in Debian's package prometheus")
	}
	cmd := exec.Command(path, args...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// exposed is the metrics of a machine with all that there can be.
func exposed(t *testing.T) string {
	m, w := newMachine(), New(Options{})
	m.run(t, "gpu 0 80GiB", "gpu 1 80GiB", "busy 0 90", "hot 0 61", "start 0 7 30GiB ann train.py", "grow 0 7 600MiB", "start 0 8 1GiB bob x.py", "start 1 9 20GiB eve notebook", "die 0 8")
	m.gpus[0].processes[0].Job, m.gpus[0].processes[0].User = "42", "a\"n\\n\n"
	m.scans(w, 120, nil)
	m.run(t, "gpu 2 80GiB", "break 2 lost")
	m.scans(w, 3, nil)
	var b bytes.Buffer
	if err := WriteMetrics(&b, w.Report(), []ActionCount{{"webhook", 3, 1, 0}}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestMetrics: every metric of the table is written with its help and type, has
// the labels that the table says, and the checker finds nothing to say.
func TestMetrics(t *testing.T) {
	text := exposed(t)
	for _, m := range Metrics() {
		if !strings.Contains(text, "# HELP "+m.Name+" "+m.Help+"\n# TYPE "+m.Name+" "+m.Type+"\n") {
			t.Errorf("%s has no help or type", m.Name)
		}
		samples := regexp.MustCompile(`(?m)^`+m.Name+`(?:\{(.*)\})? (\S+)$`).FindAllStringSubmatch(text, -1)
		if len(samples) == 0 {
			t.Errorf("%s has no value", m.Name)
		}
		for _, s := range samples {
			var names []string
			for _, l := range regexp.MustCompile(`(\w+)="(?:[^"\\]|\\.)*"`).FindAllStringSubmatch(s[1], -1) {
				names = append(names, l[1])
			}
			if got := strings.Join(names, ", "); got != m.Labels {
				t.Errorf("%s has the labels %q, want %q", m.Name, got, m.Labels)
			}
		}
	}
	if !strings.Contains(text, `user="a\"n\\n�"`) { // the line's end is replaced at the door
		t.Errorf("a name is not escaped:\n%s", text)
	}
	promtool(t, text, "check", "metrics")
}

// TestFailuresHaveNoFigures: after a failed query of a GPU, and of all, its only
// series says that it failed.
func TestFailuresHaveNoFigures(t *testing.T) {
	m, w := newMachine(), New(Options{})
	m.run(t, "gpu 0 80GiB", "start 0 7 30GiB ann train.py")
	m.scans(w, 3, nil)
	for _, failure := range []string{"break 0 lost", "fail no driver"} {
		m.run(t, failure)
		m.scans(w, 1, nil)
		var b bytes.Buffer
		if err := WriteMetrics(&b, w.Report(), nil); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			name, _, _ := strings.Cut(line, "{")
			if strings.Contains(line, `gpu="0"`) && name != "headroom_gpu_info" && name != "headroom_alarm_open" && line != "headroom_gpu_success{gpu=\"0\",uuid=\"GPU-0\"} 0\n" {
				t.Errorf("after %s: %s", failure, line)
			}
		}
	}
	r := w.Report()
	if r.Error == "" || r.Devices[0].UsedBytes != 0 || r.Devices[0].IdleSeconds != nil {
		t.Errorf("%+v", r)
	}
}

// TestManyProcesses: the greatest have series of their own, and the sum is kept.
func TestManyProcesses(t *testing.T) {
	m, w := newMachine(), New(Options{})
	m.run(t, "gpu 0 80GiB")
	for pid := range 300 {
		m.gpus[0].processes = append(m.gpus[0].processes, &program{Process: Process{PID: pid, Bytes: uint64(1000 + pid)}})
	}
	m.scans(w, 1, nil)
	var b bytes.Buffer
	if err := WriteMetrics(&b, w.Report(), nil); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(b.String(), "headroom_process_memory_bytes{"); n != mostLabelled+1 {
		t.Errorf("%d series", n)
	}
	if want := `pid="others"} 263730`; !strings.Contains(b.String(), want) { // the sum of 1000 … 1235
		t.Errorf("no %s in\n%s", want, &b)
	}
}

// TestAlertRules: they are sound, do what their tests say, and each is tested.
func TestAlertRules(t *testing.T) {
	rules, err := os.ReadFile(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile(alertsTest)
	if err != nil {
		t.Fatal(err)
	}
	known(t, alertsFile, string(rules))
	known(t, alertsTest, string(tests))
	alerts := regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(string(rules), -1)
	if len(alerts) < 5 {
		t.Errorf("%d alerts", len(alerts))
	}
	for _, a := range alerts {
		if !regexp.MustCompile(`alertname: ` + a[1] + `\n +exp_alerts:\n`).Match(tests) {
			t.Errorf("%s never fires in its tests", a[1])
		}
	}
	promtool(t, "", "check", "rules", alertsFile)
	promtool(t, "", "test", "rules", alertsTest)
}

// known fails where a text names a metric that there is not.
func known(t *testing.T, file, text string) {
	t.Helper()
	for _, name := range regexp.MustCompile(`headroom_[a-z_]+`).FindAllString(text, -1) {
		if !slices.ContainsFunc(metrics, func(m metric) bool { return m.Name == name }) {
			t.Errorf("%s: there is no metric %s", file, name)
		}
	}
}

// dashboard is what the test reads of a Grafana dashboard.
type dashboard struct {
	Title  string
	Panels []struct {
		ID      int
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ Expr, RefID string }
	}
}

// TestDashboard: its queries are well-formed and ask for metrics that there are,
// and its panels have places of their own.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	known(t, dashboardFile, string(text))
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	queries := "groups:\n- name: dashboard\n  rules:\n"
	taken := map[[2]int]string{}
	for _, p := range d.Panels {
		if len(p.Targets) == 0 {
			t.Errorf("%s asks for nothing", p.Title)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if at := [2]int{x, y}; taken[at] != "" || x >= 24 {
					t.Fatalf("%s lies on %s at %v", p.Title, taken[at], at)
				} else {
					taken[at] = p.Title
				}
			}
		}
		for _, q := range p.Targets {
			quoted, err := json.Marshal(strings.ReplaceAll(q.Expr, "$instance", ".*"))
			if err != nil {
				t.Fatal(err)
			}
			queries += "  - record: a\n    expr: " + string(quoted) + "\n    labels: {panel: \"" + p.Title + "\", query: \"" + q.RefID + "\"}\n"
		}
	}
	file := filepath.Join(t.TempDir(), "queries.yml")
	if err := os.WriteFile(file, []byte(queries), 0o644); err != nil {
		t.Fatal(err)
	}
	promtool(t, "", "check", "rules", file)
}
