package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/outbox"
)

// The log shows a transaction that waits for a standby. Its row is handed over
// when the transaction can be seen, and its ack finds it.
func TestTailWaitsForSynchronousStandbys(t *testing.T) {
	r := newOwnRig(t, roughServer(t))
	l := r.lead(r.migrated(outbox.Plan{}))
	tail := r.tailBesideStandbys(l)
	inserted := r.commitWaits("INSERT INTO weir_outbox (topic) VALUES ('t')")
	type next struct {
		rows []outbox.Row
		err  error
	}
	came := make(chan next, 1)
	go func() {
		rows, err := tail.Next(r.ctx())
		came <- next{rows, err}
	}()
	select {
	case n := <-came:
		t.Fatalf("%d rows came before their transaction could be seen, error %v", len(n.rows), n.err)
	case <-time.After(300 * time.Millisecond): // the longer, the surer that a defect is seen
	}
	r.standbys("")
	r.check(<-inserted)
	n := <-came
	r.check(n.err)
	if len(n.rows) != 1 {
		t.Fatalf("%d rows came, want 1", len(n.rows))
	}
	r.check(l.Ack(r.ctx(), outbox.Refs([]outbox.Row{n.rows[0]})))
	r.eventually("the row is gone", r.holds("NOT EXISTS (SELECT FROM weir_outbox)"))
}

// A transaction that is too large to be held until standbys have answered stays in the log.
func TestTailHoldsNoMoreThanItMay(t *testing.T) {
	r := newOwnRig(t, roughServer(t))
	l := r.lead(r.migrated(outbox.Plan{}))
	follows, ok := r.tailBesideStandbys(l).(*tail)
	if !ok {
		t.Fatal("the tail is another one")
	}
	const all, most = 3 * tailRows, 100
	follows.visibility.maxHeld = most
	inserted := r.commitWaits(fmt.Sprintf("INSERT INTO weir_outbox (topic) SELECT 't' FROM generate_series(1, %d)", all))
	ctx, cancel := context.WithCancel(r.ctx())
	ended := make(chan error, 1)
	go func() {
		_, err := follows.Next(ctx)
		ended <- err
	}()
	r.eventually("the log waits", func() bool {
		follows.mu.Lock()
		defer follows.mu.Unlock()
		return len(follows.rows) == tailRows
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("rows came before their transaction could be seen, or %v", err)
	}
	if n := len(follows.visibility.held); n >= most+tailRows {
		t.Errorf("%d rows are held, want less than %d", n, most+tailRows)
	}
	r.standbys("")
	r.check(<-inserted)
	for came := 0; came < all; {
		rows, err := follows.Next(r.ctx())
		r.check(err)
		came += len(rows)
	}

	// Where that takes long, the table is read instead.
	follows.visibility.maxFull = 50 * time.Millisecond
	r.standbys("nobody")
	inserted = r.commitWaits(fmt.Sprintf("INSERT INTO weir_outbox (topic) SELECT 't' FROM generate_series(1, %d)", most))
	if rows, err := follows.Next(r.ctx()); err == nil || !strings.Contains(err.Error(), "wait for standbys") {
		t.Errorf("%d rows and %v while a standby is waited for", len(rows), err)
	}
	r.standbys("")
	r.check(<-inserted)
}

// holds tells whether a condition is true.
func (r *rig) holds(condition string) func() bool {
	return func() (yes bool) {
		r.check(r.db.QueryRowContext(r.ctx(), "SELECT "+condition).Scan(&yes))
		return yes
	}
}

// standbys says which ones commits wait for.
func (r *rig) standbys(names string) {
	r.Helper()
	r.exec("ALTER SYSTEM SET synchronous_standby_names = '" + names + "'")
	r.exec("SELECT pg_reload_conf()")
	r.eventually("the setting holds", r.holds("current_setting('synchronous_standby_names') = '"+names+"'"))
	if names == "" {
		return
	}
	// Commits wait from when the checkpointer has read the file, which may be later.
	probe := r.conn()
	var pid int
	r.check(probe.QueryRowContext(r.ctx(), "SELECT pg_backend_pid() FROM set_config('synchronous_commit', 'on', false)").Scan(&pid))
	waiting := r.holds(fmt.Sprintf("EXISTS (SELECT FROM pg_stat_activity WHERE pid = %d AND wait_event = 'SyncRep')", pid))
	r.eventually("a commit waits", func() bool {
		done := make(chan error, 1)
		go func() {
			_, err := probe.ExecContext(r.ctx(), "SELECT pg_logical_emit_message(true, 'probe', '')")
			done <- err
		}()
		var waits, ended bool
		r.eventually("a commit waits, or ends", func() bool {
			select {
			case err := <-done:
				r.check(err)
				ended = true
			default:
				waits = waiting()
			}
			return ended || waits
		})
		if waits {
			r.exec(fmt.Sprintf("SELECT pg_cancel_backend(%d)", pid)) // the wait, not the commit
			r.check(<-done)
		}
		return waits
	})
}

// tailBesideStandbys follows the log of a server whose commits wait for a standby that is not
// there.
func (r *rig) tailBesideStandbys(l *lease) outbox.Tail {
	r.Helper()
	first, err := l.Tail(r.ctx()) // makes the publication, whose commit would wait as well
	r.check(err)
	r.check(first.Close())
	r.standbys("nobody")
	follows, err := l.Tail(r.ctx())
	r.check(err)
	r.Cleanup(func() { _ = follows.Close() })
	return follows
}

// commitWaits runs a statement whose commit waits for a standby, and yields its outcome.
func (r *rig) commitWaits(sql string) <-chan error {
	r.Helper()
	producer := r.conn()
	r.on(producer, "SET synchronous_commit = on")
	done := make(chan error, 1)
	go func() {
		_, err := producer.ExecContext(r.ctx(), sql)
		done <- err
	}()
	r.eventually("the commit waits", r.holds("EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')"))
	return done
}

// Of several servers in the connection string the first is not the one that is
// written to: the log of the other one is followed.
func TestTailIsOfTheServerThatIsWrittenTo(t *testing.T) {
	first, second := newRig(t, server(t)), newOwnRig(t, roughServer(t))
	address := func(r *rig, database string) *url.URL {
		u, err := url.Parse(r.dsn)
		r.check(err)
		u.Path = "/" + database
		return u
	}
	twice := first.another("twice")
	for _, r := range []*rig{first, second} {
		r.exec("CREATE DATABASE " + twice)
		r.dsn = address(r, twice).String()
		l := r.lead(r.migrated(outbox.Plan{}))
		f, err := l.Tail(r.ctx()) // makes the publication
		r.check(err)
		r.check(f.Close())
		r.check(l.Close())
	}
	first.exec("ALTER DATABASE " + twice + " SET default_transaction_read_only = on")
	both := address(second, twice)
	both.Host = address(first, twice).Host + "," + both.Host
	both.RawQuery += "&target_session_attrs=read-write"
	second.dsn = both.String()
	f, err := second.lead(second.open(t, Options{})).Tail(second.ctx())
	second.check(err)
	defer f.Close()
	db, err := sql.Open("pgx", second.dsn)
	second.check(err)
	defer db.Close()
	_, err = db.ExecContext(second.ctx(), "INSERT INTO weir_outbox (topic, payload) VALUES ('second', 'x')")
	second.check(err)
	rows, err := f.Next(second.ctx())
	second.check(err)
	if len(rows) != 1 || rows[0].Topic != "second" {
		t.Errorf("the log has %+v, want the row of the second server", rows)
	}
}
