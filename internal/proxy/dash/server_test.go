package dash

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirdb/weir/internal/admin/live"
	"github.com/weirdb/weir/internal/measure"
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
		Sides:      []Side{{Engine: "postgresql", Title: "PostgreSQL", Server: "db:5432", Listen: ":6432"}},
		Pools:      []Pool{{Database: "shop", Shared: n, Latency: hist(1000)}},
		Hosts:      []Host{{Engine: "postgresql", Host: "db"}, {Engine: "postgresql", Host: "standby", LagNs: nanoseconds(40 * time.Second), Behind: 1 << 20}},
		Statements: []Statement{{Text: "select ?", Runs: n}},
	}, nil
}

func (f *fakeSource) Totals(context.Context) (Totals, error) {
	if f.down.Load() {
		return Totals{}, errors.New("the proxy is stopping")
	}
	n := uint64(f.looks.Add(1))
	h := &measure.Hist{}
	h.RecordN(1000, n)
	return Totals{Loops: 1, Clients: 3, Replicas: 1, Lag: 40 * time.Second, Shared: n, Latency: h}, nil
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
		{"/page.css", false, 200, "text/css", "light-dark("},
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
		if got := w.Header().Get("Content-Security-Policy"); got != live.Policy {
			t.Errorf("GET %s: policy %q", tt.path, got)
		}
	}
	w := httptest.NewRecorder()
	newTestServer(&fakeSource{}).handler(false).ServeHTTP(w, httptest.NewRequest("POST", "/snapshot.json", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d, want 405", w.Code)
	}
}

func TestLoopbackAnswersToItsOwnNamesOnly(t *testing.T) {
	for host, want := range map[string]int{
		"127.0.0.1:9187": 200, "localhost:9187": 200, "localhost": 200, "[::1]:9187": 200, "[::1]": 200,
		"evil.example:9187": 421, "127.0.0.1.evil.example": 421, "localhost.evil.example": 421, "": 200,
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

// The page records what happened, and shows it in tables to one who looks.
func TestPageShowsTheProxy(t *testing.T) {
	url, stop := start(t, &fakeSource{})
	defer func() {
		if err := stop(); err != nil {
			t.Errorf("stopped with %v", err)
		}
	}()
	resp, err := http.Get(url + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	in := bufio.NewReader(resp.Body)
	var e struct {
		V      map[string]*float64
		Detail live.Detail
	}
	for e.V["shared"] == nil { // the first sample has no rates
		line, err := in.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if text, ok := strings.CutPrefix(line, "data: "); ok {
			e.V = nil
			if err := json.Unmarshal([]byte(text), &e); err != nil {
				t.Fatalf("%v in %s", err, text)
			}
		}
	}
	if *e.V["shared"] <= 0 || *e.V["clients"] != 3 || *e.V["went_full"] < 0 || math.Abs(*e.V["p50"]-1e-6) > 1e-8 || *e.V["statements"] != *e.V["shared"] {
		t.Errorf("values: shared %v, clients %v, p50 %v", *e.V["shared"], *e.V["clients"], *e.V["p50"])
	}
	if lag := e.V["replica_lag"]; lag == nil || *lag != 40 {
		t.Errorf("lag of replicas %v", lag)
	}
	var titles []string
	for _, table := range e.Detail.Tables {
		titles = append(titles, table.Title)
	}
	if got := strings.Join(titles, ", "); got != "Statements, Pools, Write lanes, Cache, Hosts, Pins by cause, Since the start" {
		t.Errorf("tables: %s", got)
	}
	if got := e.Detail.Facts[0]; got != ":6432 → db:5432" {
		t.Errorf("facts: %s", got)
	}
}

func TestTablesSayWhatTheBatcherDecided(t *testing.T) {
	v := view{state: &State{
		Sides: []Side{{Engine: "postgresql", Title: "PostgreSQL"}, {Engine: "mysql", Title: "MySQL"}},
		Lanes: []Lane{
			{Engine: "mysql", Kind: "rows", Groups: 4, Members: 30, Reasons: map[string]uint64{"idle": 1, "items": 3}, Probes: 9, Moves: 2, Holding: true, Text: "INSERT"},
			{Engine: "postgresql", WindowNs: 1_000_000, Members: 2},
		},
		Pools: []Pool{{Pins: map[string]uint64{"temporary_table": 3}, Limited: map[string]uint64{"max_waiting": 7}}, {Pins: map[string]uint64{"temporary_table": 1, "listen": 8}}},
	}, both: true}
	rows := v.lanes().Rows
	if got := rows[0]; got[0].Text != "MySQL" || got[4].Value != 7.5 || got[13].Text != "full 75 %, a lane was free 25 %" ||
		got[14].Text != "2 of 9 probes moved it, waits for clients to return" {
		t.Errorf("adaptive lane: %+v", got)
	}
	if got := rows[1]; got[0].Text != "PostgreSQL" || got[2].Text != "1ms" || got[14].Text != "fixed" {
		t.Errorf("fixed lane: %+v", got)
	}
	if got := v.pins().Rows; len(got) != 2 || got[0][0].Text != "listen" || got[1][0].Text != "temporary table" || got[1][1].Value != 4 || got[1][2].Value != 0.5 {
		t.Errorf("pins: %+v", got)
	}
	found := false
	for _, row := range v.totals().Rows {
		found = found || row[0].Text == "limit: max waiting" && row[1].Value == 7
	}
	if !found {
		t.Errorf("totals: %+v", v.totals().Rows)
	}
}

func nanoseconds(d time.Duration) *int64 { n := d.Nanoseconds(); return &n }

func TestHostsSayHowFarTheyAreBehind(t *testing.T) {
	v := view{state: &State{Hosts: []Host{
		{Engine: "postgresql", Host: "db"},
		{Engine: "postgresql", Host: "standby", LagNs: nanoseconds(40 * time.Second), Behind: 1 << 20},
		{Engine: "mysql", Host: "replica", LagNs: nanoseconds(0), Behind: 3},
	}}}
	out, err := json.Marshal(v.hosts().Rows)
	for _, want := range []string{`{"v":40,"f":"seconds","bad":true},{"v":1048576,"f":"bytes"}`, `{"v":0,"f":"seconds"},{"v":3,"f":"count"}`} {
		if err != nil || strings.Count(string(out), want) != 1 {
			t.Errorf("hosts: %s: %v; want %s once", out, err, want)
		}
	}
}

// A chart of lag is there where there may be standbys.
func TestChartOfReplicas(t *testing.T) {
	for several, want := range map[bool]string{true: "Replicas", false: "Why groups went"} {
		p := page(several)
		if got := p.Charts[len(p.Charts)-1].Title; got != want {
			t.Errorf("several hosts %v: the last chart is %q, want %q", several, got, want)
		}
	}
}
