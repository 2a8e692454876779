package mysql_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/mysql"
)

// TestHalfDeadConnectionHoldsUpNoReaders silences the connection on which a client has read: it
// stays open, and forwards nothing. Only the reader whose statement was sent on it waits; the
// others are answered meanwhile.
func TestHalfDeadConnectionHoldsUpNoReaders(t *testing.T) {
	t.Parallel()
	r := &labtest.Relays{TB: t}
	w := start(t, database(t, "CREATE TABLE b (x INT)", "INSERT INTO b VALUES (1)"), func(c *mysql.Config) { c.ReadLanes, c.MySQL.Dial = 1, r.Dial })
	const read = "SELECT x FROM b"
	first := w.dial(nil)
	var readers []*wire
	for range 20 {
		readers = append(readers, w.dial(nil))
	}
	for range 200 {
		first.one(read) // until it is known to be quick
	}
	for range 3 {
		dead := r.Used(func() { first.one(read) })
		dead.Stall()
		type answer struct {
			text string
			err  error
		}
		answers := make(chan answer, len(readers))
		for _, c := range readers {
			c.patient()
			go func() {
				rows, err := c.Query(context.Background(), read)
				answers <- answer{fmt.Sprint(rows), err}
			}()
		}
		const want = "[[{1 true}]]"
		for range len(readers) - 1 {
			if got := <-answers; got.err != nil || got.text != want {
				t.Errorf("beside a half-dead connection: %+v", got)
			}
		}
		dead.Heal()
		if got := <-answers; got.err != nil || got.text != want {
			t.Errorf("on a connection that is whole again: %+v", got)
		}
	}
}

// TestQueryTimeoutOnAHalfDeadConnection ends the wait of a client whose statement is there.
func TestQueryTimeoutOnAHalfDeadConnection(t *testing.T) {
	t.Parallel()
	r := &labtest.Relays{TB: t}
	w := start(t, database(t, "CREATE TABLE b (x INT)", "INSERT INTO b VALUES (1)"), func(c *mysql.Config) {
		c.QueryTimeout, c.MySQL.Dial = 200*time.Millisecond, r.Dial
	})
	c := w.dial(nil)
	c.must("BEGIN")
	c.must("INSERT INTO b VALUES (2)") // weir asks about the table, too, which has 30 s
	c.must("ROLLBACK")
	c.must("BEGIN")
	dead := r.Used(func() { c.one("SELECT x FROM b") })
	dead.Stall()
	_, err := c.Exec(ctxFor(t), "INSERT INTO b VALUES (2)")
	if code(err) != 1158 || !strings.Contains(err.Error(), core.ErrOverdue.Error()) {
		t.Errorf("a write on a half-dead connection: %v", err)
	}
	if got := direct(t, server(t), w.db).one("SELECT COUNT(*) FROM b"); got != "1" {
		t.Errorf("%s rows are there of one", got)
	}
}
