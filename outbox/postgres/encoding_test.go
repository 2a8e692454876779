package postgres

import (
	"database/sql"
	"testing"

	"github.com/weirdb/weir/outbox"
)

// TestOtherEncodings: texts are UTF-8 whatever the database keeps them in, read from
// the table and from the log, also where backslashes escape in every literal.
func TestOtherEncodings(t *testing.T) {
	pg := server(t)
	r := newRig(t, pg)
	latin := r.another("latin")
	r.exec("CREATE DATABASE " + latin + " ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
	r.exec("ALTER DATABASE " + latin + " SET standard_conforming_strings = off")
	r.dsn = pg.DSN(latin)
	var err error
	r.db, err = sql.Open("pgx", r.dsn+"&client_encoding=UTF8")
	r.check(err)
	t.Cleanup(func() { _ = r.db.Close() })
	s := r.migrated(outbox.Plan{})
	r.check(s.Check(r.ctx()))
	l := r.lead(s)
	tail, err := l.Tail(r.ctx())
	r.check(err)
	defer tail.Close()
	r.exec(`INSERT INTO weir_outbox (topic, msg_key, payload, headers) VALUES ('über', 'größe', '\xfc', '{"ä": "ö"}')`)
	logged, err := tail.Next(r.ctx())
	r.check(err)
	for what, rows := range map[string][]outbox.Row{"table": r.read(l), "log": logged} {
		if len(rows) != 1 || rows[0].Topic != "über" || rows[0].Key != "größe" || rows[0].Headers["ä"] != "ö" || string(rows[0].Payload) != "\xfc" {
			t.Errorf("the %s has %+v", what, rows)
		}
	}
	r.check(l.Ack(r.ctx(), outbox.Refs(logged)))
	if left := r.read(l); len(left) != 0 {
		t.Errorf("%d rows are left", len(left))
	}
	l.stop()
	<-l.watched // the session is this test's now
	if pid, err := (poolCheckSession{l.lock}).Number(r.ctx()); err != nil || pid != l.pid {
		t.Errorf("a heartbeat has process %d, %v, want %d", pid, err, l.pid)
	}
	l.release()
	held, err := advisoryHeld(r.ctx(), s.pool, l.names.leaseKey(0))
	r.check(err)
	if held {
		t.Error("the lock is held after its release")
	}
}
