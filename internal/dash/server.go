// Package dash is what an operator sees of a running weir through HTTP: the
// live page, metrics, health and profiles. It is served on an address of its
// own, by default on loopback only, because it shows the text of statements and
// has no log-in.
//
// It knows no part of weir: a part hands in a Source, and cmd/weir translates.
// Everything that the page loads is embedded, so that it works on a machine
// without internet access and sends nothing anywhere.
package dash

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Source is what the page shows.
type Source interface {
	// State returns the state of this moment. The sampler calls it twice a
	// second while somebody watches.
	State(ctx context.Context) (State, error)
	// Ready returns nil if clients would be served, else why not.
	Ready(ctx context.Context) error
}

// Config says what is served.
type Config struct {
	Source  Source              // Required.
	Metrics prometheus.Gatherer // Required.
	// Log receives what goes wrong. Default: slog.Default().
	Log *slog.Logger
}

// Server is the admin HTTP server.
type Server struct {
	cfg     Config
	sampler *sampler
}

const (
	stateTimeout = 5 * time.Second
	readyTimeout = 5 * time.Second
	// eventTimeout bounds the writing of one event to a viewer.
	eventTimeout = 10 * time.Second
	stopTimeout  = 2 * time.Second
)

// New returns a server; Run serves.
func New(cfg Config) *Server {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	return &Server{cfg: cfg, sampler: newSampler(cfg.Source, cfg.Log)}
}

// Run serves on ln until ctx ends, and closes it.
func (s *Server) Run(ctx context.Context, ln net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	srv := &http.Server{
		Handler:           s.handler(isLoopback(ln.Addr())),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		BaseContext:       func(net.Listener) context.Context { return ctx }, // ends the event streams
		ErrorLog:          slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
	}
	sampled := make(chan struct{})
	go func() {
		defer close(sampled)
		s.sampler.run(ctx)
	}()
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
	if stop() { // it failed by itself
		close(stopped)
	}
	cancel()
	<-stopped
	<-sampled
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin server: %w", err)
	}
	return nil
}

func isLoopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

//go:embed page
var files embed.FS

// handler routes requests. On a loopback address it answers only to requests
// for such an address, so that a web site whose name is made to point here
// (DNS rebinding) cannot read it from the user's browser.
func (s *Server) handler(loopback bool) http.Handler {
	page, err := fs.Sub(files, "page")
	if err != nil {
		panic(err) // the name is a constant
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(page))
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.cfg.Metrics, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", s.ready)
	mux.HandleFunc("GET /snapshot.json", s.snapshot)
	mux.HandleFunc("GET /events", s.events)
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
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		mux.ServeHTTP(w, r)
	})
}

// policy lets the page load its own files and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// localName tells whether the host of a request is this machine by address or
// by the name that resolves nowhere else.
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

func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
	defer cancel()
	if err := s.cfg.Source.Ready(ctx); err != nil {
		plain(w, http.StatusServiceUnavailable, "not ready: "+err.Error())
		return
	}
	plain(w, http.StatusOK, "ready")
}

func (s *Server) snapshot(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), stateTimeout)
	defer cancel()
	state, err := s.cfg.Source.State(ctx)
	if err != nil {
		plain(w, http.StatusServiceUnavailable, "collect state: "+err.Error())
		return
	}
	state.complete(time.Now())
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(state) // the client has gone
}

// events streams the state: one event "history" with the points of the charts
// so far, then an event "tick" with each sample.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	v, points := s.sampler.join()
	if v == nil {
		plain(w, http.StatusServiceUnavailable, fmt.Sprintf("%d pages watch already", maxViewers))
		return
	}
	defer s.sampler.leave(v)
	if points == nil {
		points = []Point{}
	}
	history, err := json.Marshal(points)
	if err != nil {
		plain(w, http.StatusInternalServerError, "encode history: "+err.Error())
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	send := func(name string, data []byte) error {
		if err := out.SetWriteDeadline(time.Now().Add(eventTimeout)); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "event: %s\ndata: %s\n\n", name, data); err != nil {
			return err
		}
		return out.Flush()
	}
	for name, data := "history", history; send(name, data) == nil; name = "tick" {
		select {
		case data = <-v.events:
		case <-r.Context().Done():
			return
		}
	}
}
