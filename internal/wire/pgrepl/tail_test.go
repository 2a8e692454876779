package pgrepl

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

func want(t testing.TB, tl *Tail, lines ...string) (end LSN) {
	t.Helper()
	got, end := receive(t, tl, len(lines))
	if diff := cmp.Diff(lines, got); diff != "" {
		t.Fatalf("events (-want +got):\n%s", diff)
	}
	return end
}

func TestTailFollowsCommits(t *testing.T) {
	p := sharedServer(t)
	a := outbox(t, p, "s")
	b := connect(t, config(t, p), SQL)
	// The table that begins first commits last; the second is rolled back in
	// part, the third as a whole.
	run(t, a, "begin", "insert into outbox values (1, 'a')")
	run(t, b, "begin", "insert into outbox values (2, 'b')", "savepoint x",
		"insert into outbox values (3, 'gone')", "rollback to x", "insert into outbox values (4, null), (5, '')", "commit")
	run(t, b, "begin", "insert into outbox values (6, 'gone')", "rollback")
	run(t, a, "insert into outbox values (7, 'c')", "commit")
	tl, _ := tail(t, config(t, p), TailConfig{Slot: "s"})
	want(t, tl, "insert 2,b", "insert 4,n", "insert 5,", "commit", "insert 1,a", "insert 7,c", "commit")
	var r *Relation
	for _, r = range tl.decoder.relations { // there is one
	}
	if r == nil || r.Namespace != "public" || r.Name != "outbox" ||
		r.Column("body") != 1 || r.Column("none") != -1 || !r.Columns[0].Key || r.Columns[1].TypeOID != 25 {
		t.Errorf("relation %+v", r)
	}
}

func TestTailSaysWhenAndWhere(t *testing.T) {
	p := sharedServer(t)
	sql := outbox(t, p, "s")
	tl, _ := tail(t, config(t, p), TailConfig{Slot: "s"})
	before := time.Now()
	run(t, sql, "begin", "insert into outbox values (1, 'a')")
	xid := run(t, sql, "select txid_current()")
	run(t, sql, "commit")
	end := askLSN(t, sql, "select pg_current_wal_insert_lsn()")
	ctx := patient(t)
	row, err := tl.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	tx := row.Tx
	if row.End != 0 || tx == nil || fmt.Sprint(tx.XID) != xid || tx.CommitLSN == 0 || tx.CommitLSN >= end {
		t.Errorf("row %+v, transaction %+v, log ends at %s, xid %s", row, tx, end, xid)
	}
	if d := tx.Time.Sub(before); d < -time.Second || d > labtest.Patience {
		t.Errorf("committed %v after we began", d)
	}
	commit, err := tl.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if commit.Kind != EventCommit || commit.Tx != tx || commit.End <= tx.CommitLSN || commit.End > end {
		t.Errorf("commit %+v of %+v, log ends at %s", commit, tx, end)
	}
}

func TestTailAllKindsOfChange(t *testing.T) {
	p := sharedServer(t)
	sql := outbox(t, p, "s")
	long := strings.Repeat("0123456789abcdef", 1024)
	run(t, sql, "create type mood as enum ('sad', 'ok')",
		"create table t (id int primary key, v int, long text, m mood)", "alter table t alter long set storage external",
		"create table f (id int, v int)", "alter table f replica identity full",
		"create table u (id int primary key)",
		"create publication every for table t, f, u",
		"insert into t values (1, 1, repeat('0123456789abcdef', 1024), 'ok')",
		"update t set v = 2", "update t set id = 2", "delete from t",
		"insert into f values (1, 1)", "update f set v = 2", "delete from f",
		"truncate t, f, u",
		"alter table t add column w int default 7, drop column v",
		"insert into t values (3, 'short', 'sad')")
	tl, _ := tail(t, config(t, p), TailConfig{Slot: "s", Publications: []string{"every"}})
	want(t, tl,
		"insert 1,1,"+long+",ok", "commit", "update to 1,2,u,ok", "commit",
		"update K 1,n,n,n to 2,2,u,ok", "commit", "delete K 2,n,n,n", "commit",
		"insert 1,1", "commit", "update O 1,1 to 1,2", "commit", "delete O 1,2", "commit",
		"truncate t", "truncate f", "truncate u", "commit",
		"insert 3,short,sad,7", "commit")
}

func TestTailLeavesOutOtherTables(t *testing.T) {
	p := sharedServer(t)
	sql := outbox(t, p, "s")
	run(t, sql, "create schema other", "create table other.outbox (id int)", "create table noise (id int)",
		"create publication every for table outbox, other.outbox, noise",
		"insert into noise values (1), (2)", "begin", "insert into other.outbox values (3)", "insert into outbox values (4, 'x')",
		"insert into noise values (5)", "commit", "truncate noise, outbox", "insert into noise values (6)",
		"insert into outbox values (7, 'y')")
	tl, _ := tail(t, config(t, p), TailConfig{Slot: "s", Publications: []string{"every"}, Tables: []Table{{"public", "outbox"}}})
	want(t, tl, "insert 4,x", "commit", "truncate outbox", "commit", "insert 7,y", "commit")
}

func TestTailBinary(t *testing.T) {
	p := sharedServer(t)
	sql := outbox(t, p, "s")
	skipBefore(t, sql, 140000, "binary values in pgoutput")
	tl, _ := tail(t, config(t, p), TailConfig{Slot: "s", Binary: true})
	run(t, sql, "insert into outbox values (258, 'AB')")
	want(t, tl, "insert 00000102,4142", "commit")
}

// skipBefore skips what a server's version does not have.
func skipBefore(t *testing.T, c *Conn, version int, what string) {
	t.Helper()
	if c.Version() < version {
		t.Skipf("PostgreSQL %d has no %s", c.Version()/10000, what)
	}
}

func TestTailMessages(t *testing.T) {
	p := sharedServer(t)
	sql := outbox(t, p, "s")
	skipBefore(t, sql, 140000, "messages in pgoutput")
	cfg := TailConfig{Slot: "s", Messages: []string{"weir"}}
	tl, c := tail(t, config(t, p), cfg)
	run(t, sql, "begin", "select pg_logical_emit_message(true, 'weir', 'in')", "select pg_logical_emit_message(false, 'weir', 'out')",
		"select pg_logical_emit_message(true, 'else', 'x')", "commit",
		"begin", "select pg_logical_emit_message(true, 'weir', 'gone')", "select pg_logical_emit_message(false, 'weir', 'stays')", "rollback")
	want(t, tl, "message weir out false", "message weir in true", "commit")
	end := want(t, tl, "message weir stays false")
	tl.Confirm(end)
	if err := tl.End(patient(t)); err != nil {
		t.Fatal(err)
	}
	run(t, sql, "select pg_logical_emit_message(false, 'weir', 'next')")
	_ = c.Close()
	idle(t, sql, "s")
	tl, _ = tail(t, config(t, p), cfg)
	want(t, tl, "message weir next false")
}

func TestTailLargeTransaction(t *testing.T) {
	p := server(t, map[string]string{"logical_decoding_work_mem": "64kB"})
	sql := outbox(t, p, "s")
	const rows = 20000
	run(t, sql, fmt.Sprintf("insert into outbox select i, repeat('x', 200) from generate_series(1, %d) i", rows), "insert into outbox values (0, '')")
	tl, _ := tail(t, config(t, p), TailConfig{Slot: "s"})
	ctx := patient(t)
	for i := 1; i <= rows; i++ {
		e, err := tl.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind != EventInsert || string(e.New[0].Data) != fmt.Sprint(i) || len(e.New[1].Data) != 200 {
			t.Fatalf("event %d: %s", i, line(e))
		}
	}
	want(t, tl, "commit", "insert 0,", "commit")
}

func TestTailLongRow(t *testing.T) {
	p := sharedServer(t)
	sql := outbox(t, p, "s")
	run(t, sql, "insert into outbox select 1, repeat('long ', 1000000)", "insert into outbox values (2, 'short')")
	tl, c := tail(t, config(t, p), TailConfig{Slot: "s"})
	want(t, tl, "insert 1,"+strings.Repeat("long ", 1000000), "commit", "insert 2,short", "commit")
	testkit.Eventually(t, "the buffer is of its normal size", func() bool {
		run(t, sql, "insert into outbox select coalesce(max(id), 0) + 1 from outbox")
		receive(t, tl, 2)
		return len(c.buf) == bufferSize
	})
}

// An event that is not confirmed comes again, and one that is confirmed does
// not, however the connection ended.
func TestTailResumes(t *testing.T) {
	p := sharedServer(t)
	sql := outbox(t, p, "s")
	relay := labtest.Relay(t, p.Addr())
	next := 0
	insert := func() string {
		next++
		run(t, sql, fmt.Sprintf("insert into outbox values (%d, 'x')", next))
		return fmt.Sprintf("insert %d,x", next)
	}
	for _, tt := range []struct {
		name  string
		sever func(t *testing.T, tl *Tail, c *Conn)
	}{
		{"by our close", func(t *testing.T, tl *Tail, c *Conn) {
			if err := errors.Join(tl.Report(patient(t)), c.Close()); err != nil {
				t.Fatal(err)
			}
		}},
		{"by a cut", func(t *testing.T, tl *Tail, c *Conn) {
			if err := tl.Report(patient(t)); err != nil {
				t.Fatal(err)
			}
			confirmed(t, sql, tl.Confirmed())
			relay.Cut()
			if _, err := tl.Next(patient(t)); err == nil || c.failed() == nil {
				t.Errorf("after a cut: %v, connection %v", err, c.failed())
			}
		}},
		{"by the server's administrator", func(t *testing.T, tl *Tail, c *Conn) {
			if err := tl.Report(patient(t)); err != nil {
				t.Fatal(err)
			}
			confirmed(t, sql, tl.Confirmed())
			run(t, sql, fmt.Sprintf("select pg_terminate_backend(%d)", c.PID()))
			if _, err := tl.Next(patient(t)); err == nil || !strings.Contains(err.Error(), "57P01") {
				t.Errorf("after pg_terminate_backend: %v", err)
			}
		}},
		{"by End", func(t *testing.T, tl *Tail, c *Conn) {
			if err := tl.End(patient(t)); err != nil {
				t.Fatal(err)
			}
			if got := run(t, c, "select 'still usable'"); got != "still usable" {
				t.Error(got)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tl, c := tail(t, config(t, p, relay.Addr()), TailConfig{Slot: "s"})
			tl.Confirm(want(t, tl, insert(), "commit"))
			unconfirmed := insert()
			want(t, tl, unconfirmed, "commit")
			tt.sever(t, tl, c)
			idle(t, sql, "s")
			again, c := tail(t, config(t, p, relay.Addr()), TailConfig{Slot: "s"})
			again.Confirm(want(t, again, unconfirmed, "commit"))
			if err := again.End(patient(t)); err != nil {
				t.Error(err)
			}
			_ = c.Close()
			idle(t, sql, "s")
		})
	}
}

// confirmed waits until the server has taken a position.
func confirmed(t *testing.T, sql *Conn, at LSN) {
	t.Helper()
	testkit.Eventually(t, "the server has taken position "+at.String(), func() bool {
		return askLSN(t, sql, "select confirmed_flush_lsn from pg_replication_slots where slot_name = 's'") >= at
	})
}

// idle waits until no session uses a slot.
func idle(t *testing.T, sql *Conn, slot string) {
	t.Helper()
	testkit.Eventually(t, "the slot is idle", func() bool {
		return run(t, sql, "select active from pg_replication_slots where slot_name = "+literal(slot)) == "f"
	})
}

func TestTailStartsWhereItIsTold(t *testing.T) {
	p := sharedServer(t)
	sql := outbox(t, p, "s")
	run(t, sql, "insert into outbox values (1, 'x')", "insert into outbox values (2, 'x')")
	tl, c := tail(t, config(t, p), TailConfig{Slot: "s"})
	end := want(t, tl, "insert 1,x", "commit")
	want(t, tl, "insert 2,x", "commit")
	if err := tl.End(patient(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.StartTail(patient(t), TailConfig{Slot: "s", Publications: []string{"box"}}); err == nil || !strings.Contains(err.Error(), "open another") {
		t.Errorf("a second tail on one connection: %v", err)
	}
	_ = c.Close()
	idle(t, sql, "s")
	tl, _ = tail(t, config(t, p), TailConfig{Slot: "s", Start: end})
	want(t, tl, "insert 2,x", "commit")
}

func TestTailSurvivesRestartsOfTheServer(t *testing.T) {
	p := server(t, nil)
	sql := outbox(t, p, "s")
	tl, _ := tail(t, config(t, p), TailConfig{Slot: "s"})
	run(t, sql, "insert into outbox values (1, 'x')")
	tl.Confirm(want(t, tl, "insert 1,x", "commit"))
	run(t, sql, "insert into outbox values (2, 'x')")
	end := want(t, tl, "insert 2,x", "commit")
	tl.Confirm(end)

	// A clean shutdown waits for us: it ends only because the tail answers.
	stopped := make(chan error, 1)
	go func() { stopped <- p.Restart(patient(t)) }()
	if _, err := tl.Next(patient(t)); !errors.Is(err, ErrShutdown) && !strings.Contains(fmt.Sprint(err), "57P01") {
		t.Errorf("at shutdown: %v", err)
	}
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	sql = connect(t, config(t, p), SQL)
	run(t, sql, "insert into outbox values (3, 'x')")
	tl, _ = tail(t, config(t, p), TailConfig{Slot: "s", Start: end})
	want(t, tl, "insert 3,x", "commit")

	p.Kill()
	if _, err := tl.Next(patient(t)); err == nil {
		t.Error("no error from a server that was killed")
	}
	if err := p.Restart(patient(t)); err != nil {
		t.Fatal(err)
	}
	tl, _ = tail(t, config(t, p), TailConfig{Slot: "s", Start: end})
	want(t, tl, "insert 3,x", "commit")
}

// Tables that no one reads must not keep the log: the position moves on with keepalives while
// everything handed out is confirmed, and stays while it is not.
func TestTailReleasesTheLogOfOtherTables(t *testing.T) {
	p := server(t, nil)
	sql := outbox(t, p, "s")
	run(t, sql, "create table busy (id int)")
	tl, _ := tail(t, config(t, p), TailConfig{Slot: "s", StreamConfig: StreamConfig{StatusInterval: 20 * time.Millisecond}})
	restart := func() LSN {
		return askLSN(t, sql, "select restart_lsn from pg_replication_slots where slot_name = 's'")
	}
	run(t, sql, "insert into outbox values (1, 'x')")
	end := want(t, tl, "insert 1,x", "commit")

	ctx, cancel := context.WithCancel(patient(t))
	received := make(chan error, 1)
	go func() {
		_, err := tl.Next(ctx)
		received <- err
	}()
	busy := func() LSN {
		run(t, sql, "insert into busy select generate_series(1, 1000)", "checkpoint")
		return askLSN(t, sql, "select pg_current_wal_insert_lsn()")
	}
	held := busy()
	testkit.Eventually(t, "a keepalive has come", func() bool {
		busy()
		tl.mu.Lock()
		defer tl.mu.Unlock()
		return tl.passed >= held
	})
	if at := tl.Confirmed(); at >= end {
		t.Errorf("position %s without a confirmation, and the unconfirmed transaction ends at %s", at, end)
	}
	tl.Confirm(end)
	testkit.Eventually(t, "the slot lets the log go", func() bool {
		busy()
		return restart() > held
	})
	cancel()
	if err := <-received; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	run(t, sql, "insert into outbox values (2, 'x')")
	want(t, tl, "insert 2,x", "commit")
}

func TestTailOfALostSlot(t *testing.T) {
	p := server(t, map[string]string{"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"})
	sql := outbox(t, p, "s")
	run(t, sql, "create table busy (id int)")
	testkit.Eventually(t, "the slot is lost", func() bool {
		run(t, sql, "insert into busy select generate_series(1, 1000)", "select pg_switch_wal()", "checkpoint")
		return run(t, sql, "select wal_status from pg_replication_slots") == "lost"
	})
	c := connect(t, config(t, p), Logical)
	if _, err := c.StartTail(patient(t), TailConfig{Slot: "s", Publications: []string{"box"}}); err == nil || !strings.Contains(err.Error(), "SQLSTATE") {
		t.Errorf("tail of a lost slot: %v", err)
	}
	r, err := Probe(patient(t), config(t, p), ProbeConfig{Table: Table{"public", "outbox"}, Publication: "box", Slot: "s"})
	if err != nil || r.Possible() || !strings.Contains(r.Reason(), "lost") {
		t.Errorf("probe of a lost slot: %+v, %v", r, err)
	}
}

func TestTailRefusals(t *testing.T) {
	p := server(t, nil)
	sql := outbox(t, p, "s")
	c := connect(t, config(t, p), Logical)
	for _, tt := range []struct {
		name string
		cfg  TailConfig
		want string
	}{
		{"no such slot", TailConfig{Slot: "none", Publications: []string{"box"}}, `replication slot "none" does not exist`},
		{"bad slot name", TailConfig{Slot: `x"y`, Publications: []string{"box"}}, "slot name"},
		{"no publication", TailConfig{Slot: "s"}, "no publication"},
		{"negative interval", TailConfig{Slot: "s", Publications: []string{"box"}, StreamConfig: StreamConfig{StatusInterval: -1}}, "status interval"},
	} {
		if _, err := c.StartTail(patient(t), tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if got := run(t, c, "select 'still usable'"); got != "still usable" {
		t.Error(got)
	}
	if sql.Version() >= 180000 {
		return // a publication that is missing sends nothing, without an error
	}
	run(t, sql, "create publication none", "insert into outbox values (1, 'x')")
	tl, c := tail(t, config(t, p), TailConfig{Slot: "s", Publications: []string{"none"}})
	run(t, sql, "drop publication none", "insert into outbox values (2, 'x')", "create table later (id int)")
	if e, err := tl.Next(patient(t)); err == nil || !strings.Contains(err.Error(), `publication "none" does not exist`) {
		t.Errorf("without its publication: %+v, %v", e, err)
	}
	if err := tl.Report(patient(t)); err != nil || run(t, c, "select 'still usable'") != "still usable" {
		t.Errorf("after the server's error: %v", err)
	}
}

// Confirmed is the position that the server is told.
func (t *Tail) Confirmed() LSN { return t.stream.Position().Flushed }
