package postgres

import (
	"testing"
	"time"

	"github.com/weirdb/weir/outbox"
)

// An epoch that was handed out is not handed out again, whatever else a crash of
// the server undoes.
func TestEpochSurvivesACrash(t *testing.T) {
	s := roughServer(t)
	r := newOwnRig(t, s)
	r.exec("ALTER SYSTEM SET wal_writer_delay = '10s'")
	r.exec("SELECT pg_reload_conf()")
	r.eventually("the setting holds", r.holds("current_setting('wal_writer_delay') = '10s'"))
	store := r.open(t, Options{})
	_, err := store.Migrate(r.ctx(), outbox.Plan{})
	r.check(err)
	r.exec("CHECKPOINT") // the lab's fast servers forget in a crash what they have not written
	lead := func() int64 {
		l, err := store.Lead(r.ctx(), 0)
		for err != nil { // connections of before the crash
			if r.ctx().Err() != nil {
				t.Fatal(err)
			}
			l, err = store.Lead(r.ctx(), 0)
		}
		t.Cleanup(func() { l.Close() })
		return l.(*lease).epoch
	}
	first := lead()
	r.exec("ALTER SYSTEM RESET wal_writer_delay") // from the restart on
	s.Kill()
	r.check(s.Restart(r.ctx()))
	if second := lead(); second <= first {
		t.Errorf("epoch %d after the crash, %d before", second, first)
	}
}

// The last due messages move although what is left is due never.
func TestPromoteWithInfinity(t *testing.T) {
	r := newRig(t, server(t))
	store := r.open(t, Options{})
	_, err := store.Migrate(r.ctx(), outbox.Plan{})
	r.check(err)
	never, due := message(), message()
	never.AvailableAt, due.AvailableAt = time.Now().Add(time.Hour), time.Now().Add(time.Hour)
	r.check(outbox.Enqueue(r.ctx(), outbox.Postgres(r.db), never))
	r.exec("UPDATE weir_outbox_scheduled SET available_at = 'infinity'")
	r.check(outbox.Enqueue(r.ctx(), outbox.Postgres(r.db), due))
	r.exec("UPDATE weir_outbox_scheduled SET available_at = '-infinity' WHERE available_at <> 'infinity'")
	if moved, next, err := store.Promote(r.ctx(), 10); err != nil || moved != 1 || next < 23*time.Hour {
		t.Errorf("promoted %d, next in %v, %v; want 1 and a day", moved, next, err)
	}
	r.exec("DELETE FROM weir_outbox_scheduled")
	if moved, next, err := store.Promote(r.ctx(), 10); err != nil || moved != 0 || next >= 0 {
		t.Errorf("promoted %d, next in %v, %v; want nothing, and no next", moved, next, err)
	}
}

// A store that lost a table is not ready.
func TestMigrateMissesATable(t *testing.T) {
	r := newRig(t, server(t))
	store := r.open(t, Options{})
	_, err := store.Migrate(r.ctx(), outbox.Plan{})
	r.check(err)
	r.exec("DROP TABLE weir_outbox")
	if _, err := store.Migrate(r.ctx(), outbox.Plan{}); err == nil {
		t.Error("migrate without the outbox table: no error")
	}
}

// Dead letters stay when the outbox is emptied and its numbers begin again, and do not collide
// with new ones.
func TestBuryANumberThatIsTaken(t *testing.T) {
	r := newRig(t, server(t))
	store := r.open(t, Options{})
	_, err := store.Migrate(r.ctx(), outbox.Plan{})
	r.check(err)
	l, err := store.Lead(r.ctx(), 0)
	r.check(err)
	defer l.Close()
	for range 3 {
		r.exec("TRUNCATE weir_outbox RESTART IDENTITY")
		first, second := message(), message()
		r.check(outbox.Enqueue(r.ctx(), outbox.Postgres(r.db), first, second))
		r.check(l.Bury(r.ctx(), []outbox.Burial{
			{Seq: 1, ID: first.ID, Attempts: 1, Reason: "rejected", Error: "x"},
			{Seq: 2, ID: second.ID, Attempts: 1, Reason: "rejected", Error: "x"},
		}))
	}
	dead, err := store.List(r.ctx(), outbox.Query{State: outbox.Dead})
	r.check(err)
	if len(dead) != 6 {
		t.Errorf("%d dead letters, want 6: %+v", len(dead), dead)
	}
	if n, err := store.Requeue(r.ctx(), outbox.Query{State: outbox.Dead}); err != nil || n != 6 {
		t.Errorf("replayed %d, %v; want 6", n, err)
	}
}

func message() outbox.Message {
	return outbox.Message{ID: outbox.NewID(), Topic: "t", Payload: []byte("x")}
}
