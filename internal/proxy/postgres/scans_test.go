package postgres_test

import (
	"fmt"
	"testing"
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
		var got uint64
		for range 3 { // weir may read a text of its own meanwhile, such as a question about a table
			before := w.Scans(t.Context())
			for range times {
				run()
			}
			if got = w.Scans(t.Context()) - before; got == want {
				return
			}
		}
		t.Errorf("%d times %s: %d texts were read, want %d", times, what, got, want)
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
