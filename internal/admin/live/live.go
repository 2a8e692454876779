// Package live is the web page on which an operator watches a weir process: charts of the last
// ten minutes and six hours, tiles and tables. It records continuously, so that a page that is
// opened during an incident shows how it began; the history has a fixed size (see [Ring]).
//
// It knows no part of weir. A product describes its page (a [Page]) and provides a [Source]:
// values once a second, and tables while the page is open. Everything that the page loads is
// embedded, so that it works on a machine without internet access and contacts no other host.
package live

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"html"
	"io/fs"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/admin"
)

// Source provides what a product shows.
type Source interface {
	// Sample sets the current values. It is called once a second for as long as the process
	// runs, so it must be cheap. After an error, the charts have a gap.
	Sample(ctx context.Context, s *Sample) error
	// Detail returns what is shown only for the current moment. It is called once a second
	// while the page is open.
	Detail(ctx context.Context) (Detail, error)
}

// Config configures a Server.
type Config struct {
	Page    Page          // Required.
	Source  Source        // Required.
	Journal *Journal      // The newest warnings of the process. Default: none are shown.
	Words   func() string // Text for programs that request / without accepting HTML. Default: they get the page.
	// Log receives errors. Default: slog.Default().
	Log *slog.Logger
}

// Server records and serves one page.
type Server struct {
	cfg     Config
	sampler *sampler
}

const (
	// sourceTimeout limits a call of the source.
	sourceTimeout = 5 * time.Second
	// eventTimeout limits the writing of one event to a viewer.
	eventTimeout = 10 * time.Second
)

// New returns a server. It panics if a tile or a chart names a value that the page does not
// have, which is a bug in the program.
func New(cfg Config) *Server {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	cfg.Page = cfg.Page.withProcess()
	if err := cfg.Page.check(); err != nil {
		panic(err)
	}
	return &Server{cfg: cfg, sampler: newSampler(&cfg)}
}

// Run records until ctx ends.
func (s *Server) Run(ctx context.Context) { s.sampler.run(ctx) }

// Policy is the Content-Security-Policy of the page: it loads only its own files.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

//go:embed page
var files embed.FS

// Register adds the page to mux: / and its files, panels.json, history.json and events.
func (s *Server) Register(mux *http.ServeMux) {
	page, err := fs.Sub(files, "page")
	if err != nil {
		panic(err) // the name is a constant
	}
	index, err := fs.ReadFile(page, "index.html")
	if err != nil {
		panic(err) // the same
	}
	index = bytes.ReplaceAll(index, []byte("{{title}}"), []byte(html.EscapeString(s.cfg.Page.Title)))
	mux.Handle("GET /", http.FileServerFS(page))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		if s.cfg.Words != nil && !strings.Contains(r.Header.Get("Accept"), "text/html") {
			admin.Plain(w, http.StatusOK, s.cfg.Words())
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(index) // fails if the client has gone
	})
	mux.HandleFunc("GET /panels.json", s.panels)
	mux.HandleFunc("GET /history.json", s.history)
	mux.HandleFunc("GET /events", s.events)
}

func (s *Server) panels(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(s.cfg.Page) // fails if the client has gone
}

// history responds with the points of a time span: /history.json?span=1h.
func (s *Server) history(w http.ResponseWriter, r *http.Request) {
	span := fineSpan
	if text := r.URL.Query().Get("span"); text != "" {
		var err error
		if span, err = time.ParseDuration(text); err != nil || span <= 0 {
			admin.Plain(w, http.StatusBadRequest, "span: want a duration such as 10m or 6h")
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(s.sampler.history(span)) // fails if the client has gone
}

// events streams updates: an event "tick" with each sample.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	v := s.sampler.join()
	if v == nil {
		admin.Plain(w, http.StatusServiceUnavailable, fmt.Sprintf("%d viewers are connected already", maxViewers))
		return
	}
	defer s.sampler.leave(v)
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	for {
		select {
		case data := <-v.events:
			if err := out.SetWriteDeadline(time.Now().Add(eventTimeout)); err != nil {
				return
			}
			if _, err := fmt.Fprintf(w, "event: tick\ndata: %s\n\n", data); err != nil {
				return
			}
			if out.Flush() != nil {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}

// actionHeader is set in the requests of buttons. A page of another site cannot set it without
// a preflight request, which is not answered.
const actionHeader = "X-Weir-Action"

// Acts returns a handler for an [Action]: it responds with 204, or with 409 and the error.
func Acts(do func(r *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(actionHeader) == "" {
			admin.Plain(w, http.StatusForbidden, "the header "+actionHeader+" is missing: only this page's buttons may do that")
			return
		}
		if err := do(r); err != nil {
			admin.Plain(w, http.StatusConflict, err.Error())
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}
