package pgrepl

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// standard are the settings of a server that decodes its log.
var standard = map[string]string{
	"wal_level": "logical", "max_replication_slots": "5", "max_wal_senders": "5",
	"wal_keep_size": "0", "autovacuum": "off", "synchronous_commit": "on",
}

// server starts a PostgreSQL with the standard settings and others.
func server(t testing.TB, settings map[string]string) *lab.Postgres {
	t.Helper()
	all := maps.Clone(standard)
	maps.Copy(all, settings)
	return labtest.Postgres(t, settingsOf(all))
}

func settingsOf(all map[string]string) lab.PostgresConfig {
	return lab.PostgresConfig{Durability: lab.Fast, SharedBuffers: "16MB", Preload: []string{}, Settings: all}
}

var shared = labtest.Share(func(ctx context.Context) (*lab.Postgres, error) { return lab.StartPostgres(ctx, settingsOf(standard)) })

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// sharedServer returns the server of tests that only tail tables. It drops what earlier tests
// have created in database postgres, and their slots.
func sharedServer(t testing.TB) *lab.Postgres {
	t.Helper()
	p := shared.Get(t)
	sql := connect(t, config(t, p), SQL)
	testkit.Eventually(t, "the sessions of the last test have ended", func() bool {
		return run(t, sql, "select count(pg_terminate_backend(pid)) from pg_stat_activity where pid <> pg_backend_pid() and backend_type in ('client backend', 'walsender')") == "0"
	})
	run(t, sql, "select pg_drop_replication_slot(slot_name) from pg_replication_slots", `do $$ declare name text; begin
		for name in select pubname from pg_publication loop execute format('drop publication %I', name); end loop;
		drop schema if exists public, other cascade;
		create schema public;
	end $$`)
	return p
}

// config reaches the server's database postgres as its superuser, through
// another address if one is given.
func config(t testing.TB, p *lab.Postgres, address ...string) pgwire.ConnectConfig {
	t.Helper()
	cfg, err := pgwire.ParseDSN(p.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	if len(address) > 0 {
		cfg.Address = address[0]
	}
	return cfg
}

// connect opens a connection for the length of the test.
func connect(t testing.TB, cfg pgwire.ConnectConfig, mode Mode) *Conn {
	t.Helper()
	c, err := Connect(patient(t), cfg, mode)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// patient is a context that ends with the test, and keeps a hang from eating the
// deadline of all tests.
func patient(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	t.Cleanup(cancel)
	return ctx
}

// run executes statements one by one and returns the first column of the last
// row of the last of them, "" for none.
func run(t testing.TB, c *Conn, statements ...string) string {
	t.Helper()
	var answer string
	for _, sql := range statements {
		results, err := c.Query(patient(t), sql)
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		answer = ""
		for _, r := range results {
			for _, row := range r.Rows {
				answer = string(row[0])
			}
		}
	}
	return answer
}

// askLSN asks for a log position.
func askLSN(t testing.TB, c *Conn, sql string) LSN {
	t.Helper()
	l, err := ParseLSN(run(t, c, sql))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// outbox makes table outbox(id, body), its publication and a slot.
func outbox(t testing.TB, p *lab.Postgres, slot string) (sql *Conn) {
	t.Helper()
	sql = connect(t, config(t, p), SQL)
	run(t, sql, "create table outbox (id int primary key, body text)")
	if created, err := EnsurePublication(patient(t), sql, "box", Table{"public", "outbox"}); err != nil || !created {
		t.Fatalf("created %v, %v", created, err)
	}
	c := connect(t, config(t, p), Logical)
	if _, err := c.CreateSlot(patient(t), SlotConfig{Name: slot, Kind: LogicalSlot}); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	return sql
}

// tail starts to tail table outbox on a connection of its own.
func tail(t testing.TB, cfg pgwire.ConnectConfig, tc TailConfig) (*Tail, *Conn) {
	t.Helper()
	c := connect(t, cfg, Logical)
	if tc.Publications == nil {
		tc.Publications = []string{"box"}
	}
	tl, err := c.StartTail(patient(t), tc)
	if err != nil {
		t.Fatal(err)
	}
	return tl, c
}

// line writes an event as one line that a person can read.
func line(e *Event) string {
	values := func(row []Value) string {
		var all []string
		for _, v := range row {
			switch v.Kind {
			case Text:
				all = append(all, string(v.Data))
			case Binary:
				all = append(all, fmt.Sprintf("%x", v.Data))
			default:
				all = append(all, string(v.Kind))
			}
		}
		return strings.Join(all, ",")
	}
	switch e.Kind {
	case EventInsert:
		return "insert " + values(e.New)
	case EventUpdate:
		if e.OldKind == OldNone {
			return "update to " + values(e.New)
		}
		return fmt.Sprintf("update %c %s to %s", e.OldKind, values(e.Old), values(e.New))
	case EventDelete:
		return fmt.Sprintf("delete %c %s", e.OldKind, values(e.Old))
	case EventTruncate:
		return "truncate " + e.Relation.Name
	case EventMessage:
		return fmt.Sprintf("message %s %s %v", e.Message.Prefix, e.Message.Content, e.Message.Transactional)
	case EventCommit:
		return "commit"
	}
	return fmt.Sprint("event ", e.Kind)
}

// receive returns the next n events as lines, and the End of the last that had
// one.
func receive(t testing.TB, tl *Tail, n int) (lines []string, end LSN) {
	t.Helper()
	ctx := patient(t)
	for len(lines) < n {
		e, err := tl.Next(ctx)
		if err != nil {
			t.Fatalf("after %q: %v", lines, err)
		}
		lines = append(lines, line(e))
		if e.End != 0 {
			end = e.End
		}
	}
	return lines, end
}

// chownLike gives a file to the owner of another: the server's user.
func chownLike(t testing.TB, like, path string) {
	t.Helper()
	info, err := os.Stat(like)
	if err != nil {
		t.Fatal(err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		t.Fatalf("owner of %s: unknown on this system", like)
	}
	if err := os.Chown(path, int(owner.Uid), int(owner.Gid)); err != nil {
		t.Fatal(err)
	}
}
