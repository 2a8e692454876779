package pgrepl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

func TestConnectByEveryWay(t *testing.T) {
	for _, tt := range []struct {
		auth lab.Auth
		tls  lab.TLSMode
	}{{lab.SCRAM, lab.TLSRequired}, {lab.MD5, lab.TLSOff}, {lab.Password, lab.TLSOff}} {
		t.Run(string(tt.auth), func(t *testing.T) {
			p := labtest.Postgres(t, lab.PostgresConfig{
				Durability: lab.Fast, SharedBuffers: "16MB", Preload: []string{}, Auth: tt.auth, TLS: tt.tls,
				Settings: map[string]string{"wal_level": "logical"},
			})
			sql := outbox(t, p, "s")
			tl, _ := tail(t, config(t, p), TailConfig{Slot: "s"})
			run(t, sql, "insert into outbox values (1, 'x')")
			want(t, tl, "insert 1,x", "commit")
			// A stream over TLS takes interruptions as well.
			short, cancel := context.WithTimeout(patient(t), 20*time.Millisecond)
			defer cancel()
			if e, err := tl.Next(short); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%+v, %v", e, err)
			}
			run(t, sql, "insert into outbox values (2, 'x')")
			want(t, tl, "insert 2,x", "commit")
			c := connect(t, config(t, p), Physical)
			r := startReceiving(t, c, ReceiveConfig{Synchronous: true}, newShelf())
			churn(t, sql)
			r.stop()
		})
	}
}

func TestIdentifyAndShow(t *testing.T) {
	p := sharedServer(t)
	for mode, db := range map[Mode]string{Logical: "postgres", Physical: ""} {
		c := connect(t, config(t, p), mode)
		s, err := c.Identify(patient(t))
		if err != nil || s.ID == "" || s.Timeline != 1 || s.Flushed == 0 || s.Database != db {
			t.Errorf("%s: %+v, %v", mode, s, err)
		}
		if size, err := c.SegmentSize(patient(t)); err != nil || size != 16<<20 {
			t.Errorf("%s: segments of %d bytes, %v", mode, size, err)
		}
		if v, err := c.Show(patient(t), "no_such_setting"); pgwire.CodeOf(err) != "42704" {
			t.Errorf("%s: %q, %v", mode, v, err)
		}
		if v, err := c.Show(patient(t), "x; DROP"); err == nil {
			t.Errorf("%s: %q", mode, v)
		}
		if !strings.HasPrefix(p.Version(), fmt.Sprintf("%d.%d", c.Version()/10000, c.Version()%10000)) || c.Mode() != mode || c.PID() == 0 {
			t.Errorf("version %d of %s, mode %s, pid %d", c.Version(), p.Version(), c.Mode(), c.PID())
		}
	}
	c := connect(t, config(t, p), Logical)
	results, err := c.Query(patient(t), "select 1 as one, null as none; update pg_class set relname = relname where false; ; select 2 where false")
	if err != nil || len(results) != 3 || string(results[0].Rows[0][0]) != "1" || results[0].Rows[0][1] != nil ||
		results[0].Fields[1].Name != "none" || results[1].Tag != "UPDATE 0" || len(results[2].Rows) != 0 || results[2].Tag != "SELECT 0" {
		t.Errorf("%+v, %v", results, err)
	}
	if _, err := c.Query(patient(t), "select 1/0"); pgwire.CodeOf(err) != "22012" {
		t.Errorf("%v", err)
	}
	if _, err := c.Query(patient(t), "select \x00"); err == nil {
		t.Error("a NUL byte was sent")
	}
	// A notice that is in between is no answer.
	if got := run(t, c, "do $$ begin raise notice 'x'; end $$", "set timezone = 'UTC'", "select 'usable'"); got != "usable" {
		t.Error(got)
	}
	if _, err := connect(t, config(t, p), Physical).Query(patient(t), "select 1"); err == nil {
		t.Error("SQL on a physical connection")
	}
}

func TestSlots(t *testing.T) {
	p := server(t, nil)
	sql := connect(t, config(t, p), SQL)
	count := func() string { return run(t, sql, "select count(*) from pg_replication_slots") }
	run(t, sql, "create table seen as select 1 as i")
	c := connect(t, config(t, p), Logical)
	slot, err := c.CreateSlot(patient(t), SlotConfig{Name: "exports", Kind: LogicalSlot, Snapshot: ExportSnapshot})
	if err != nil || slot.Name != "exports" || slot.Start == 0 || slot.Snapshot == "" {
		t.Fatalf("%+v, %v", slot, err)
	}
	run(t, sql, "insert into seen values (2)")
	if got := run(t, sql, "begin isolation level repeatable read", "set transaction snapshot "+literal(slot.Snapshot), "select count(*) from seen"); got != "1" {
		t.Errorf("the snapshot sees %s rows", got)
	}
	run(t, sql, "commit")

	run(t, c, "begin isolation level repeatable read read only")
	used, err := c.CreateSlot(patient(t), SlotConfig{Name: "uses", Kind: LogicalSlot, Temporary: true, Snapshot: UseSnapshot})
	if err != nil || used.Snapshot != "" || used.Start <= slot.Start {
		t.Fatalf("%+v, %v", used, err)
	}
	run(t, sql, "insert into seen values (3)")
	if got := run(t, c, "select count(*) from seen"); got != "2" {
		t.Errorf("the snapshot sees %s rows", got)
	}
	run(t, c, "commit")

	physical := connect(t, config(t, p), Physical)
	if slot, err := physical.CreateSlot(patient(t), SlotConfig{Name: "idle", Kind: PhysicalSlot}); err != nil || slot.Start != 0 {
		t.Errorf("%+v, %v", slot, err)
	}
	if _, err := physical.CreateSlot(patient(t), SlotConfig{Name: "kept", Kind: PhysicalSlot, Reserve: true, Temporary: true}); err != nil {
		t.Error(err)
	}
	if got := count(); got != "4" {
		t.Errorf("%s slots", got)
	}
	t.Run("read", func(t *testing.T) {
		if physical.Version() < 150000 {
			if _, _, err := physical.ReadSlot(patient(t), "kept"); !errors.Is(err, ErrVersion) {
				t.Errorf("on an old server: %v", err)
			}
			return
		}
		if at, found, err := physical.ReadSlot(patient(t), "kept"); err != nil || !found || at.Restart == 0 || at.Timeline != 1 {
			t.Errorf("%+v, %v, %v", at, found, err)
		}
		if at, found, err := physical.ReadSlot(patient(t), "idle"); err != nil || !found || at != (SlotPosition{}) {
			t.Errorf("%+v, %v, %v", at, found, err)
		}
		if at, found, err := physical.ReadSlot(patient(t), "none"); err != nil || found {
			t.Errorf("%+v, %v, %v", at, found, err)
		}
		if _, _, err := physical.ReadSlot(patient(t), "exports"); err == nil {
			t.Error("the position of a logical slot")
		}
	})
	// Temporary slots vanish with their connections.
	if err := errors.Join(c.Close(), physical.Close()); err != nil {
		t.Error(err)
	}
	testkit.Eventually(t, "the temporary slots are gone", func() bool { return count() == "2" })
	c = connect(t, config(t, p), Logical)
	if err := errors.Join(c.DropSlot(patient(t), "exports", false), c.DropSlot(patient(t), "idle", true)); err != nil {
		t.Error(err)
	}
	if err := c.DropSlot(patient(t), "exports", false); pgwire.CodeOf(err) != "42704" {
		t.Errorf("dropped twice: %v", err)
	}
	if got := count(); got != "0" {
		t.Errorf("%s slots", got)
	}
}

func TestEnsurePublication(t *testing.T) {
	p := server(t, nil)
	sql := outbox(t, p, "s")
	table := Table{"public", "outbox"}
	ensure := func(c *Conn, name string, table Table) error {
		created, err := EnsurePublication(patient(t), c, name, table)
		if created && err != nil {
			t.Errorf("%s: created, and %v", name, err)
		}
		return err
	}
	if created, err := EnsurePublication(patient(t), sql, "box", table); err != nil || created {
		t.Errorf("a second time: %v, %v", created, err)
	}
	if got := run(t, sql, "select concat(pubinsert, pubupdate, pubdelete, pubtruncate) from pg_publication where pubname = 'box'"); got != "tfff" {
		t.Errorf("publishes %s", got)
	}
	run(t, sql, `create table "odd ""name" (id int)`, "create publication updates for table outbox with (publish = 'update')",
		"create publication other for table \"odd \"\"name\"", "create publication every for all tables",
		"create role app login", "create table mine (id int)", "alter table mine owner to app")
	if err := ensure(sql, `it's "odd"`, Table{"public", `odd "name`}); err != nil {
		t.Error(err)
	}
	if err := ensure(sql, "every", table); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]string{"updates": "does not publish inserts", "other": "does not have the table"} {
		if err := ensure(sql, name, table); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := ensure(sql, "new", Table{"public", "none"}); pgwire.CodeOf(err) != pgwire.CodeUndefinedTable {
		t.Errorf("no table: %v", err)
	}
	if sql.Version() >= 150000 {
		run(t, sql, "create publication rows for table outbox where (id > 5)", "create publication cols for table outbox (id)")
		for _, name := range []string{"rows", "cols"} {
			if err := ensure(sql, name, table); err == nil || !strings.Contains(err.Error(), "leaves out") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	run(t, sql, "create table again (id int)")
	again := Table{"public", "again"}
	if err := ensure(sql, "again", again); err != nil {
		t.Error(err)
	}
	run(t, sql, "drop table again", "create table again (id int)")
	for range 2 {
		if err := ensure(sql, "again", again); err != nil {
			t.Errorf("a table that was made anew: %v", err)
		}
	}
	if got := run(t, sql, "select tablename from pg_publication_tables where pubname = 'again'"); got != "again" {
		t.Errorf("after the table was made anew %q is published", got)
	}
	run(t, sql, "create publication updates_alone with (publish = 'update')")
	if err := ensure(sql, "updates_alone", again); err == nil {
		t.Error("a publication of updates got a table")
	}
	cfg := config(t, p)
	cfg.User = "app"
	app := connect(t, cfg, SQL)
	if err := ensure(app, "mine", Table{"public", "mine"}); pgwire.CodeOf(err) != codeInsufficientPrivilege || !strings.Contains(err.Error(), "CREATE on the database") {
		t.Errorf("without rights: %v", err)
	}
	run(t, sql, "grant create on database postgres to app")
	if err := ensure(app, "mine", Table{"public", "mine"}); err != nil {
		t.Error(err)
	}
	if err := ensure(app, "theirs", table); pgwire.CodeOf(err) != codeInsufficientPrivilege {
		t.Errorf("another's table: %v", err)
	}
}

// Rows of a partitioned table come under its own name.
func TestTailOfAPartitionedTable(t *testing.T) {
	p := sharedServer(t)
	sql := outbox(t, p, "s")
	run(t, sql, "create table parts (id int) partition by range (id)", "create table low partition of parts for values from (0) to (10)",
		"create table high partition of parts for values from (10) to (20)")
	skipBefore(t, sql, 130000, "publications of partitioned tables")
	table := Table{"public", "parts"}
	for i, want := range []bool{true, false} {
		if created, err := EnsurePublication(patient(t), sql, "parts", table); err != nil || created != want {
			t.Fatalf("%d: created %v, %v", i, created, err)
		}
	}
	tl, _ := tail(t, config(t, p), TailConfig{Slot: "s", Publications: []string{"parts"}, Tables: []Table{table}})
	run(t, sql, "insert into parts values (1), (11)", "alter table parts detach partition low", "insert into parts values (12)")
	want(t, tl, "insert 1", "insert 11", "commit", "insert 12", "commit")
}

func TestProbe(t *testing.T) {
	p := server(t, map[string]string{"max_replication_slots": "1", "max_slot_wal_keep_size": "100MB"})
	sql := connect(t, config(t, p), SQL)
	run(t, sql, "create table outbox (id int)", "create unlogged table fleeting (id int)", "create view v as select 1 as i",
		"create role app login", "create role repl login replication", "grant create on database postgres to app, repl",
		"create table mine (id int)", "alter table mine owner to repl", "create publication updates for table outbox with (publish = 'update')")
	probe := func(user, table, publication, slot string) *Report {
		t.Helper()
		cfg := config(t, p)
		cfg.User = user
		r, err := Probe(patient(t), cfg, ProbeConfig{Table: Table{"public", table}, Publication: publication, Slot: slot})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	check := func(name string, r *Report, want ...string) {
		t.Helper()
		var got []string
		for _, f := range r.Obstacles {
			got = append(got, f.About)
		}
		if diff := cmp.Diff(want, got); diff != "" || r.Possible() != (len(want) == 0) {
			t.Errorf("%s: obstacles (-want +got):\n%s%s", name, diff, r.Reason())
		}
	}
	r := probe("postgres", "outbox", "box", "s")
	check("all is well", r)
	if r.PublicationExists || r.SlotExists || r.Version != sql.Version() || r.Reason() != "" {
		t.Errorf("%+v", r)
	}
	if sql.Version() >= 130000 && (len(r.Warnings) == 0 || !strings.Contains(r.Warnings[0].String(), "100MB")) {
		t.Errorf("warnings %v", r.Warnings)
	}
	check("repl may", probe("repl", "mine", "box", ""))
	check("no table", probe("postgres", "none", "box", ""), "table")
	check("unlogged", probe("postgres", "fleeting", "box", ""), "table")
	check("a view", probe("postgres", "v", "box", ""), "table")
	run(t, sql, "create publication lost")
	check("a publication that has lost its table", probe("postgres", "outbox", "lost", ""))
	check("the same of others", probe("repl", "outbox", "lost", ""), "publication")
	check("a publication of updates", probe("postgres", "outbox", "updates", ""), "publication")
	check("another's table", probe("repl", "outbox", "box", ""), "publication")
	check("a bad slot name", probe("postgres", "outbox", "box", "A"), "slot")
	cfg := config(t, p)
	cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		return &middlebox{Conn: c}, err
	}
	r, err := Probe(patient(t), cfg, ProbeConfig{Table: Table{"public", "outbox"}, Publication: "box"})
	if err != nil {
		t.Fatal(err)
	}
	check("a middlebox that closes replication connections", r, "connection")
	r = probe("app", "outbox", "box", "")
	check("no right at all", r, "publication", "connection")
	if !strings.Contains(r.Reason(), `ALTER ROLE "app" REPLICATION`) {
		t.Error(r.Reason())
	}
	run(t, sql, "create role rds_replication")
	if r := probe("app", "outbox", "box", ""); !strings.Contains(r.Reason(), "GRANT rds_replication") {
		t.Error(r.Reason())
	}
	run(t, sql, "revoke create on database postgres from repl")
	if r := probe("repl", "mine", "box", ""); !strings.Contains(r.Reason(), `GRANT CREATE ON DATABASE "postgres" TO "repl"`) {
		t.Error(r.Reason())
	}

	c := connect(t, config(t, p), Logical)
	if _, err := c.CreateSlot(patient(t), SlotConfig{Name: "s", Kind: LogicalSlot}); err != nil {
		t.Fatal(err)
	}
	check("no slot is free", probe("postgres", "outbox", "box", "another"), "max_replication_slots")
	check("the slot is ours", probe("postgres", "outbox", "box", "s"))
	run(t, sql, "create database other")
	cfg = config(t, p)
	cfg.Database = "other"
	r, err = Probe(patient(t), cfg, ProbeConfig{Table: Table{"pg_catalog", "pg_class"}, Publication: "box", Slot: "s"})
	if err != nil {
		t.Fatal(err)
	}
	check("a slot of another database", r, "slot")
	if err := c.DropSlot(patient(t), "s", false); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateSlot(patient(t), SlotConfig{Name: "s", Kind: PhysicalSlot}); err != nil {
		t.Fatal(err)
	}
	check("a physical slot", probe("postgres", "outbox", "box", "s"), "slot")
}

// middlebox closes a replication connection instead of sending an error.
type middlebox struct {
	net.Conn
	closed bool
}

func (m *middlebox) Write(b []byte) (int, error) {
	m.closed = m.closed || bytes.Contains(b, []byte("\x00replication\x00"))
	return m.Conn.Write(b)
}

func (m *middlebox) Read(b []byte) (int, error) {
	if m.closed {
		return 0, io.EOF
	}
	return m.Conn.Read(b)
}

func TestProbeAsksOldServersNothing(t *testing.T) {
	c, _ := scripted(t)
	c.version = 110022
	p := &prober{conn: c, report: &Report{}}
	if err := p.run(patient(t)); err != nil || !strings.Contains(p.report.Reason(), "supported from PostgreSQL 12") {
		t.Errorf("%v, obstacles: %s", err, p.report.Reason())
	}
}

func TestProbeOfAServerThatDoesNotDecode(t *testing.T) {
	p := server(t, map[string]string{"wal_level": "replica", "max_wal_senders": "1", "max_replication_slots": "1"})
	sql := connect(t, config(t, p), SQL)
	run(t, sql, "create table outbox (id int)")
	c := connect(t, config(t, p), Physical)
	startReceiving(t, c, ReceiveConfig{}, newShelf())
	testkit.Eventually(t, "the only sender is busy", func() bool { return run(t, sql, "select count(*) from pg_stat_replication") == "1" })
	r, err := Probe(patient(t), config(t, p), ProbeConfig{Table: Table{"public", "outbox"}, Publication: "box"})
	if err != nil {
		t.Fatal(err)
	}
	var about []string
	for _, f := range r.Obstacles {
		about = append(about, f.About)
	}
	if diff := cmp.Diff([]string{"wal_level", "max_wal_senders", "connection"}, about); diff != "" {
		t.Errorf("obstacles (-want +got):\n%s%s", diff, r.Reason())
	}
	unlimited := false
	for _, f := range r.Warnings {
		unlimited = unlimited || strings.Contains(f.Reason, "unlimited")
	}
	if !unlimited && sql.Version() >= 130000 {
		t.Errorf("warnings %v", r.Warnings)
	}
	p.Kill()
	if r, err := Probe(patient(t), config(t, p), ProbeConfig{}); err == nil {
		t.Errorf("%+v of a server that is gone", r)
	}
}
