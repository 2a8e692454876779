// Package dash is the admin HTTP server of a running proxy: the live page, metrics,
// health and profiles. It has an address of its own, by default on loopback only,
// because it shows the text of statements and has no login.
//
// It does not import the proxy: internal/proxy/process hands in a Source, and
// internal/admin/live draws the page.
package dash

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirdb/weir/internal/admin"
	"github.com/weirdb/weir/internal/admin/live"
)

// Source is what the page shows.
type Source interface {
	// Totals returns the current sums. It is called once a second, also while no
	// page is open.
	Totals(ctx context.Context) (Totals, error)
	// State returns the current state. It is called once a second while the page is
	// watched.
	State(ctx context.Context) (State, error)
	// Ready returns nil if clients would be served, otherwise why not.
	Ready(ctx context.Context) error
}

// Config says what is served.
type Config struct {
	Source  Source              // Required.
	Metrics prometheus.Gatherer // Required.
	// Several: connections go to one of several hosts.
	Several bool
	// Journal has the newest warnings. Default: none are shown.
	Journal *live.Journal
	// Log receives what goes wrong. Default: slog.Default().
	Log *slog.Logger
}

// Server is the admin HTTP server.
type Server struct {
	cfg  Config
	page *live.Server
}

const (
	stateTimeout = 5 * time.Second
	readyTimeout = 5 * time.Second
)

// New returns a server; Run serves.
func New(cfg Config) *Server {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	return &Server{cfg, live.New(live.Config{Page: page(cfg.Several), Source: &panels{source: cfg.Source}, Journal: cfg.Journal, Log: cfg.Log})}
}

// Run records and serves on ln until ctx ends, and closes it.
func (s *Server) Run(ctx context.Context, ln net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	recorded := make(chan struct{})
	go func() {
		defer close(recorded)
		s.page.Run(ctx)
	}()
	err := admin.Serve(ctx, ln, s.handler(admin.IsLoopback(ln.Addr())), s.cfg.Log)
	cancel()
	<-recorded
	return err
}

func (s *Server) handler(loopback bool) http.Handler {
	mux := admin.Mux(s.cfg.Metrics)
	s.page.Register(mux)
	mux.HandleFunc("GET /readyz", s.ready)
	mux.HandleFunc("GET /snapshot.json", s.snapshot)
	mux.HandleFunc("GET /shapes", s.shapes)
	return admin.Guard(mux, loopback, live.Policy)
}

func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
	defer cancel()
	if err := s.cfg.Source.Ready(ctx); err != nil {
		admin.Plain(w, http.StatusServiceUnavailable, "not ready: "+err.Error())
		return
	}
	admin.Plain(w, http.StatusOK, "ready")
}

func (s *Server) snapshot(w http.ResponseWriter, r *http.Request) {
	s.show(w, r, func(state *State) any {
		state.complete(time.Now())
		return state
	})
}

// shapes answers with the statements alone, those that took most time first.
func (s *Server) shapes(w http.ResponseWriter, r *http.Request) {
	s.show(w, r, func(state *State) any {
		list := append([]Statement{}, state.Statements...) // [] where there are none
		slices.SortStableFunc(list, func(a, b Statement) int { return cmp.Compare(b.TotalNs, a.TotalNs) })
		return list
	})
}

// show answers with a part of the state, as JSON.
func (s *Server) show(w http.ResponseWriter, r *http.Request, part func(*State) any) {
	ctx, cancel := context.WithTimeout(r.Context(), stateTimeout)
	defer cancel()
	state, err := s.cfg.Source.State(ctx)
	if err != nil {
		admin.Plain(w, http.StatusServiceUnavailable, "collect state: "+err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(part(&state)) // the client has gone
}
