// Package live is the page on which an operator watches a weir process: charts of
// the last ten minutes and six hours, tiles and tables. It records all the
// time, so that a page that is opened in the middle of an incident shows how it
// began; what it keeps is of a fixed size (see [Ring]).
//
// It knows no part of weir. A product describes its page (a [Page]) and hands in a
// [Source]: values once a second, and tables while somebody looks. Everything that
// the page loads is embedded, so that it works on a machine without internet access
// and sends nothing anywhere.
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

// Source is what a product shows.
type Source interface {
	// Sample sets the values of this moment. It is called once a second for as long
	// as the process runs, and so must be cheap. After an error there is no point.
	Sample(ctx context.Context, s *Sample) error
	// Detail returns what is shown of this moment alone. It is called once a second
	// while somebody watches.
	Detail(ctx context.Context) (Detail, error)
}

// Config says what is shown.
type Config struct {
	Page    Page          // Required.
	Source  Source        // Required.
	Journal *Journal      // The newest warnings of the process. Default: none are shown.
	Words   func() string // Answers programs that ask for / and not for HTML. Default: they get the page.
	// Log receives what goes wrong. Default: slog.Default().
	Log *slog.Logger
}

// Server records and serves one page.
type Server struct {
	cfg     Config
	sampler *sampler
}

const (
	// sourceTimeout bounds a question to the source.
	sourceTimeout = 5 * time.Second
	// eventTimeout bounds the writing of one event to a viewer.
	eventTimeout = 10 * time.Second
)

// New returns a server. It panics where a tile or a chart names a value that the
// page does not have: the page is a constant of its program.
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

// Policy is the Content-Security-Policy under which the page works: it loads its own
// files and nothing else.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

//go:embed page
var files embed.FS

// Register adds the page to what mux answers: / and its files, panels.json,
// history.json and events.
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
		_, _ = w.Write(index) // the client has gone
	})
	mux.HandleFunc("GET /panels.json", s.panels)
	mux.HandleFunc("GET /history.json", s.history)
	mux.HandleFunc("GET /events", s.events)
}

func (s *Server) panels(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(s.cfg.Page) // the client has gone
}

// history answers with the points of a span: /history.json?span=1h.
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
	_, _ = w.Write(s.sampler.history(span)) // the client has gone
}

// events streams what is new: one event "tick" with each sample.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	v := s.sampler.join()
	if v == nil {
		admin.Plain(w, http.StatusServiceUnavailable, fmt.Sprintf("%d pages watch already", maxViewers))
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

// actionHeader is on the requests of buttons. A page of another site cannot set it
// without asking first, which is not answered.
const actionHeader = "X-Weir-Action"

// Acts answers an [Action]: with 204, or 409 and why it could not be done.
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
