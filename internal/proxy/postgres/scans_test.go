package postgres_test

import (
	"fmt"
	"testing"

	"github.com/weirdb/weir/internal/proxy/proxytest"
)

// The text of an INSERT is read once, whichever way it takes; that of a prepared one
// when it is first prepared, and never again, and so that of one with a hint which differs
// in the constants of its row alone.
func TestAnInsertIsReadOnce(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (a int PRIMARY KEY)"), nil)
	c := w.wire()
	row := 0
	insert := func(hint string) {
		t.Helper()
		row++
		c.want(fmt.Sprintf("%s INSERT INTO t VALUES (%d)", hint, row), `INSERT_0_1 I`)
	}
	eventually(t, "a write in a group", func() bool { // weir gets to know the table
		row++
		c.ask(fmt.Sprintf("/* batch */ INSERT INTO t VALUES (%d)", row))
		return w.pool().Grouped > 0
	})
	const times = 20
	read := func(what string, want uint64, run func()) {
		t.Helper()
		proxytest.Reads(t, what, times, want, func() uint64 { return w.Scans(t.Context()) }, run)
	}
	read("an INSERT with a hint, which differs in its constants from one before", 0, func() { insert("/* batch */") })
	read("another INSERT with a hint", times, func() {
		row++
		c.want(fmt.Sprintf("/* batch */ INSERT INTO t VALUES (%d + 0)", row), `INSERT_0_1 I`)
	})
	read("an INSERT without one", times, func() { insert("") })
	c.ask("BEGIN")
	read("an INSERT in a transaction", times, func() {
		row++
		c.ask(fmt.Sprintf("INSERT INTO t VALUES (%d)", row))
	})
	c.ask("COMMIT")
	prepared := func() {
		row++
		c.send(parse("", "/* batch */ INSERT INTO t VALUES ($1)"), bind("", "", fmt.Sprint(row)), execute("", 0), sync())
		if e := errorIn(c.ready()); e != nil {
			t.Fatal(e)
		}
	}
	prepared()
	read("a prepared INSERT", 0, prepared)
}
