package binlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// target is one of the servers that the tests of this package share. They run
// one after the other: the log is the server's.
type target struct {
	*lab.MySQL
}

// The servers are started when a test first needs them, and live until the last
// test has ended.
var shared = struct {
	mu   sync.Mutex
	live map[lab.Flavor]target
}{live: map[lab.Flavor]target{}}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, s := range shared.live {
		if err := s.Discard(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// eachServer runs f with MariaDB, and with MySQL where it is installed.
func eachServer(t *testing.T, f func(t *testing.T, s target)) {
	t.Run("mariadb", func(t *testing.T) { f(t, server(t, lab.FlavorMariaDB)) })
	t.Run("mysql", func(t *testing.T) { f(t, server(t, lab.FlavorMySQL)) })
}

func server(t testing.TB, flavor lab.Flavor) target {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if s, ok := shared.live[flavor]; ok {
		return s
	}
	begin, cfg := lab.StartMariaDB, lab.MySQLConfig{Durability: lab.Fast, Light: true}
	if flavor == lab.FlavorMySQL {
		labtest.RequireMySQL(t)
		begin = lab.StartMySQL
		cfg.Settings = map[string]string{"gtid-mode": "ON", "enforce-gtid-consistency": "ON"}
		cfg.TLS = lab.TLSOptional // the streams use it, those of MariaDB do not
	} else {
		labtest.RequireMariaDB(t)
	}
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	defer cancel()
	m, err := begin(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	shared.live[flavor] = target{m}
	return target{m}
}

func (s target) maria() bool { return s.Flavor() == lab.FlavorMariaDB }

func (s target) config() mywire.ConnectConfig {
	return mywire.ConnectConfig{Address: s.Addr(), User: s.User()}
}

// session opens a session that ends with the test.
func (s target) session(t testing.TB) *mywire.Server {
	t.Helper()
	c, err := mywire.Connect(t.Context(), s.config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// database makes an empty database of the test's own, and a session that uses it.
func (s target) database(t testing.TB) (name string, c *mywire.Server) {
	t.Helper()
	c = s.session(t)
	name = "db_" + strings.NewReplacer("/", "_", "#", "_").Replace(strings.ToLower(t.Name()))
	name = name[:min(len(name), 60)]
	s.quiet(t, c)
	run(t, c, "DROP DATABASE IF EXISTS "+name, "CREATE DATABASE "+name, "USE "+name)
	return name, c
}

// quiet waits until the server writes nothing by itself: some time after a rotation MariaDB
// records in the new file that the old one is no longer needed, which moves the end of the log
// without any change.
func (s target) quiet(t testing.TB, c *mywire.Server) {
	t.Helper()
	if !s.maria() {
		return
	}
	var file, needed string
	testkit.Await(t, func() bool {
		file, needed = s.end(t, c).File, ""
		events, err := c.Query(t.Context(), "SHOW BINLOG EVENTS IN '"+file+"'")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events { // file, position, type, server, end, information
			if e[2].String == "Binlog_checkpoint" {
				needed = e[5].String
			}
		}
		return needed == file
	}, func() string { return fmt.Sprintf("%s needs %q for ever", file, needed) })
}

func run(t testing.TB, c *mywire.Server, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		if _, err := c.Query(t.Context(), sql); err != nil {
			t.Fatalf("%.200s: %v", sql, err)
		}
	}
}

// one returns the single value that a query yields.
func one(t testing.TB, c *mywire.Server, sql string) string {
	t.Helper()
	rows, err := c.Query(t.Context(), sql)
	if err != nil {
		t.Fatalf("%.200s: %v", sql, err)
	}
	if len(rows) != 1 || len(rows[0]) != 1 {
		t.Fatalf("%.200s: %v, want one value", sql, rows)
	}
	return rows[0][0].String
}

// end returns the current end of the log.
func (s target) end(t testing.TB, c *mywire.Server) Position {
	t.Helper()
	end, err := currentEnd(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return end.pos
}

// stream opens a stream that ends with the test.
func (s target) stream(t testing.TB, cfg StreamConfig) *Stream {
	t.Helper()
	if cfg.Server.Address == "" {
		cfg.Server = s.config()
	}
	if cfg.Heartbeat == 0 {
		cfg.Heartbeat = 100 * time.Millisecond // by which servers notice that a stream is gone
	}
	st, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return st
}

// log returns what is in the log from a start to its current end, one line for
// each record.
func (s target) log(t testing.TB, start Start, cfg ReaderConfig) []string {
	t.Helper()
	return lines(t, NewReader(s.stream(t, StreamConfig{Start: start, NonBlocking: true}), cfg))
}

func lines(t testing.TB, r *Reader) []string {
	t.Helper()
	var out []string
	for {
		rec, err := r.Next(t.Context())
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatalf("after %q: %v", out, err)
		}
		out = append(out, describe(t, rec)...)
	}
}

// describe renders a record: as a line, or as one for each row.
func describe(t testing.TB, rec *Record) []string {
	t.Helper()
	switch rec.Kind {
	case Begin:
		return []string{"begin"}
	case Statement:
		return []string{"statement " + rec.Query.SQL}
	case Commit:
		return []string{"commit"}
	case Rollback:
		return []string{"rollback"}
	case Prepare:
		return []string{"prepare " + rec.XID}
	case Heartbeat:
		return []string{"heartbeat"}
	}
	var out []string
	for rec.Rows.Next() {
		line := strings.ToLower(rec.Rows.Action.String()) + " " + rec.Rows.Table.Name
		if rec.Rows.Before != nil {
			line += " " + tuple(rec.Rows.Before)
		}
		if rec.Rows.Action == Update {
			line += " ->"
		}
		if rec.Rows.After != nil {
			line += " " + tuple(rec.Rows.After)
		}
		out = append(out, line)
	}
	if err := rec.Rows.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

func tuple(row Row) string {
	var values []string
	for _, v := range row {
		switch v.Kind() {
		case KindAbsent:
			values = append(values, "-")
		case KindNull:
			values = append(values, "NULL")
		default:
			values = append(values, string(v.AppendText(nil)))
		}
	}
	return "(" + strings.Join(values, ",") + ")"
}

// in chooses the tables of one database.
func in(schema string) func(string, string) bool {
	return func(s, _ string) bool { return s == schema }
}
