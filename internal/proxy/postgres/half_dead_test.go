package postgres_test

import (
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// TestHalfDeadConnectionHoldsUpNoReaders silences the connection on which clients share reads:
// it stays open, and forwards nothing. Only the reader whose statement was sent on it waits; the
// others are answered meanwhile.
func TestHalfDeadConnectionHoldsUpNoReaders(t *testing.T) {
	t.Parallel()
	r := &labtest.Relays{TB: t}
	db := database(t, "CREATE TABLE b (x int)", "INSERT INTO b VALUES (1)")
	w := start(t, db, func(c *postgres.Config) { c.ReadLanes, c.Postgres.Dial = 1, r.Dial })
	first := w.wire()
	warm(w, first, readB)
	var readers []*wire
	for range 20 {
		readers = append(readers, w.wire())
	}
	for range 3 {
		dead := r.Used(func() { first.want(readB, rowB) })
		dead.Stall()
		answers := make(chan string, len(readers))
		for _, c := range readers {
			c.send(query(readB))
			go func() { answers <- render(c.ready()) }()
		}
		for range len(readers) - 1 {
			if got := <-answers; got != rowB {
				t.Errorf("beside a half-dead connection: %s", got)
			}
		}
		dead.Heal()
		if got := <-answers; got != rowB {
			t.Errorf("on a connection that is whole again: %s", got)
		}
	}
}

// TestQueryTimeoutOnAHalfDeadConnection ends the wait of each client with a statement there,
// though the server, which would end it when asked to, has another connection to hear
// of it by.
func TestQueryTimeoutOnAHalfDeadConnection(t *testing.T) {
	t.Parallel()
	r := &labtest.Relays{TB: t}
	db := database(t, "CREATE TABLE b (x int)", "INSERT INTO b VALUES (1)")
	w := start(t, db, func(c *postgres.Config) { c.QueryTimeout, c.Postgres.Dial = 200*time.Millisecond, r.Dial })
	c := w.wire()
	c.want("BEGIN", "BEGIN T")
	dead := r.Used(func() { c.want(readB, "[x] (1) SELECT_1 T") })
	dead.Stall()
	c.send(query("INSERT INTO b VALUES (2)"))
	got, err := c.until(pgwire.ServerError)
	if err != nil {
		t.Fatal(err)
	}
	if e := errorIn(got); e.Code != pgwire.CodeConnectionFailure || !strings.Contains(e.Detail, core.ErrOverdue.Error()) {
		t.Errorf("a write on a half-dead connection: %+v", e)
	}
	w.wire().want(readB, rowB) // and what was written is not there
}
