// Package admin is the HTTP server of a weir process for its operators: metrics, health and
// profiles, and the handlers that a product adds. It has no login, so it listens on loopback by
// default, and there rejects requests with the name of another host.
package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weirdb/weir/internal/version"
)

// stopTimeout is how long a request may take to end when the server stops.
const stopTimeout = 2 * time.Second

// Registry returns a registry with a product's metrics, those of the process and the Go
// runtime, and the build information.
func Registry(own prometheus.Collector) *prometheus.Registry {
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "weir_build_info", Help: "Always 1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"version": version.Current().Version, "commit": version.Current().Commit, "goversion": runtime.Version()},
	})
	build.Set(1)
	reg := prometheus.NewRegistry()
	reg.MustRegister(own, build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// Mux returns a mux with /metrics, /healthz and /debug/pprof/; the caller adds the rest.
func Mux(metrics prometheus.Gatherer) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { Plain(w, http.StatusOK, "ok") })
	// Not pprof.Cmdline: the command line may contain a password.
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", http.NotFound)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}

// Guard sets the headers of every response; policy is the Content-Security-Policy. On a
// loopback address it serves only requests whose Host is an IP address, localhost or missing,
// so that a web site whose name resolves to this machine (DNS rebinding) cannot read it through
// a local browser. Requests without a host, such as HTTP/1.0 health checks, do not come from a
// browser.
func Guard(h http.Handler, loopback bool, policy string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if loopback && !localName(r.Host) {
			Plain(w, http.StatusMisdirectedRequest, "ask for 127.0.0.1 or localhost")
			return
		}
		head := w.Header()
		head.Set("Content-Security-Policy", policy)
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("Referrer-Policy", "no-referrer")
		head.Set("Cache-Control", "no-store")
		h.ServeHTTP(w, r)
	})
}

// Serve serves h on ln until ctx ends, and closes ln. The contexts of requests end with ctx.
func Serve(ctx context.Context, ln net.Listener, h http.Handler, log *slog.Logger) error {
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		BaseContext:       func(net.Listener) context.Context { return ctx }, // ends streams
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if srv.Shutdown(late) != nil {
			_ = srv.Close() // a profile was still running
		}
	})
	err := srv.Serve(ln)
	if !stop() { // it did not fail by itself
		<-stopped
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin server: %w", err)
	}
	return nil
}

// IsLoopback reports whether an address is reachable only from this machine.
func IsLoopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// localName reports whether the host of a request is an IP address, localhost or missing: a web
// site can give none of these to a browser for this machine.
func localName(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if n := len(host); n > 2 && host[0] == '[' && host[n-1] == ']' {
		host = host[1 : n-1]
	}
	return host == "" || host == "localhost" || net.ParseIP(host) != nil
}

// Plain responds with a line of text.
func Plain(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	fmt.Fprintln(w, text) // a client that has gone needs no response
}

// Get requests a URL from an admin server, whose response must have status 200. The caller
// closes the body.
func Get(ctx context.Context, url string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("GET %s: %s", req.URL.Path, resp.Status)
	}
	return resp.Body, nil
}
