package watch

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Metric describes a metric for Prometheus.
type Metric struct{ Name, Type, Help, Labels string }

// metric is a row of the table of metrics.
type metric struct {
	Metric
	values func(e *exposition)
}

// mostLabelled is how many processes of a GPU get a series of their own.
const mostLabelled = 64

// The labels.
const (
	noLabels      = ""
	gpuLabels     = "gpu, uuid"
	processLabels = "gpu, uuid, pid, user, command, container, pod, job"
	alarmLabels   = "gpu, uuid, rule"
)

var metrics = []metric{
	{Metric{"headroom_scan_success", "gauge", "Whether the last query of the GPUs succeeded (1) or failed (0).", noLabels}, one(func(r *Report) (float64, bool) { return truth(r.Error == "" && r.Scans > 0), true })},
	{Metric{"headroom_scan_last_success_timestamp_seconds", "gauge", "When a query last succeeded; absent before the first.", noLabels}, one(func(r *Report) (float64, bool) { return unix(r.LastSuccess), !r.LastSuccess.IsZero() })},
	{Metric{"headroom_scans_total", "counter", "Queries of the GPUs.", noLabels}, one(func(r *Report) (float64, bool) { return float64(r.Scans), true })},
	{Metric{"headroom_scan_failures_total", "counter", "Queries of the GPUs that failed as a whole.", noLabels}, one(func(r *Report) (float64, bool) { return float64(r.Failures), true })},
	{Metric{"headroom_gpu_success", "gauge", "Whether the last query of the GPU succeeded (1) or failed (0). After a failure its figures are absent.", gpuLabels}, always(func(d *DeviceReport) (float64, bool) { return truth(d.Error == ""), true })},
	{Metric{"headroom_gpu_info", "gauge", "1, with the GPU's name and, of a partitioned GPU (MIG), the number of the instance.", gpuLabels + ", gpu_instance, name"}, (*exposition).info},
	{Metric{"headroom_gpu_memory_total_bytes", "gauge", "Memory of the GPU.", gpuLabels}, each(func(d *DeviceReport) (float64, bool) { return float64(d.TotalBytes), true })},
	{Metric{"headroom_gpu_memory_used_bytes", "gauge", "Memory in use, by the driver.", gpuLabels}, each(func(d *DeviceReport) (float64, bool) { return float64(d.UsedBytes), true })},
	{Metric{"headroom_gpu_memory_free_bytes", "gauge", "Free memory, by the driver.", gpuLabels}, each(func(d *DeviceReport) (float64, bool) { return float64(d.FreeBytes), true })},
	{Metric{"headroom_gpu_memory_unowned_bytes", "gauge", "Memory in use that no living process holds; with old drivers a few hundred MiB are the driver's own. Absent where processes are unknown.", gpuLabels}, each(unownedOf)},
	{Metric{"headroom_gpu_memory_growth_bytes_per_second", "gauge", "How fast the memory in use surely grows; 0: not, as far as one can tell.", gpuLabels}, each(growthOf)},
	{Metric{"headroom_gpu_memory_full_seconds", "gauge", "Forecast of the time until the memory is full; absent where it does not grow.", gpuLabels}, each(fullOf)},
	{Metric{"headroom_gpu_utilisation_ratio", "gauge", "Share of the time in which a kernel ran.", gpuLabels}, each(utilisationOf)},
	{Metric{"headroom_gpu_idle_seconds", "gauge", "For how long memory has been held and nothing computed.", gpuLabels}, each(idleOf)},
	{Metric{"headroom_gpu_temperature_celsius", "gauge", "Temperature of the GPU.", gpuLabels}, each(temperatureOf)},
	{Metric{"headroom_gpu_processes", "gauge", "Processes that hold memory of the GPU; absent where they are unknown.", gpuLabels}, each(processesOf)},
	{Metric{"headroom_gpu_processes_dead", "gauge", "Processes that the driver lists and the system does not.", gpuLabels}, each(deadOf)},
	{Metric{"headroom_process_memory_bytes", "gauge", "Memory of the GPU that a process holds. Of each GPU the 64 greatest; the sum of the others has pid \"others\".", processLabels}, (*exposition).processes},
	{Metric{"headroom_alarm_open", "gauge", "Whether an alarm is open (1) or not (0); gpu is \"all\" for the query as a whole.", alarmLabels}, (*exposition).alarms},
	{Metric{"headroom_alarms_opened_total", "counter", "Alarms that opened.", "rule"}, (*exposition).opened},
	{Metric{"headroom_actions_total", "counter", "Actions by what became of them: done, failed (after all tries), dropped (the queue was full).", "action, result"}, (*exposition).actions},
}

// Metrics lists the metrics.
func Metrics() []Metric {
	out := make([]Metric, len(metrics))
	for i, m := range metrics {
		out[i] = m.Metric
	}
	return out
}

// WriteMetrics writes a report and what became of actions in Prometheus' text
// format, version 0.0.4.
func WriteMetrics(w io.Writer, r Report, actions []ActionCount) error {
	e := exposition{w: bufio.NewWriter(w), r: &r, counts: actions}
	for _, m := range metrics {
		e.name = m.Name
		fmt.Fprintf(e.w, "# HELP %s %s\n# TYPE %s %s\n", m.Name, m.Help, m.Name, m.Type)
		m.values(&e)
	}
	return e.w.Flush()
}

// exposition writes the values of one metric after the other.
type exposition struct {
	w      *bufio.Writer // keeps the first error
	r      *Report
	counts []ActionCount
	name   string
}

// label is a name and a value.
type label struct{ name, value string }

// sample writes one value.
func (e *exposition) sample(value float64, labels ...label) {
	e.w.WriteString(e.name)
	for i, l := range labels {
		e.w.WriteString([]string{"{", ","}[min(i, 1)] + l.name + `="` + escape(l.value) + `"`)
	}
	if len(labels) > 0 {
		e.w.WriteString("}")
	}
	e.w.WriteString(" " + strconv.FormatFloat(value, 'f', -1, 64) + "\n")
}

// escape writes a label's value as the format wants it.
func escape(value string) string {
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(value)
}

func labelsOf(d *DeviceReport) []label {
	return []label{{"gpu", strconv.Itoa(d.Index)}, {"uuid", d.UUID}}
}

// one makes the values of a metric of the report.
func one(value func(*Report) (float64, bool)) func(*exposition) {
	return func(e *exposition) {
		if v, known := value(e.r); known {
			e.sample(v)
		}
	}
}

// always makes those of a metric of each device, each those of each that answers.
func always(value func(*DeviceReport) (float64, bool)) func(*exposition) {
	return func(e *exposition) {
		for i := range e.r.Devices {
			if v, known := value(&e.r.Devices[i]); known {
				e.sample(v, labelsOf(&e.r.Devices[i])...)
			}
		}
	}
}

func each(value func(*DeviceReport) (float64, bool)) func(*exposition) {
	return always(func(d *DeviceReport) (float64, bool) {
		if d.Error != "" {
			return 0, false
		}
		return value(d)
	})
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func unix(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

func unownedOf(d *DeviceReport) (float64, bool) {
	n, known := d.Unowned()
	return float64(n), known
}

func growthOf(d *DeviceReport) (float64, bool) {
	if d.Forecast == nil {
		return 0, true
	}
	return d.Forecast.BytesPerHour / hour, true
}

func fullOf(d *DeviceReport) (float64, bool) {
	if d.Forecast == nil {
		return 0, false
	}
	return d.Forecast.FullInSeconds, true
}

func utilisationOf(d *DeviceReport) (float64, bool) {
	if d.Utilisation == nil {
		return 0, false
	}
	return float64(*d.Utilisation) / 100, true
}

func idleOf(d *DeviceReport) (float64, bool) {
	if d.IdleSeconds == nil {
		return 0, false
	}
	return *d.IdleSeconds, true
}

func temperatureOf(d *DeviceReport) (float64, bool) {
	if d.Temperature == nil {
		return 0, false
	}
	return float64(*d.Temperature), true
}

func processesOf(d *DeviceReport) (float64, bool) {
	return float64(len(d.Processes)), d.ProcessesError == ""
}

func deadOf(d *DeviceReport) (float64, bool) {
	n := 0
	for _, p := range d.Processes {
		if p.Dead {
			n++
		}
	}
	return float64(n), d.ProcessesError == ""
}

func (e *exposition) info() {
	for i := range e.r.Devices {
		d := &e.r.Devices[i]
		instance := ""
		if d.Instance != nil {
			instance = strconv.Itoa(*d.Instance)
		}
		e.sample(1, append(labelsOf(d), label{"gpu_instance", instance}, label{"name", d.Name})...)
	}
}

// processes writes the processes of each device, the greatest first. A number
// that a device lists twice counts once.
func (e *exposition) processes() {
	for i := range e.r.Devices {
		d := &e.r.Devices[i]
		var others float64
		written := map[int]bool{}
		for _, p := range d.Processes {
			switch {
			case p.BytesUnknown || written[p.PID]:
			case len(written) < mostLabelled:
				written[p.PID] = true
				e.sample(float64(p.Bytes), append(labelsOf(d), p.labels()...)...)
			default:
				others += float64(p.Bytes)
			}
		}
		if others > 0 {
			e.sample(others, append(labelsOf(d), label{"pid", "others"})...)
		}
	}
}

func (p *Process) labels() []label {
	return []label{
		{"pid", strconv.Itoa(p.PID)}, {"user", p.User}, {"command", p.Command},
		{"container", p.Container}, {"pod", p.Pod}, {"job", p.Job},
	}
}

func (e *exposition) alarms() {
	e.sample(truth(e.r.open(HostGPU, "", Failed)), label{"gpu", "all"}, label{"uuid", ""}, label{"rule", string(Failed)})
	for i := range e.r.Devices {
		d := &e.r.Devices[i]
		for _, rule := range rules {
			e.sample(truth(e.r.open(d.Index, d.UUID, rule.Rule)), append(labelsOf(d), label{"rule", string(rule.Rule)})...)
		}
	}
}

// open says whether an alarm is open.
func (r *Report) open(gpu int, uuid string, rule Rule) bool {
	return slices.ContainsFunc(r.Alarms, func(a Alarm) bool { return a.GPU == gpu && a.UUID == uuid && a.Rule == rule })
}

func (e *exposition) opened() {
	for _, rule := range slices.Sorted(maps.Keys(e.r.Opened)) {
		e.sample(float64(e.r.Opened[rule]), label{"rule", string(rule)})
	}
}

func (e *exposition) actions() {
	for _, c := range e.counts {
		for _, v := range []struct {
			result string
			n      uint64
		}{{"done", c.Done}, {"failed", c.Failed}, {"dropped", c.Dropped}} {
			e.sample(float64(v.n), label{"action", c.Action}, label{"result", v.result})
		}
	}
}
