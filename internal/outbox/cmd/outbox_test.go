package outboxcmd

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/cli/clitest"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/outbox"
)

func TestOutboxCommandLines(t *testing.T) { program.Script(t, "testdata/outbox.txt") }

// outboxRig is an outbox of one engine.
type outboxRig struct {
	*testing.T
	engine string
	dsn    string // for --db
	db     *sql.DB
	tx     func(outbox.Execer) outbox.Tx
}

func (r *outboxRig) weir(verb string, args ...string) string {
	r.Helper()
	return program.Run(r.T, append([]string{"outbox", verb, "--db", r.dsn}, args...)...)
}

// json runs a verb with --json and decodes what it prints.
func (r *outboxRig) json(into any, verb string, args ...string) {
	r.Helper()
	out := r.weir(verb, append(args, "--json")...)
	if err := json.Unmarshal([]byte(out), into); err != nil {
		r.Fatalf("%s %q: %v in %s", verb, args, err, out)
	}
}

func (r *outboxRig) enqueue(msgs ...outbox.Message) {
	r.Helper()
	if err := outbox.Enqueue(r.Context(), r.tx(r.db), msgs...); err != nil {
		r.Fatal(err)
	}
}

// outboxStatus is what tests read of `weir outbox status --json`.
type outboxStatus struct {
	Layout, Period                              string
	Pending, Scheduled, Parked, Dead, Delivered int64
	Leases                                      []struct{ Held bool }
}

func (r *outboxRig) status() (s outboxStatus) {
	r.Helper()
	r.json(&s, "status")
	return s
}

func sqliteRig(t *testing.T) *outboxRig {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shop.db")
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(60000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return &outboxRig{T: t, engine: "sqlite", dsn: "sqlite:" + path, db: db, tx: outbox.SQLite}
}

// postgres and mariadb are shared: a test has a database of its own.
var (
	postgres = labtest.Share(func(ctx context.Context) (*lab.Postgres, error) {
		return lab.StartPostgres(ctx, lab.PostgresConfig{Durability: lab.Fast, Settings: map[string]string{"wal_level": "logical"}})
	})
	mariadb = labtest.Share(func(ctx context.Context) (*lab.MySQL, error) {
		return lab.StartMariaDB(ctx, lab.MySQLConfig{Durability: lab.Fast, Light: true})
	})
	databases atomic.Int64
)

// newDatabase returns a name that no database has.
func newDatabase() string { return fmt.Sprintf("own_%d", databases.Add(1)) }

// onEveryEngine runs f on SQLite, PostgreSQL and MariaDB.
func onEveryEngine(t *testing.T, f func(r *outboxRig)) {
	t.Run("SQLite", func(t *testing.T) {
		clitest.ClearEnvironment(t)
		f(sqliteRig(t))
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		pg, name := postgres.Get(t), newDatabase()
		clitest.ClearEnvironment(t)
		execPostgres(t, pg.DSN("postgres"), pg.CreateDatabase(name))
		db, err := sql.Open("pgx", pg.DSN(name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		f(&outboxRig{T: t, engine: "postgres", dsn: pg.DSN(name), db: db, tx: outbox.Postgres})
	})
	t.Run("MariaDB", func(t *testing.T) {
		my, name := mariadb.Get(t), newDatabase()
		clitest.ClearEnvironment(t)
		if err := my.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
			t.Fatal(err)
		}
		c := driver.NewConfig()
		c.User, c.Passwd, c.Net, c.Addr, c.DBName = "root", my.Password(), "tcp", my.Addr(), name
		connector, err := driver.NewConnector(c)
		if err != nil {
			t.Fatal(err)
		}
		db := sql.OpenDB(connector)
		t.Cleanup(func() { _ = db.Close() })
		f(&outboxRig{T: t, engine: "mysql", dsn: my.DSN(name), db: db, tx: outbox.MySQL})
	})
}

// execPostgres executes statements one by one in a session of their own.
func execPostgres(t *testing.T, dsn string, texts ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for _, text := range texts {
		if _, err := conn.PgConn().Exec(t.Context(), text).ReadAll(); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
	}
}

// Every verb, in the order in which an operator meets them.
func TestOutboxVerbs(t *testing.T) {
	onEveryEngine(t, func(r *outboxRig) {
		if out := r.weir("status"); !strings.Contains(out, "weir outbox migrate") || !strings.HasSuffix(out, "exit 1\n") {
			r.Errorf("status before migrate: %s", out)
		}
		var dry struct{ Statements []string }
		r.json(&dry, "migrate", "--dry-run")
		if len(dry.Statements) == 0 || !strings.Contains(r.weir("migrate", "--print"), "CREATE TABLE") {
			r.Errorf("dry run: %q", dry)
		}
		if out := r.weir("migrate"); !strings.HasPrefix(out, "weir_outbox is ready: layout queue, 1 shard, ") {
			r.Fatalf("migrate: %s", out)
		}
		if out := r.weir("migrate"); !strings.HasSuffix(out, "(statements executed: 0)\n") {
			r.Errorf("second migrate: %s", out)
		}
		r.enqueue(
			outbox.Message{Topic: "orders", Key: "a", Payload: []byte(`{"n":1}`), Headers: map[string]string{"type": "placed"}},
			outbox.Message{Topic: "orders", Key: "b", Payload: []byte("text\x1b[2J")},
			outbox.Message{Topic: "poison", Key: "c", Payload: []byte("line\nline")},
			outbox.Message{Topic: "orders", Key: "d", AvailableAt: time.Now().Add(time.Hour)},
		)
		if s := r.status(); s.Pending != 3 || s.Scheduled != 1 || len(s.Leases) != 1 || s.Leases[0].Held {
			r.Errorf("status: %+v", s)
		}
		if out := r.weir("inspect", "--payload"); strings.Contains(out, "\x1b") || strings.Count(out, "\n") != 4 || !strings.Contains(out, "text.[2J") {
			r.Errorf("inspect:\n%s", out)
		}
		if out := r.weir("inspect", "--state", "scheduled"); strings.Count(out, "\n") != 2 {
			r.Errorf("inspect scheduled:\n%s", out)
		}
		if out := r.weir("inspect", "--limit", "1"); !strings.HasSuffix(out, "(the first 1; --limit for more)\n") {
			r.Errorf("inspect --limit 1:\n%s", out)
		}
		if out := r.weir("status", "--max-pending", "2", "--led"); !strings.HasSuffix(out, "2> weir: 3 messages are pending, more than 2\n2> shard 0 has no leader\nexit 3\n") {
			r.Errorf("status as a check: %s", out)
		}

		out := r.weir("relay", "--sink", "stdout:?format=payload", "--until-empty", "--admin", "127.0.0.1:0", "--log-level", "error")
		if lines := strings.Split(out, "\n"); len(lines) != 3 || !slices.Contains(lines, `{"n":1}`) {
			r.Errorf("relay printed %q", out)
		}
		if s := r.status(); s.Pending != 0 || s.Dead != 1 || s.Scheduled != 1 {
			r.Errorf("status after relay: %+v", s)
		}
		r.deadLetters()
	})
}

// deadLetters follows the one dead letter of TestOutboxVerbs.
func (r *outboxRig) deadLetters() {
	r.Helper()
	var dead struct {
		ID, Topic, Reason, Error, Text string
		EndedAt                        time.Time `json:"ended_at"`
	}
	r.json(&dead, "inspect", "--state", "dead", "--payload")
	if dead.Topic != "poison" || dead.Reason != "rejected" || dead.Error == "" || dead.Text != "line\nline" || dead.EndedAt.IsZero() {
		r.Errorf("the dead letter: %+v", dead)
	}
	if out := r.weir("inspect", "--state", "dead"); !strings.Contains(out, "rejected") {
		r.Errorf("inspect dead:\n%s", out)
	}
	if out := r.weir("status", "--max-dead", "0"); !strings.HasSuffix(out, "more than 0\nexit 3\n") {
		r.Errorf("status --max-dead 0: %s", out)
	}
	if out := r.weir("replay", "--topic", "other"); out != "requeued 0 dead messages\n" {
		r.Errorf("replay of another topic: %s", out)
	}
	if out := r.weir("replay", "--id", dead.ID); out != "requeued 1 dead message\n"+oldIDs+"\n" {
		r.Errorf("replay: %s", out)
	}
	if s := r.status(); s.Pending != 1 || s.Dead != 0 {
		r.Errorf("status after replay: %+v", s)
	}
	if out := r.weir("relay", "--sink", "stdout:?format=payload", "--until-empty", "--admin", "off", "--log-level", "error"); out != "" {
		r.Errorf("relay of what is rejected again: %s", out)
	}
	if out := r.weir("purge", "--before", "1h"); out != "purged 0 dead messages\n" {
		r.Errorf("purge of older ones: %s", out)
	}
	var purged struct{ Purged int }
	r.json(&purged, "purge", "--all")
	if s := r.status(); purged.Purged != 1 || s.Dead != 0 {
		r.Errorf("purged %d, status %+v", purged.Purged, s)
	}
}

// A history keeps what was delivered; where there are partitions it has them.
func TestOutboxHistory(t *testing.T) {
	onEveryEngine(t, func(r *outboxRig) {
		args := []string{"--layout", "history"}
		if out := r.weir("migrate", append(args, "--partition", "day")...); (r.engine == "sqlite") != strings.HasSuffix(out, "exit 1\n") {
			r.Fatalf("migrate with partitions: %s", out)
		}
		if r.engine == "sqlite" {
			if out := r.weir("migrate", args...); !strings.Contains(out, "layout history") {
				r.Fatal(out)
			}
		}
		if out := r.weir("migrate"); !strings.Contains(out, "layout history") || !strings.HasSuffix(out, "executed: 0)\n") {
			r.Errorf("migrate without flags changes what is there: %s", out)
		}
		if out := r.weir("migrate", "--layout", "queue"); !strings.Contains(out, "the tables have layout history") || !strings.HasSuffix(out, "exit 1\n") {
			r.Errorf("migrate with another layout: %s", out)
		}
		for i := range 5 {
			r.enqueue(outbox.Message{Topic: "orders", Key: "k", Payload: fmt.Append(nil, i)})
		}
		relay := func(args ...string) string {
			return r.weir("relay", append([]string{"--sink", "stdout:?format=payload", "--until-empty", "--admin", "off", "--log-level", "error"}, args...)...)
		}
		if out := relay(); out != "0\n1\n2\n3\n4\n" {
			r.Errorf("relay printed %q", out)
		}
		if s := r.status(); s.Pending != 0 || s.Delivered != 5 {
			r.Errorf("status: %+v", s)
		}
		if out := r.weir("replay", "--state", "delivered", "--since", "1h"); out != "requeued 5 delivered messages\n"+oldIDs+"\n" {
			r.Errorf("replay: %s", out)
		}
		if r.engine == "sqlite" {
			if out := r.weir("partitions"); !strings.Contains(out, "has no partitions") {
				r.Errorf("partitions: %s", out)
			}
			if out := relay("--claim", "skip-locked"); !strings.Contains(out, "no SKIP LOCKED") {
				r.Errorf("skip-locked: %s", out)
			}
			return
		}
		// One worker keeps the order.
		if out := relay("--claim", "skip-locked", "--workers", "1", "--window", "1d", "--purge-after", "10d"); out != "0\n1\n2\n3\n4\n" {
			r.Errorf("relay with skip-locked printed %q", out)
		}
		var parts struct {
			Period     string
			Partitions []struct {
				CatchAll bool `json:"catch_all"`
				Rows     int64
			}
			Created []string
		}
		r.json(&parts, "partitions", "--maintain", "--partition-ahead", "10d")
		if parts.Period != "day" || len(parts.Partitions) < 12 || len(parts.Created) == 0 {
			r.Errorf("partitions: %+v", parts)
		}
		if out := r.weir("partitions", "--no-catch-all"); !strings.Contains(out, "catch-all") || strings.Contains(out, "exit") {
			r.Errorf("partitions: %s", out)
		}
		if out := relay("--partition-period", "month"); !strings.Contains(out, "--partition-period month: the table's is day") || !strings.HasSuffix(out, "exit 1\n") {
			r.Errorf("relay that wants months: %s", out)
		}
	})
}
