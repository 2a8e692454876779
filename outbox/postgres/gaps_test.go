package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/outbox"
)

func note(n int) outbox.Message {
	return outbox.Message{Topic: "orders", Key: fmt.Sprint(n), Payload: fmt.Appendf(nil, "payload %d", n)}
}

func notes(n int) []outbox.Message {
	msgs := make([]outbox.Message, n)
	for i := range msgs {
		msgs[i] = note(i)
	}
	return msgs
}

func (r *rig) isSettled(l *lease, m outbox.Mark) bool {
	r.Helper()
	ok, err := l.Settled(r.ctx(), m)
	r.check(err)
	return ok
}

func (r *rig) mark(l *lease) outbox.Mark {
	r.Helper()
	m, err := l.Mark(r.ctx())
	r.check(err)
	return m
}

// conn is a session of its own.
func (r *rig) conn() *sql.Conn {
	r.Helper()
	c, err := r.db.Conn(r.ctx())
	r.check(err)
	r.Cleanup(func() { _ = c.Close() })
	return c
}

func (r *rig) on(c *sql.Conn, text string) {
	r.Helper()
	if _, err := c.ExecContext(r.ctx(), text); err != nil {
		r.Fatalf("%s: %v", text, err)
	}
}

// gap reads what lies below the first row of all.
func (r *rig) gap(l *lease, below int64) []outbox.Row {
	r.Helper()
	page, err := l.Read(r.ctx(), outbox.ReadRequest{After: below, Gaps: []outbox.Range{{First: 1, Last: below - 1}}, Limit: 100, MaxBytes: 1 << 20})
	r.check(err)
	return append([]outbox.Row(nil), page.Rows...)
}

const slowInsert = `INSERT INTO weir_outbox (topic, msg_key, payload) VALUES ('slow', 'k', 'slow')`

func TestGaps(t *testing.T) {
	pg := server(t)

	// A transaction that has its number and no id yet: anyone who looks at
	// transaction ids takes the gap for dead.
	t.Run("between nextval and the transaction's id", func(t *testing.T) {
		r := newRig(t, pg)
		l := r.lead(r.migrated(outbox.Plan{}))
		r.exec(`CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS
			'BEGIN PERFORM pg_advisory_lock(1); PERFORM pg_advisory_unlock(1); RETURN NEW; END'`)
		r.exec(`CREATE TRIGGER dawdle BEFORE INSERT ON weir_outbox FOR EACH ROW WHEN (NEW.topic = 'slow') EXECUTE FUNCTION dawdle()`)
		// The first of 32 numbers is logged, and needs an id for that.
		r.enqueue(note(0))
		r.check(l.Ack(r.ctx(), outbox.Refs(r.read(l))))
		gate, slow := r.conn(), r.conn()
		r.on(gate, "SELECT pg_advisory_lock(1)")
		ended := make(chan error, 1)
		ctx := r.ctx()
		go func() {
			_, err := slow.ExecContext(ctx, slowInsert)
			ended <- err
		}()
		var id sql.NullString
		r.eventually("the slow insert waits in its trigger", func() bool {
			err := r.db.QueryRowContext(r.ctx(), `SELECT backend_xid::text FROM pg_stat_activity
				WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT INTO weir_outbox%'`).Scan(&id)
			return err == nil
		})
		if id.Valid {
			t.Errorf("the slow transaction has id %s already: this tests nothing", id.String)
		}
		r.enqueue(note(1))
		rows := r.read(l)
		if len(rows) != 1 || rows[0].Seq != 3 {
			t.Fatalf("rows %+v, want number 3 only", rows)
		}
		m := r.mark(l)
		for range 3 {
			if r.isSettled(l, m) {
				t.Fatal("settled while the owner of number 2 waits in a trigger")
			}
		}
		r.on(gate, "SELECT pg_advisory_unlock(1)")
		r.check(<-ended)
		r.eventually("the mark is settled", func() bool { return r.isSettled(l, m) })
		if late := r.gap(l, 3); len(late) != 1 || late[0].Seq != 2 {
			t.Errorf("the gap holds %+v, want number 2", late)
		}
	})

	// The relay's mark outlives PREPARE, whichever session holds the locks afterwards.
	for _, when := range []string{"before", "after"} {
		t.Run("prepared transaction, marked "+when, func(t *testing.T) {
			r := newRig(t, pg)
			l := r.lead(r.migrated(outbox.Plan{}))
			c := r.conn()
			id := "'late " + t.Name() + "'"
			r.on(c, "BEGIN")
			r.on(c, slowInsert)
			var m outbox.Mark
			if when == "before" {
				m = r.mark(l)
			}
			r.on(c, "PREPARE TRANSACTION "+id)
			if when == "after" {
				m = r.mark(l)
			}
			r.enqueue(note(1))
			for range 3 {
				if r.isSettled(l, m) {
					t.Fatal("settled while a transaction is prepared")
				}
			}
			// One that is prepared later is not of this mark, or is waited for once.
			r.on(c, "COMMIT PREPARED "+id)
			r.eventually("the mark is settled", func() bool { return r.isSettled(l, m) })
			if late := r.gap(l, 2); len(late) != 1 {
				t.Errorf("the gap holds %+v, want one row", late)
			}
		})
	}

	t.Run("subtransactions", func(t *testing.T) {
		r := newRig(t, pg)
		l := r.lead(r.migrated(outbox.Plan{}))
		c := r.conn()
		r.on(c, "BEGIN")
		r.on(c, `DO $$ BEGIN
			BEGIN INSERT INTO weir_outbox (topic) VALUES ('lost'); RAISE EXCEPTION 'x'; EXCEPTION WHEN raise_exception THEN NULL; END;
			BEGIN INSERT INTO weir_outbox (topic) VALUES ('kept'); END;
		END $$`)
		r.on(c, "SAVEPOINT a")
		r.on(c, slowInsert)
		r.on(c, "RELEASE SAVEPOINT a")
		m := r.mark(l)
		if r.isSettled(l, m) {
			t.Error("settled while the transaction around them is open")
		}
		// All that it inserted is rolled back: its numbers are dead although it
		// lives on, so either answer is right; a new number is not of the mark.
		r.on(c, "COMMIT")
		r.eventually("the mark is settled", func() bool { return r.isSettled(l, m) })
		if rows := r.read(l); len(rows) != 2 {
			t.Errorf("%d rows, want 2", len(rows))
		}
	})

	t.Run("straight into a partition", func(t *testing.T) {
		r := newRig(t, pg)
		l := r.lead(r.migrated(outbox.Plan{Layout: outbox.History, Partition: outbox.PartitionSpec{Period: outbox.Daily}}))
		c := r.conn()
		r.on(c, "BEGIN")
		r.on(c, "INSERT INTO "+ident(names{table: "weir_outbox"}.catchAll(outbox.Daily))+
			" (seq, bucket, topic, created_at) VALUES (nextval(pg_get_serial_sequence('weir_outbox', 'seq')), 0, 't', '2001-01-01')")
		m := r.mark(l)
		if r.isSettled(l, m) {
			t.Error("settled while a transaction that wrote to a partition is open")
		}
		r.on(c, "COMMIT")
		r.eventually("the mark is settled", func() bool { return r.isSettled(l, m) })
	})

	// Vacuum takes a stronger lock, and takes its time.
	t.Run("who does not insert", func(t *testing.T) {
		r := newRig(t, pg)
		l := r.lead(r.migrated(outbox.Plan{}))
		c := r.conn()
		r.on(c, "BEGIN")
		r.on(c, "LOCK TABLE weir_outbox IN SHARE UPDATE EXCLUSIVE MODE")
		r.on(c, "SELECT count(*) FROM weir_outbox")
		if !r.isSettled(l, r.mark(l)) {
			t.Error("who reads or vacuums holds up a mark")
		}
	})

	t.Run("sequence with a cache", func(t *testing.T) {
		r := newRig(t, pg)
		s := r.migrated(outbox.Plan{})
		r.exec("ALTER TABLE weir_outbox ALTER COLUMN seq SET CACHE 10")
		if _, err := s.Lead(r.ctx(), 0); err == nil || !strings.Contains(err.Error(), "CACHE 1") {
			t.Errorf("lead: %v, want a refusal with the remedy", err)
		}
	})
}

func TestMarkSettles(t *testing.T) {
	set := func(ids ...string) map[string]struct{} {
		m := map[string]struct{}{}
		for _, id := range ids {
			m[id] = struct{}{}
		}
		return m
	}
	type look struct {
		running, prepared []string
		want              bool
	}
	for name, c := range map[string]struct {
		mark  []string
		looks []look
	}{
		"nobody":             {nil, []look{{want: true}}},
		"others do not hold": {[]string{"1/1"}, []look{{[]string{"1/1", "2/1"}, nil, false}, {[]string{"1/2", "2/1"}, nil, true}}},
		"prepared under its own id": {[]string{"1/1"}, []look{
			{[]string{"1/1"}, nil, false}, {nil, []string{"1/1"}, false}, {nil, nil, true},
		}},
		"prepared under another id": {[]string{"1/1", "2/1"}, []look{
			{[]string{"2/1"}, []string{"-1/7"}, false},
			{nil, []string{"-1/7"}, false},
			{[]string{"3/1"}, []string{"-1/7", "-1/9"}, false},
			{nil, []string{"-1/9"}, true},
		}},
		"prepared before": {[]string{"-1/7"}, []look{{nil, []string{"-1/7"}, false}, {nil, []string{"-1/8"}, true}}},
	} {
		t.Run(name, func(t *testing.T) {
			m := &mark{running: set(c.mark...)}
			for i, l := range c.looks {
				if got := m.settle(holders{set(l.running...), set(l.prepared...)}); got != l.want {
					t.Fatalf("look %d: settled %v, want %v", i, got, l.want)
				}
			}
		})
	}
}

// Notes go with their rows: by an ack, a burial, and what an earlier leader
// left by the next one.
func TestNotesGoWithTheirRows(t *testing.T) {
	pg := server(t)
	r := newRig(t, pg)
	s := r.migrated(outbox.Plan{})
	l := r.lead(s)
	r.enqueue(notes(3)...)
	rows := r.read(l)
	for _, row := range rows {
		r.check(l.Park(r.ctx(), []outbox.Parking{{Seq: row.Seq, ID: row.ID, Attempts: 1, Error: "x"}}))
	}
	left := func(want int) {
		t.Helper()
		var n int
		r.check(r.db.QueryRowContext(r.ctx(), "SELECT count(*) FROM weir_outbox_parked").Scan(&n))
		if n != want {
			t.Errorf("%d notes, want %d", n, want)
		}
	}
	left(3)
	r.check(l.Ack(r.ctx(), outbox.Refs([]outbox.Row{rows[0]})))
	left(2)
	r.check(l.Bury(r.ctx(), []outbox.Burial{{Seq: rows[1].Seq, ID: rows[1].ID, Attempts: 1, Reason: "attempts"}}))
	left(1)
	r.check(l.Close())
	// One that knows of the note by having read it.
	l = r.lead(s)
	r.check(l.Ack(r.ctx(), outbox.Refs([]outbox.Row{rows[2]})))
	left(0)
	r.check(l.Close())
	r.exec("INSERT INTO weir_outbox_parked VALUES (99, 1, now(), 'x')")
	r.check(r.lead(s).Close())
	left(0)
}

func TestInterruptedStatementsKeepTheLease(t *testing.T) {
	pg := server(t)
	r := newRig(t, pg)
	s := r.migrated(outbox.Plan{})
	l := r.lead(s)
	r.enqueue(notes(10)...)
	rows := r.read(l)
	// Something that Read and Ack wait for.
	c := r.conn()
	r.on(c, "BEGIN")
	r.on(c, "LOCK TABLE weir_outbox IN ACCESS EXCLUSIVE MODE")
	for what, f := range map[string]func(ctx context.Context) error{
		"read": func(ctx context.Context) error {
			_, err := l.Read(ctx, outbox.ReadRequest{Limit: 1, MaxBytes: 1})
			return err
		},
		"ack": func(ctx context.Context) error { return l.Ack(ctx, outbox.Refs([]outbox.Row{rows[0]})) },
	} {
		ctx, cancel := context.WithTimeout(r.ctx(), 50*time.Millisecond)
		if err := f(ctx); err == nil || errors.Is(err, outbox.ErrDeposed) {
			t.Errorf("%s: %v, want the context's end", what, err)
		}
		cancel()
	}
	r.on(c, "ROLLBACK")
	if got := r.read(l); len(got) != 10 {
		t.Errorf("%d rows after an interrupted read, want 10", len(got))
	}
	r.check(l.Ack(r.ctx(), outbox.Refs([]outbox.Row{rows[0]})))

	// A connection that breaks is opened again; only that of the lock counts.
	r.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()
		AND pid NOT IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')`)
	r.eventually("reading works again", func() bool {
		page, err := l.Read(r.ctx(), outbox.ReadRequest{Limit: 100, MaxBytes: 1 << 20})
		return err == nil && len(page.Rows) == 9
	})
	r.eventually("acks work again", func() bool { return l.Ack(r.ctx(), outbox.Refs([]outbox.Row{rows[1]})) == nil })
	if err := l.deposed(); err != nil {
		t.Error(err)
	}
}
