package dash

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// fakeSource is a proxy that answers one more statement each time it is looked
// at.
type fakeSource struct {
	looks atomic.Int64
	down  atomic.Bool
}

func (f *fakeSource) State(context.Context) (State, error) {
	if f.down.Load() {
		return State{}, errors.New("the proxy is stopping")
	}
	n := uint64(f.looks.Add(1))
	return State{
		Version: "1.2.3", Server: "db:5432", Loops: 1, Clients: 3,
		Sides:      []Side{{Engine: "postgresql", Title: "PostgreSQL", Server: "db:5432"}},
		Pools:      []Pool{{Database: "shop", Shared: n, Latency: hist(1000)}},
		Statements: []Statement{{Text: "select ?", Runs: n}},
	}, nil
}

func (f *fakeSource) Ready(context.Context) error {
	if f.down.Load() {
		return errors.New("reach the server: connection refused")
	}
	return nil
}

func newTestServer(source Source) *Server {
	r := prometheus.NewRegistry()
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "weir_test", Help: "A gauge."})
	g.Set(7)
	r.MustRegister(g)
	return New(Config{Source: source, Metrics: r, Log: slog.New(slog.DiscardHandler)})
}

// start serves a page on a free port and returns its URL and a function that
// stops it and returns what Run returned.
func start(t *testing.T, source Source) (url string, stop func() error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	end := make(chan error, 1)
	go func() { end <- newTestServer(source).Run(ctx, ln) }()
	return "http://" + ln.Addr().String(), func() error {
		cancel()
		return <-end
	}
}

func TestPaths(t *testing.T) {
	tests := []struct {
		path string
		down bool
		code int
		kind string
		want string
	}{
		{"/", false, 200, "text/html", "page.js"},
		{"/page.js", false, 200, "text/javascript", "EventSource"},
		{"/chart.js", false, 200, "text/javascript", "LineChart"},
		{"/page.css", false, 200, "text/css", "prefers-color-scheme: dark"},
		{"/icon.svg", false, 200, "image/svg+xml", "<svg"},
		{"/metrics", false, 200, "text/plain", "weir_test 7"},
		{"/healthz", true, 200, "text/plain", "ok\n"},
		{"/readyz", false, 200, "text/plain", "ready\n"},
		{"/readyz", true, 503, "text/plain", "not ready: reach the server: connection refused\n"},
		{"/snapshot.json", false, 200, "application/json", `"server": "db:5432"`},
		{"/snapshot.json", true, 503, "text/plain", "collect state: the proxy is stopping\n"},
		{"/debug/pprof/", false, 200, "text/html", "goroutine"},
		{"/debug/pprof/goroutine?debug=1", false, 200, "text/plain", "goroutine profile"},
		{"/debug/pprof/cmdline", false, 404, "text/plain", "not found"},
		{"/nothing", false, 404, "text/plain", "not found"},
	}
	for _, tt := range tests {
		source := &fakeSource{}
		source.down.Store(tt.down)
		w := httptest.NewRecorder()
		newTestServer(source).handler(false).ServeHTTP(w, httptest.NewRequest("GET", tt.path, nil))
		if w.Code != tt.code || !strings.HasPrefix(w.Header().Get("Content-Type"), tt.kind) || !strings.Contains(w.Body.String(), tt.want) {
			t.Errorf("GET %s (down %v): %d %s\n%.300s\nwant %d %s with %q",
				tt.path, tt.down, w.Code, w.Header().Get("Content-Type"), w.Body, tt.code, tt.kind, tt.want)
		}
		if got := w.Header().Get("Content-Security-Policy"); got != policy {
			t.Errorf("GET %s: policy %q", tt.path, got)
		}
	}
	w := httptest.NewRecorder()
	newTestServer(&fakeSource{}).handler(false).ServeHTTP(w, httptest.NewRequest("POST", "/snapshot.json", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d, want 405", w.Code)
	}
}

// The policy forbids what stands in the page itself; so nothing must.
func TestPageKeepsToItsPolicy(t *testing.T) {
	inline := regexp.MustCompile(`(?i)\son[a-z]+\s*=\s*["']|\sstyle\s*=\s*["']|<style|<script(?:[^>]*[^"])?>[^<]|innerHTML|eval\(|https?://`)
	const namespace = "http://www.w3.org/2000/svg" // a name, not an address
	err := fs.WalkDir(files, "page", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		if found := inline.FindString(strings.ReplaceAll(string(text), namespace, "")); found != "" {
			t.Errorf("%s contains %q", name, found)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestLoopbackAnswersToItsOwnNamesOnly(t *testing.T) {
	for host, want := range map[string]int{
		"127.0.0.1:9187": 200, "localhost:9187": 200, "localhost": 200, "[::1]:9187": 200, "[::1]": 200,
		"evil.example:9187": 421, "127.0.0.1.evil.example": 421, "localhost.evil.example": 421, "": 421,
	} {
		r := httptest.NewRequest("GET", "/snapshot.json", nil)
		r.Host = host
		w := httptest.NewRecorder()
		newTestServer(&fakeSource{}).handler(true).ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("host %q on loopback: %d, want %d", host, w.Code, want)
		}
		w = httptest.NewRecorder()
		newTestServer(&fakeSource{}).handler(false).ServeHTTP(w, r)
		if w.Code != 200 {
			t.Errorf("host %q on a public address: %d, want 200", host, w.Code)
		}
	}
}

// readEvent reads one event of a stream.
func readEvent(t *testing.T, r *bufio.Reader) (name string, data []byte) {
	t.Helper()
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("read event: %v", err)
		}
		line = strings.TrimSuffix(line, "\n")
		switch {
		case line == "":
			return name, data
		case strings.HasPrefix(line, "event: "):
			name = line[len("event: "):]
		case strings.HasPrefix(line, "data: "):
			data = []byte(line[len("data: "):])
		default:
			t.Fatalf("line of an event stream: %q", line)
		}
	}
}

func openEvents(t *testing.T, url string) *bufio.Reader {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", url+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	if kind := resp.Header.Get("Content-Type"); kind != "text/event-stream" {
		t.Fatalf("Content-Type %q", kind)
	}
	return bufio.NewReader(resp.Body)
}

func TestEventsBeginWithHistoryAndGoOn(t *testing.T) {
	url, stop := start(t, &fakeSource{})
	r := openEvents(t, url)
	if name, data := readEvent(t, r); name != "history" || string(data) != "[]" {
		t.Fatalf("first event: %s %s, want an empty history", name, data)
	}
	tickOf := func(r *bufio.Reader) (e event) {
		t.Helper()
		name, data := readEvent(t, r)
		if err := json.Unmarshal(data, &e); err != nil || name != "tick" {
			t.Fatalf("event %s: %v", name, err)
		}
		return e
	}
	first, second := tickOf(r), tickOf(r)
	if first.Point != nil || first.State.Server != "db:5432" {
		t.Errorf("first tick: %+v, want a state and nothing to compare it with", first)
	}
	if second.Point == nil || second.Point.Shared <= 0 || second.Point.Clients != 3 || second.State.Statements[0].PerSecond <= 0 {
		t.Errorf("second tick: %+v, want rates", second.Point)
	}

	// One who comes later finds the points so far and the last state, at once.
	late := openEvents(t, url)
	var points []Point
	if name, data := readEvent(t, late); name != "history" || json.Unmarshal(data, &points) != nil || len(points) == 0 {
		t.Errorf("history of a second viewer: %s %s", name, data)
	}
	if e := tickOf(late); e.Point == nil {
		t.Error("the second viewer was not sent the latest sample")
	}

	if err := stop(); err != nil {
		t.Errorf("stopped with %v, want success though streams were open", err)
	}
	if _, err := io.Copy(io.Discard, r); err != nil {
		t.Errorf("stream ended with %v, want its proper end", err)
	}
}

func TestNobodyWatchesNothingIsSampled(t *testing.T) {
	source := &fakeSource{}
	s := newTestServer(source)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.sampler.run(ctx)
	}()
	v, _ := s.sampler.join()
	<-v.events
	s.sampler.leave(v)
	cancel()
	<-done
	if source.looks.Load() == 0 {
		t.Error("a viewer was there, and nothing was sampled")
	}

	idle := &fakeSource{}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	newTestServer(idle).sampler.run(ctx)
	if n := idle.looks.Load(); n != 0 {
		t.Errorf("%d samples without a viewer", n)
	}
}

func TestViewersAreBounded(t *testing.T) {
	s := newTestServer(&fakeSource{})
	for range maxViewers {
		if v, _ := s.sampler.join(); v == nil {
			t.Fatal("refused below the bound")
		}
	}
	w := httptest.NewRecorder()
	s.handler(false).ServeHTTP(w, httptest.NewRequest("GET", "/events", nil))
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("one viewer too many: %d, want 503", w.Code)
	}
}

// A viewer that does not read gets the latest event when it does, and holds up
// nobody.
func TestSlowViewerMissesEvents(t *testing.T) {
	s := newTestServer(&fakeSource{}).sampler
	slow, _ := s.join()
	var recent []*State
	for range 3 {
		recent = append(recent, s.look(t.Context()))
		s.publish(recent)
	}
	var e event
	if err := json.Unmarshal(<-slow.events, &e); err != nil || e.State.Pools[0].Shared != 3 {
		t.Errorf("got %+v, %v; want the third sample", e.State, err)
	}
	select {
	case text := <-slow.events:
		t.Errorf("and another: %s", text)
	default:
	}
}
