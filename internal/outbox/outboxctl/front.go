package outboxctl

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirdb/weir/internal/admin"
)

// Front serves the admin address from the start: before the service runs, it reports what the
// process waits for. It is safe for concurrent use.
type Front struct {
	mu      sync.Mutex
	handler http.Handler // of the service; nil before there is one
	awaits  string
}

// SetWaiting sets what the process waits for.
func (f *Front) SetWaiting(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.awaits = what
}

// SetService makes the service answer from now on.
func (f *Front) SetService(s *Service, metrics prometheus.Gatherer, addr net.Addr) {
	h := s.handler(metrics, admin.IsLoopback(addr))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handler = h
}

// Serve serves ln until ctx ends, and closes ln.
func (f *Front) Serve(ctx context.Context, ln net.Listener, log *slog.Logger) error {
	early := f.waitingHandler(admin.IsLoopback(ln.Addr()))
	return admin.Serve(ctx, ln, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		h := f.handler
		f.mu.Unlock()
		if h == nil {
			h = early
		}
		h.ServeHTTP(w, r)
	}), log)
}

// waitingHandler answers before there is a service: the process is healthy, but not ready.
func (f *Front) waitingHandler(loopback bool) http.Handler {
	mux := admin.Mux(prometheus.NewRegistry())
	notReady := func(w http.ResponseWriter, _ *http.Request) {
		f.mu.Lock()
		text := "not ready: starting"
		if f.awaits != "" {
			text = "not ready: waiting for " + f.awaits
		}
		f.mu.Unlock()
		admin.Plain(w, http.StatusServiceUnavailable, text)
	}
	for _, path := range []string{"GET /{$}", "GET /readyz", "GET /status.json"} {
		mux.HandleFunc(path, notReady)
	}
	return admin.Guard(mux, loopback, "default-src 'none'; frame-ancestors 'none'")
}
