package watch

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// Handler serves what a watcher knows:
//
//	/metrics   for Prometheus
//	/healthz   200 while queries succeed; 503, and why, when none has for stale,
//	           or, where that is 0, when the last one failed
//
// It reads only the watcher's memory, so that a request never queries the driver.
// With local it answers only requests that are addressed to this machine by
// number or as localhost, so that a foreign page in a browser here learns nothing.
func Handler(w *Watcher, n *Notifier, stale time.Duration, local bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(out http.ResponseWriter, _ *http.Request) {
		out.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_ = WriteMetrics(out, w.Report(), n.Counts()) // fails where the client is gone
	})
	mux.HandleFunc("GET /healthz", func(out http.ResponseWriter, _ *http.Request) {
		if why := w.Report().unhealthy(time.Now(), stale); why != "" {
			http.Error(out, why, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(out, "ok")
	})
	mux.HandleFunc("GET /{$}", func(out http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(out, "headroom watch: /metrics for Prometheus, /healthz")
	})
	if !local {
		return mux
	}
	return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if !isLoopback(r.Host) {
			http.Error(out, fmt.Sprintf("this server answers to localhost, not to %q", clean(r.Host)), http.StatusForbidden)
			return
		}
		mux.ServeHTTP(out, r)
	})
}

// unhealthy says why a report can't be relied on, empty if it can.
func (r Report) unhealthy(now time.Time, stale time.Duration) string {
	if r.LastSuccess.IsZero() {
		return "no query has succeeded yet: " + r.Error
	}
	if stale == 0 && r.Error != "" {
		return "the last query failed: " + r.Error
	}
	if age := now.Sub(r.LastSuccess); stale > 0 && age > stale {
		return fmt.Sprintf("the last query that succeeded was %s ago: %s", about(age.Seconds()), r.Error)
	}
	return ""
}

// isLoopback says whether a host, with or without a port, is this machine.
func isLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && ip.IsLoopback()
}

// IsLoopback says whether an address to listen on, such as 127.0.0.1:9401, is
// reachable only from this machine.
func IsLoopback(address string) bool { return isLoopback(address) }
