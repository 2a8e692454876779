package outboxctl

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"github.com/weirdb/weir/batch"
	"github.com/weirdb/weir/outbox"
	"github.com/weirdb/weir/outbox/sink/stdout"
	"github.com/weirdb/weir/outbox/sqlite"
)

// fileStore is an outbox in a SQLite file with some messages in it.
func fileStore(t *testing.T, plan outbox.Plan, msgs ...outbox.Message) *sqlite.Store {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shop.db")
	store, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	if _, err := store.Migrate(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := outbox.Enqueue(t.Context(), outbox.SQLite(db), msgs...); err != nil {
		t.Fatal(err)
	}
	return store
}

func lines(t *testing.T, to io.Writer) outbox.Sink {
	t.Helper()
	s, err := stdout.New(t.Context(), stdout.Options{Format: "payload", To: to})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// values gathers the metrics that have no labels but the table's, and the
// buried by reason.
func values(t *testing.T, s *Service) map[string]float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(s.Collector())
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				if l.GetName() == "reason" {
					name += "/" + l.GetValue()
				}
			}
			out[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}

func TestServiceUntilEmptyAndItsMetrics(t *testing.T) {
	store := fileStore(t, outbox.Plan{Layout: outbox.History},
		outbox.Message{Topic: "orders", Key: "a", Payload: []byte("1")},
		outbox.Message{Topic: "orders", Key: "a", Payload: []byte("2")},
		outbox.Message{Topic: "orders", Key: "b", Payload: []byte("no\nline")},
		outbox.Message{Topic: "orders", AvailableAt: time.Now().Add(time.Hour)},
	)
	var out bytes.Buffer
	s, err := NewService(store, lines(t, &out), Config{UntilEmpty: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := values(t, s); got["weir_outbox_buried_total/rejected"] != 0 || got["weir_outbox_broker_up"] != 1 {
		t.Errorf("before it ran: %v", got)
	} else if _, counted := got["weir_outbox_pending_messages"]; counted {
		t.Error("pending messages are shown before they were counted")
	}
	if err := s.Ready(); err == nil {
		t.Error("ready before the tables were read")
	}
	if err := s.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out.String() != "1\n2\n" {
		t.Errorf("delivered %q", out.String())
	}
	if err := s.Ready(); err != nil {
		t.Error(err)
	}
	got := values(t, s)
	for name, want := range map[string]float64{
		"pending_messages": 0, "scheduled_messages": 1, "dead_messages": 1, "history_messages": 2, "oldest_age_seconds": 0,
		"delivered_messages_total": 2, "delivered_bytes_total": 2, "acked_messages_total": 2, "buried_total/rejected": 1,
		"buried_total/attempts": 0, "in_flight_messages": 0, "shards": 1, "take_overs_total": 1, "info": 1, "delivery_seconds": 2,
	} {
		if v, ok := got["weir_outbox_"+name]; !ok || v != want {
			t.Errorf("%s is %v (%v), want %v", name, v, ok, want)
		}
	}
	for _, name := range []string{"catch_all_rows", "partition_horizon_seconds"} {
		if v, ok := got["weir_outbox_"+name]; ok {
			t.Errorf("%s is %v without partitions", name, v)
		}
	}
}

// Names of metrics follow the conventions of Prometheus.
func TestMetricNames(t *testing.T) {
	s, err := NewService(fileStore(t, outbox.Plan{}), lines(t, io.Discard), Config{})
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(s.Collector())
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if counter := f.GetType().String() == "COUNTER"; counter != strings.HasSuffix(f.GetName(), "_total") {
			t.Errorf("%s is a %s", f.GetName(), f.GetType())
		}
		if !strings.HasSuffix(f.GetHelp(), ".") {
			t.Errorf("help of %s: %q", f.GetName(), f.GetHelp())
		}
	}
}

// The example of alerts and the documentation name metrics that there are.
func TestAlertsNameMetricsThatThereAre(t *testing.T) {
	s, err := NewService(fileStore(t, outbox.Plan{}), lines(t, io.Discard), Config{})
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	descs := make(chan *prometheus.Desc, 100)
	s.Collector().Describe(descs)
	close(descs)
	fqName := regexp.MustCompile(`fqName: "([^"]+)"`)
	for d := range descs {
		known[fqName.FindStringSubmatch(d.String())[1]] = true
	}
	text, err := os.ReadFile("../../contrib/prometheus/outbox-alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(&file); err != nil {
		t.Fatal(err)
	}
	metric := regexp.MustCompile(`weir_outbox_[a-z_]+`)
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			names := metric.FindAllString(r.Expr, -1)
			for _, name := range names {
				if !known[name] {
					t.Errorf("alert %s: there is no metric %s", r.Alert, name)
				}
			}
			if len(names) == 0 || r.Labels["severity"] == "" || r.Annotations["summary"] == "" {
				t.Errorf("alert %s is incomplete", r.Alert)
			}
			if strings.Count(r.Expr, "(") != strings.Count(r.Expr, ")") {
				t.Errorf("alert %s: parentheses in %s", r.Alert, r.Expr)
			}
			if _, err := time.ParseDuration(r.For); r.For != "" && err != nil {
				t.Errorf("alert %s: %v", r.Alert, err)
			}
		}
	}
	if len(file.Groups) != 1 || len(file.Groups[0].Rules) < 5 {
		t.Errorf("found %+v", file)
	}
	docs, err := os.ReadFile("../../docs/outbox.md")
	if err != nil {
		t.Fatal(err)
	}
	for name := range known {
		if !strings.Contains(string(docs), "`"+strings.TrimPrefix(name, "weir_outbox_")+"`") {
			t.Errorf("docs/outbox.md does not tell of %s", name)
		}
	}
}

func TestHistogramsAreCumulative(t *testing.T) {
	var h batch.Histogram
	for _, ms := range []int64{0, 1, 1, 3, 3, 40, 100_000_000} {
		h.Record(ms * int64(time.Millisecond))
	}
	got := cumulate(&h, []float64{.0005, .002, .005, .1, 1}, 1e-9)
	if diff := cmp.Diff(map[float64]uint64{.0005: 1, .002: 3, .005: 5, .1: 6, 1: 6}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLineShowsWhatHappenedSince(t *testing.T) {
	began := time.Unix(1000, 0)
	earlier := Snapshot{At: began, Stats: outbox.Stats{Delivered: 1000}}
	now := Snapshot{At: began.Add(2 * time.Second), Stats: outbox.Stats{Delivered: 26_000, Bytes: 12_400_000, InFlight: 1234}}
	if got, want := Line(&earlier, &now, "log"), "log | 12,500 msg/s 6.2 MB/s | in flight 1,234"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	now.Stats.Delivery.Record(int64(time.Millisecond))
	now.CountedAt, now.Status = now.At, outbox.Status{Pending: 12, Oldest: 90 * time.Second, Dead: 3}
	now.Stats.Parked, now.Stats.Deferred, now.Stats.BrokerDown = 1, 4, true
	const want = "poll | 12,500 msg/s 6.2 MB/s | p50 1.0ms p99 1.0ms | pending 12 oldest 1m30s | in flight 1,234 | waiting 5 | dead 3 | NO BROKER"
	if got := Line(&earlier, &now, "poll"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Maintenance happens while relaying: what is old goes.
func TestServicePurgesWhatIsOld(t *testing.T) {
	store := fileStore(t, outbox.Plan{Layout: outbox.History}, outbox.Message{Topic: "t", Payload: []byte("x")},
		outbox.Message{Topic: "t", Payload: []byte("a\nb")})
	s, err := NewService(store, lines(t, io.Discard), Config{
		StatusEvery: time.Millisecond,
		Maintenance: Maintenance{PurgeDelivered: time.Nanosecond, PurgeDead: time.Nanosecond, Every: time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	for gone := false; !gone; {
		select {
		case err := <-ended:
			t.Fatalf("ended with %v: %+v", err, s.Snapshot().Status)
		case <-time.After(time.Millisecond):
		}
		snap := s.Snapshot()
		gone = snap.Stats.Delivered == 1 && snap.Stats.Buried["rejected"] == 1 && snap.Stats.InFlight == 0 &&
			snap.Status.Pending+snap.Status.Delivered+snap.Status.Dead == 0 && snap.CountedAt.After(time.Time{})
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestMaintenanceThatTheTablesDoNotAllow(t *testing.T) {
	for _, tt := range []struct {
		m    Maintenance
		want string
	}{
		{Maintenance{PurgeDelivered: time.Hour}, "--purge-after: layout queue keeps nothing"},
		{Maintenance{Partitions: outbox.PartitionSpec{Period: outbox.Daily}}, "--partition-period day: the table's is none"},
	} {
		s, err := NewService(fileStore(t, outbox.Plan{}), lines(t, io.Discard), Config{Maintenance: tt.m})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %q", tt.m, err, tt.want)
		}
	}
}

func TestAdminServerAnswersToThisMachine(t *testing.T) {
	s, err := NewService(fileStore(t, outbox.Plan{}), lines(t, io.Discard), Config{})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, ln, prometheus.NewRegistry(), slog.New(slog.DiscardHandler)) }()
	get := func(path, host string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+ln.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if host != "" {
			req.Host = host
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	for _, tt := range []struct {
		path, host string
		want       int
	}{
		{"/", "", 200},
		{"/healthz", "", 200},
		{"/metrics", "", 200},
		{"/readyz", "", 503},
		{"/status.json", "", 503},
		{"/debug/pprof/", "", 200},
		{"/debug/pprof/cmdline", "", 404},
		{"/nothing", "", 404},
		{"/healthz", "localhost:1", 200},
		{"/healthz", "[::1]:1", 200},
		{"/healthz", "rebound.example.com", 421},
	} {
		if got := get(tt.path, tt.host); got != tt.want {
			t.Errorf("%s of %q: %d, want %d", tt.path, tt.host, got, tt.want)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestParseDatabase(t *testing.T) {
	for _, name := range []string{
		"PGHOST", "PGHOSTADDR", "PGPORT", "PGUSER", "PGPASSWORD", "PGDATABASE", "PGSERVICE", "PGSSLMODE",
		"MYSQL_HOST", "MYSQL_TCP_PORT", "MYSQL_UNIX_PORT", "MYSQL_PWD",
	} {
		t.Setenv(name, "")
	}
	for _, tt := range []struct {
		text    string
		engine  Engine
		address string
		shows   bool
		wrong   string
	}{
		{text: "postgres://app:pw@db:6000/shop", engine: Postgres, address: "postgres://db:6000/shop", shows: true},
		{text: "PostgreSQL://app@db/shop", engine: Postgres, address: "postgres://db:5432/shop"},
		{text: "host=db user=app dbname=shop", engine: Postgres, address: "postgres://db:5432/shop"},
		{text: "mysql://app:p%40w@db/shop", engine: MySQL, address: "mysql://db:3306/shop", shows: true},
		{text: "mariadb://app@db:3307/shop", engine: MySQL, address: "mysql://db:3307/shop"},
		{text: "app:pw@tcp(db:3306)/shop", engine: MySQL, address: "mysql://db:3306/shop", shows: true},
		{text: "sqlite:shop.db", engine: SQLite, address: "sqlite:shop.db"},
		{text: "sqlite:///var/shop.db", engine: SQLite, address: "sqlite:/var/shop.db"},
		{text: "/var/shop.db", engine: SQLite, address: "sqlite:/var/shop.db"},
		{text: "shop.db", engine: SQLite, address: "sqlite:shop.db"},
		{text: "oracle://db", wrong: `unknown kind of database "oracle"`},
		{text: "sqlite::memory:", wrong: "want the path of a file"},
		{text: "", wrong: "no database"},
	} {
		d, err := ParseDatabase(tt.text, func(string) string { return "" })
		switch {
		case tt.wrong != "":
			if err == nil || !strings.Contains(err.Error(), tt.wrong) {
				t.Errorf("%q: %v, want %q", tt.text, err, tt.wrong)
			}
		case err != nil || d.Engine != tt.engine || d.Address != tt.address || d.ShowsPassword != tt.shows:
			t.Errorf("%q: %+v, %v", tt.text, d, err)
		}
	}
	d, err := ParseDatabase("", func(name string) string { return map[string]string{"PGHOST": "db"}[name] })
	if err != nil || d.Engine != Postgres {
		t.Errorf("from PGHOST: %+v, %v", d, err)
	}
	d, err = ParseDatabase("", func(name string) string { return map[string]string{"MYSQL_HOST": "db"}[name] })
	if err != nil || d.Engine != MySQL {
		t.Errorf("from MYSQL_HOST: %+v, %v", d, err)
	}
}

func TestPatiently(t *testing.T) {
	away := fmt.Errorf("connect: %w", &net.OpError{Op: "dial", Err: errors.New("refused")})
	starting := fmt.Errorf("connect: %w", &pgconn.PgError{Code: "57P03"})
	refused := fmt.Errorf("connect: %w", &pgconn.PgError{Code: "28P01"})
	answers := []error{away, starting, outbox.Unavailable(errors.New("full")), nil}
	n := 0
	if _, err := Patiently(t.Context(), slog.New(slog.DiscardHandler), "it", func() (int, error) { n++; return n, answers[n-1] }); err != nil || n != 4 {
		t.Errorf("ended after %d tries with %v", n, err)
	}
	if _, err := Patiently(t.Context(), slog.New(slog.DiscardHandler), "it", func() (int, error) { return 0, refused }); !errors.Is(err, refused) {
		t.Errorf("a refusal: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Patiently(ctx, slog.New(slog.DiscardHandler), "it", func() (int, error) { cancel(); return 0, away })
	if !errors.Is(err, context.Canceled) || !errors.Is(err, away) {
		t.Errorf("a wait that was ended: %v", err)
	}
}
