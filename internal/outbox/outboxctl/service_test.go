package outboxctl

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirdb/weir/internal/admin"
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
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(60000)")
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
// The example of alerts and the documentation name metrics that there are.
// TestServiceEndsSoonAfterTheLastMessage: a count that took long is repeated seldom, but
// once the relay has nothing more to do.
func TestServiceEndsSoonAfterTheLastMessage(t *testing.T) {
	store := &slowlyCounted{Store: fileStore(t, outbox.Plan{}, outbox.Message{Topic: "t", Payload: []byte("x")})}
	s, err := NewService(store, lines(t, io.Discard), Config{UntilEmpty: true})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := s.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > countShare*slowCount {
		t.Errorf("it ended after %v, as if it had waited for the second count", took)
	}
}

const slowCount = 500 * time.Millisecond

// slowlyCounted is a store whose first count takes long.
type slowlyCounted struct {
	*sqlite.Store
	counted atomic.Bool
}

func (s *slowlyCounted) Status(ctx context.Context) (outbox.Status, error) {
	status, err := s.Store.Status(ctx)
	if !s.counted.Swap(true) {
		status.Pending = 1 // it was not delivered yet
		sleep(ctx, slowCount)
	}
	return status, err
}

// upgraded is a store whose tables a newer version has migrated.
type upgraded struct{ outbox.Store }

func (upgraded) Name() string { return "outbox" }

func (upgraded) Describe(context.Context) (outbox.Description, error) {
	return outbox.Description{}, outbox.ErrNewer
}

// A relay that was told of the tables before they were migrated does not wait for a
// maintenance that is told of them behind it.
func TestMaintenanceOfNewerTables(t *testing.T) {
	s, err := NewService(upgraded{}, lines(t, io.Discard), Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.maintain(t.Context(), func() {}); !errors.Is(err, outbox.ErrNewer) {
		t.Errorf("maintenance ended with %v, want %v", err, outbox.ErrNewer)
	}
}

// hanging is a store whose server hangs after the first count.
type hanging struct {
	outbox.Store
	counts atomic.Int64
}

func (*hanging) Name() string { return "outbox" }

func (*hanging) Describe(context.Context) (outbox.Description, error) {
	return outbox.Description{}, nil
}

func (h *hanging) Status(ctx context.Context) (outbox.Status, error) {
	if h.counts.Add(1) > 1 {
		<-ctx.Done()
	}
	return outbox.Status{}, ctx.Err()
}

// A database that answers nothing, as one whose disk hangs, is not ready, though no count
// fails.
func TestHungDatabaseIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := NewService(&hanging{}, lines(t, io.Discard), Config{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var counting sync.WaitGroup
		counting.Go(func() {
			if err := s.count(ctx, func() {}); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(20 * time.Second) // of which 5 are before the second count
		if err := s.Ready(); err != nil {
			t.Errorf("while it may be counting: %v", err)
		}
		time.Sleep(time.Minute)
		if err := s.Ready(); err == nil || !strings.Contains(err.Error(), "have not answered for 1m15s") {
			t.Errorf("of a database that hangs it says %v", err)
		}
		stop()
		counting.Wait()
	})
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
	// Without a limit: a count that a busy machine makes slow is repeated after
	// twenty times as long.
	ctx, cancel := context.WithCancel(t.Context())
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

func TestRetry(t *testing.T) {
	away := fmt.Errorf("connect: %w", &net.OpError{Op: "dial", Err: errors.New("refused")})
	starting := fmt.Errorf("connect: %w", &pgconn.PgError{Code: "57P03"})
	refused := fmt.Errorf("connect: %w", &pgconn.PgError{Code: "28P01"})
	answers := []error{
		away, starting, outbox.Unavailable(errors.New("full")), fmt.Errorf("read: %w", io.ErrUnexpectedEOF), driver.ErrBadConn,
		&mysqldriver.MySQLError{Number: 1053, Message: "Server shutdown in progress"}, mysqldriver.ErrInvalidConn, nil,
	}
	n := 0
	if _, err := Retry(t.Context(), slog.New(slog.DiscardHandler), "it", func(string) {}, func() (int, error) { n++; return n, answers[n-1] }); err != nil || n != len(answers) {
		t.Errorf("ended after %d tries with %v", n, err)
	}
	if _, err := Retry(t.Context(), slog.New(slog.DiscardHandler), "it", func(string) {}, func() (int, error) { return 0, refused }); !errors.Is(err, refused) {
		t.Errorf("a refusal: %v", err)
	}
	for _, err := range []error{
		&mysqldriver.MySQLError{Number: 1045, Message: "Access denied"}, &mysqldriver.MySQLError{Number: 1049, Message: "Unknown database"},
		&pgconn.PgError{Code: "3D000"}, fmt.Errorf("read: %w", outbox.ErrNewer), outbox.ErrNotMigrated, errors.New("port 99999 is none"),
	} {
		if IsAway(err) {
			t.Errorf("%v was waited for", err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Retry(ctx, slog.New(slog.DiscardHandler), "it", func(string) {}, func() (int, error) { cancel(); return 0, away })
	if !errors.Is(err, context.Canceled) || !errors.Is(err, away) {
		t.Errorf("a wait that was ended: %v", err)
	}
}

// Serve answers HTTP requests on ln until ctx ends: /metrics, /healthz, /readyz,
// /status.json and /debug/pprof/, and at / the live page, in words where HTML is not
// asked for. It closes ln.
func (s *Service) Serve(ctx context.Context, ln net.Listener, metrics prometheus.Gatherer, log *slog.Logger) error {
	return admin.Serve(ctx, ln, s.handler(metrics, admin.IsLoopback(ln.Addr())), log)
}
