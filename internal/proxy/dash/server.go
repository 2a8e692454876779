// Package dash is what an operator sees of a running weir through HTTP: the
// live page, metrics, health and profiles. It is served on an address of its
// own, by default on loopback only, because it shows the text of statements and
// has no log-in.
//
// It knows no part of weir: a part hands in a Source, and internal/proxy/cmd translates.
// Everything that the page loads is embedded, so that it works on a machine
// without internet access and sends nothing anywhere.
package dash

import (
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirdb/weir/internal/admin"
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
	sampled := make(chan struct{})
	go func() {
		defer close(sampled)
		s.sampler.run(ctx)
	}()
	err := admin.Serve(ctx, ln, s.handler(admin.IsLoopback(ln.Addr())), s.cfg.Log)
	cancel()
	<-sampled
	return err
}

//go:embed page
var files embed.FS

func (s *Server) handler(loopback bool) http.Handler {
	page, err := fs.Sub(files, "page")
	if err != nil {
		panic(err) // the name is a constant
	}
	mux := admin.Mux(s.cfg.Metrics)
	mux.Handle("GET /", http.FileServerFS(page))
	mux.HandleFunc("GET /readyz", s.ready)
	mux.HandleFunc("GET /snapshot.json", s.snapshot)
	mux.HandleFunc("GET /shapes", s.shapes)
	mux.HandleFunc("GET /events", s.events)
	return admin.Guard(mux, loopback, policy)
}

// policy lets the page load its own files and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

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

// shapes answers with the statements alone, those first that took most time.
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

// events streams the state: one event "history" with the points of the charts
// so far, then an event "tick" with each sample.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	v, points := s.sampler.join()
	if v == nil {
		admin.Plain(w, http.StatusServiceUnavailable, fmt.Sprintf("%d pages watch already", maxViewers))
		return
	}
	defer s.sampler.leave(v)
	if points == nil {
		points = []Point{}
	}
	history, err := json.Marshal(points)
	if err != nil {
		admin.Plain(w, http.StatusInternalServerError, "encode history: "+err.Error())
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
