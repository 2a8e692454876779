package outboxctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weirdb/weir/outbox"
)

// stopTimeout is how long a request may take to end when the server stops.
const stopTimeout = 2 * time.Second

// Serve answers HTTP requests on ln until ctx ends: /metrics, /healthz, /readyz,
// /status.json and /debug/pprof/, and the same in words at /. It closes ln.
func (s *Service) Serve(ctx context.Context, ln net.Listener, metrics prometheus.Gatherer, log *slog.Logger) error {
	srv := &http.Server{
		Handler:           s.handler(metrics, isLoopback(ln.Addr())),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if srv.Shutdown(late) != nil {
			_ = srv.Close() // a profile was still being taken
		}
	})
	err := srv.Serve(ln)
	if !stop() {
		<-stopped
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin server: %w", err)
	}
	return nil
}

func isLoopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// handler routes requests. On a loopback address it answers only to requests for
// such an address, so that a web site whose name is made to point here cannot
// read it from a browser of this machine.
func (s *Service) handler(metrics prometheus.Gatherer, loopback bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.page)
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.Ready(); err != nil {
			plain(w, http.StatusServiceUnavailable, "not ready: "+err.Error())
			return
		}
		plain(w, http.StatusOK, "ready")
	})
	mux.HandleFunc("GET /status.json", s.status)
	// Not pprof.Cmdline: a password may be in it.
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", http.NotFound)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if loopback && !localName(r.Host) {
			plain(w, http.StatusMisdirectedRequest, "ask for 127.0.0.1 or localhost")
			return
		}
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		mux.ServeHTTP(w, r)
	})
}

// localName tells whether the host of a request is this machine by address or by
// the name that resolves nowhere else.
func localName(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if n := len(host); n > 2 && host[0] == '[' && host[n-1] == ']' {
		host = host[1 : n-1]
	}
	return host == "localhost" || net.ParseIP(host) != nil
}

func plain(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	fmt.Fprintln(w, text) // a client that has gone needs no answer
}

// page is the state in words: the rates since the start, and where to look
// further.
func (s *Service) page(w http.ResponseWriter, _ *http.Request) {
	now := s.Snapshot()
	began := Snapshot{At: s.began}
	text := fmt.Sprintf("weir outbox relay of %s, running for %s\n\n%s\n", s.Table(), now.At.Sub(s.began).Round(time.Second), Line(&began, &now, s.Claim()))
	if now.Stats.TailReason != "" {
		text += "\nThe log is not followed: " + now.Stats.TailReason + "\n"
	}
	if now.StatusErr != nil {
		text += "\nThe tables cannot be counted: " + now.StatusErr.Error() + "\n"
	}
	plain(w, http.StatusOK, text+"\n/metrics  /status.json  /healthz  /readyz  /debug/pprof/")
}

// liveStatus is what /status.json shows beside [StatusReport].
type liveStatus struct {
	StatusReport
	Claim        string            `json:"claim"` // log, poll, skip-locked or standby
	TailReason   string            `json:"tail_reason,omitempty"`
	UptimeSecs   float64           `json:"uptime_seconds"`
	StatusAgeSec float64           `json:"status_age_seconds"` // time since the counts were made
	Error        string            `json:"error,omitempty"`    // why the latest count failed
	Delivered    uint64            `json:"relay_delivered"`
	Retries      uint64            `json:"relay_retries"`
	Buried       map[string]uint64 `json:"relay_buried,omitempty"`
	InFlight     int64             `json:"relay_in_flight"`
	BrokerDown   bool              `json:"broker_down"`
}

func (s *Service) status(w http.ResponseWriter, _ *http.Request) {
	snap := s.Snapshot()
	if snap.CountedAt.IsZero() {
		plain(w, http.StatusServiceUnavailable, "the tables have not been read yet")
		return
	}
	out := liveStatus{
		StatusReport: Report(s.Table(), snap.Description, snap.Status),
		Claim:        s.Claim(), TailReason: snap.Stats.TailReason,
		UptimeSecs: snap.At.Sub(s.began).Seconds(), StatusAgeSec: snap.At.Sub(snap.CountedAt).Seconds(),
		Delivered: snap.Stats.Delivered, Retries: snap.Stats.Retries, Buried: snap.Stats.Buried,
		InFlight: snap.Stats.InFlight, BrokerDown: snap.Stats.BrokerDown,
	}
	if snap.Description.Period != outbox.Unpartitioned {
		out.CatchAllRows = &snap.CatchAllRows
	}
	if snap.StatusErr != nil {
		out.Error = snap.StatusErr.Error()
	}
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(out) // the client has gone
}
