package sqldb

import (
	"context"
	"database/sql"
	"os"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// commit commits n rows, each with a flush.
func commit(t *testing.T, db *sql.DB, n int) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE written (id bigint PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if _, err := db.ExecContext(t.Context(), "INSERT INTO written VALUES ("+strings.Repeat("1", i+1)+")"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCountersOfPostgres(t *testing.T) {
	pg := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Prod})
	open := func() *sql.DB {
		db, err := OpenPostgres(pg.DSN("postgres"), 1)
		if err != nil {
			t.Fatal(err)
		}
		return db
	}
	m := NewMeter(open())
	defer m.Close(context.Background())
	before, err := m.Counters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	writer := open()
	defer writer.Close()
	commit(t, writer, 10)
	// The session is still there and has reported nothing, and yet the log has grown.
	after, err := m.Counters(t.Context())
	if d := after.Since(before, 10); err != nil || d.LogBytes < 10 {
		t.Fatalf("beside an open session: %+v, %v", d, err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the counters include the session that has ended", func() bool {
		after, err := m.Counters(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		d := after.Since(before, 10)
		return d.Commits >= 10 && d.Fsyncs > 0 && d.LogRecords > 0 && d.PageRequests > 0
	})
	info, err := m.Server(t.Context())
	if err != nil || info.Name != "PostgreSQL" || info.Version == "" || info.Settings["fsync"] != "on" || info.Settings["server_version"] != "" {
		t.Errorf("server = %+v, %v", info, err)
	}
}

func TestCountersOfMariaDB(t *testing.T) {
	server := labtest.MariaDB(t, lab.MySQLConfig{Durability: lab.Prod})
	if err := server.Exec(t.Context(), "CREATE DATABASE test"); err != nil {
		t.Fatal(err)
	}
	db, err := OpenMySQL(server.DSN("test"), 1)
	if err != nil {
		t.Fatal(err)
	}
	m := NewMeter(db)
	defer m.Close(context.Background())
	before, err := m.Counters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	commit(t, db, 10)
	after, err := m.Counters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := after.Since(before, 10); d.Commits < 10 || d.Fsyncs == 0 || d.LogWrites == 0 || d.LogBytes == 0 || d.LogRecords == 0 {
		t.Errorf("counters = %+v", *d)
	}
	info, err := m.Server(t.Context())
	if err != nil || info.Name != "MariaDB" || info.Version == "" || info.Settings["innodb_flush_log_at_trx_commit"] != "1" || info.Settings["version"] != "" {
		t.Errorf("server = %+v, %v", info, err)
	}
}

func TestOpenRefusesWhatTheLoadCannot(t *testing.T) {
	if _, err := OpenMySQL("mysql://root@127.0.0.1/test?ssl-mode=REQUIRED", 1); err == nil || !strings.Contains(err.Error(), "without TLS") {
		t.Errorf("TLS: %v", err)
	}
	if _, err := OpenPostgres("postgres://[::1", 1); err == nil {
		t.Error("half a URL was accepted")
	}
}
