package postgres

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirdb/weir/outbox"
)

// A conversion that is broken off anywhere, several times, while producers
// insert and a leader acks, loses nothing.
func TestConvertBrokenOff(t *testing.T) {
	pg := server(t)
	r := newRig(t, pg)
	s := r.migrated(outbox.Plan{Layout: outbox.History})
	l := r.lead(s)
	producer := r.role()
	r.exec("GRANT INSERT ON weir_outbox TO " + producer)
	r.exec("GRANT SELECT ON weir_outbox TO PUBLIC")
	r.fill(500, 5, "CASE WHEN i <= 400 THEN 1 ELSE 0 END")

	ctx, stop := context.WithCancel(r.ctx())
	var wg sync.WaitGroup
	enqueued := 0
	wg.Go(func() {
		for ctx.Err() == nil {
			if err := outbox.Enqueue(ctx, outbox.Postgres(r.db), note(enqueued)); err == nil {
				enqueued++
			} else if ctx.Err() == nil {
				t.Error("enqueue:", err)
				return
			}
			time.Sleep(2 * time.Millisecond) // some between each two statements of the conversion
		}
	})
	acked := map[int64]bool{}
	ack := func() {
		rows := r.read(l)
		rows = rows[:min(len(rows), 5)]
		for _, row := range rows {
			if acked[row.Seq] {
				t.Errorf("number %d is pending again after its ack", row.Seq)
			}
			acked[row.Seq] = true
		}
		r.check(l.Ack(r.ctx(), outbox.Refs(rows)))
	}
	for _, period := range []outbox.Period{outbox.Daily, outbox.Monthly} {
		plan := outbox.Plan{Layout: outbox.History, Convert: true, Partition: outbox.PartitionSpec{Period: period}}
		times := 0
		for n := 0; r.migrateBroken(t, "", plan, n); n++ {
			times++
			ack()
			// Whole plans without a conversion go on in between.
			if _, err := s.Migrate(r.ctx(), outbox.Plan{Layout: outbox.History}); err != nil {
				t.Fatal(err)
			}
		}
		if times < 5 {
			t.Errorf("by %v: broken off %d times only", period, times)
		}
		ack()
		d, err := s.Describe(r.ctx())
		r.check(err)
		if d.Period != period {
			t.Errorf("period %v, want %v", d.Period, period)
		}
	}
	stop()
	wg.Wait()

	var total, distinct, delivered, leftover int
	r.check(r.db.QueryRowContext(r.ctx(), "SELECT count(*), count(DISTINCT seq), count(*) FILTER (WHERE status = 1) FROM weir_outbox").
		Scan(&total, &distinct, &delivered))
	// An enqueue that was cut off at the end may have committed all the same.
	if total < 500+enqueued || total > 501+enqueued || distinct != total || delivered != 400+len(acked) {
		t.Errorf("%d rows, %d numbers, %d delivered; want %d, as many, %d", total, distinct, delivered, 500+enqueued, 400+len(acked))
	}
	r.check(r.db.QueryRowContext(r.ctx(), "SELECT count(*) FROM pg_class WHERE relname LIKE 'weir_outbox_new%' AND relkind IN ('r', 'p')").Scan(&leftover))
	if leftover != 0 {
		t.Errorf("%d tables of the conversion are left", leftover)
	}
	for _, privilege := range []string{producer + ":INSERT", producer + ":SELECT"} {
		role, what, _ := strings.Cut(privilege, ":")
		var has bool
		r.check(r.db.QueryRowContext(r.ctx(), "SELECT has_table_privilege($1, 'weir_outbox', $2)", role, what).Scan(&has))
		if !has {
			t.Errorf("the conversion has taken %s from %s", what, role)
		}
	}
	// The sequence goes on behind the last number.
	r.enqueue(note(-1))
	var last, most int64
	r.check(r.db.QueryRowContext(r.ctx(), "SELECT max(seq), max(seq) FILTER (WHERE msg_key <> '-1') FROM weir_outbox").Scan(&last, &most))
	if last <= most {
		t.Errorf("the next number is %d, after %d", last, most)
	}
}

// One that was begun for another period is ended first: its rows are nowhere else.
func TestConvertChangesItsMind(t *testing.T) {
	pg := server(t)
	r := newRig(t, pg)
	s := r.migrated(outbox.Plan{Layout: outbox.History})
	r.fill(100, 20, "1")
	daily := outbox.Plan{Layout: outbox.History, Convert: true, Partition: outbox.PartitionSpec{Period: outbox.Daily}}
	monthly := daily
	monthly.Partition.Period = outbox.Monthly
	would, err := s.Migrate(r.ctx(), outbox.Plan{Layout: outbox.History, Convert: true, Partition: daily.Partition, DryRun: true})
	r.check(err)
	if len(would) < 25 {
		t.Errorf("a dry run says %q", would)
	}
	moved := slices.IndexFunc(would, func(sql string) bool { return strings.HasPrefix(sql, "WITH moved") })
	// COMMIT is a statement, too, and so is the batch that finds nothing.
	if !r.migrateBroken(t, "", daily, moved+3) {
		t.Fatal("the conversion ended before it was broken off")
	}
	var left, begun int
	r.check(r.db.QueryRowContext(r.ctx(), "SELECT (SELECT count(*) FROM weir_outbox), (SELECT count(*) FROM weir_outbox_new)").Scan(&left, &begun))
	if left != 0 || begun != 100 {
		t.Fatalf("broken off with %d and %d rows, want all moved", left, begun)
	}
	_, err = s.Migrate(r.ctx(), monthly)
	r.check(err)
	d, err := s.Describe(r.ctx())
	r.check(err)
	r.check(r.db.QueryRowContext(r.ctx(), "SELECT count(*) FROM weir_outbox").Scan(&left))
	if d.Period != outbox.Monthly || left != 100 {
		t.Errorf("period %v with %d rows, want month with 100", d.Period, left)
	}
}

func TestPartitionMaintenanceIsPatient(t *testing.T) {
	pg := server(t)
	r := newRig(t, pg)
	spec := outbox.PartitionSpec{Period: outbox.Daily, Lookback: 72 * time.Hour}
	s := r.migrated(outbox.Plan{Layout: outbox.History, Partition: spec})
	old := spec.Period.Start(time.Now()).AddDate(0, 0, -3)
	c := r.conn()
	r.on(c, "BEGIN")
	// A reader of everything, which a DROP would have to wait for.
	r.on(c, "SELECT count(*) FROM weir_outbox")
	spec.Lookback, spec.Keep = 0, time.Nanosecond // what has ended by midnight goes, however long ago that was
	report, err := s.MaintainPartitions(r.ctx(), spec)
	if err == nil || !isBusy(err) || len(report.Dropped) != 0 {
		t.Errorf("with a lock held: %+v, %v; want it to give up", report, err)
	}
	r.on(c, "ROLLBACK")
	report, err = s.MaintainPartitions(r.ctx(), spec)
	r.check(err)
	want := []string{}
	for i := range 3 {
		want = append(want, names{table: outbox.DefaultTable}.partition(outbox.Daily, old.AddDate(0, 0, i)))
	}
	if !slices.Equal(report.Dropped, want) {
		t.Errorf("dropped %v, want %v", report.Dropped, want)
	}
	for _, bad := range []outbox.PartitionSpec{
		{Period: outbox.Monthly},
		{},
		{Period: outbox.Daily, Ahead: -1},
		{Period: outbox.Daily, Lookback: 48 * time.Hour, Keep: time.Hour},
		{Period: outbox.Daily, Lookback: 20_000 * 24 * time.Hour},
	} {
		if _, err := s.MaintainPartitions(r.ctx(), bad); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

func TestMigrateLeavesForeignTablesAlone(t *testing.T) {
	pg := server(t)
	r := newRig(t, pg)
	r.exec("CREATE TABLE weir_outbox (a int)")
	s := r.open(t, Options{})
	if _, err := s.Migrate(r.ctx(), outbox.Plan{}); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("migrate over another's table: %v", err)
	}
	for _, name := range []string{".", "a.", ".a", "a\x00b", "a\xff", strings.Repeat("a", 64), strings.Repeat("a", 60)} {
		if _, err := New(s.pool, Options{Table: name}); err == nil {
			t.Errorf("table name %q is accepted", name)
		}
	}
	long := r.open(t, Options{Table: strings.Repeat("x", maxName)})
	_, err := long.Migrate(r.ctx(), outbox.Plan{Layout: outbox.History, Partition: outbox.PartitionSpec{Period: outbox.Monthly}})
	r.check(err)
}

// A producer needs INSERT and nothing else.
func TestProducerPrivileges(t *testing.T) {
	pg := server(t)
	r := newRig(t, pg)
	l := r.lead(r.migrated(outbox.Plan{Layout: outbox.History, Partition: outbox.PartitionSpec{Period: outbox.Daily}}))
	app := r.role()
	r.exec("GRANT INSERT ON weir_outbox, weir_outbox_scheduled TO " + app)
	c := r.conn()
	r.on(c, "SET ROLE "+app)
	later := note(2)
	later.AvailableAt = time.Now().Add(time.Hour)
	r.check(outbox.Enqueue(r.ctx(), outbox.Postgres(c), note(1), later))
	r.on(c, "INSERT INTO weir_outbox (topic, msg_key, payload) VALUES ('orders', 'k', 'plain')")
	if rows := r.read(l); len(rows) != 2 {
		t.Errorf("%d rows, want 2", len(rows))
	}
	for _, forbidden := range []string{"DELETE FROM weir_outbox", "SELECT * FROM weir_outbox_dead"} {
		if _, err := c.ExecContext(r.ctx(), forbidden); err == nil {
			t.Errorf("a producer may %s", forbidden)
		}
	}
	r.on(c, "RESET ROLE")
	r.exec("DROP OWNED BY " + app)
}
