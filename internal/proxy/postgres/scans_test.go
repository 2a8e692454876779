package postgres_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/postgres"
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
	read("two INSERTs with a hint, of which the second waits for the first", 2*times, func() {
		row += 2
		c.send(slices.Concat(query(fmt.Sprintf("/* batch */ INSERT INTO t VALUES (%d + 0)", row-1)), query(fmt.Sprintf("/* batch */ INSERT INTO t VALUES (%d + 0)", row))))
		for range 2 {
			if e := errorIn(c.ready()); e != nil {
				t.Fatal(e)
			}
		}
	})
	c.ask("CREATE TEMP TABLE pin ()")
	read("an INSERT of a pinned client", times, func() { insert("") })
	read("an INSERT with a hint of a pinned client", times, func() { insert("/* batch */") })
}

// The text of an INSERT that waits for a connection is read once, and a hint in it that is
// invalid is counted once; so it is for a client that keeps its connection.
func TestAWaitingInsertIsReadOnce(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (a int)"), func(c *postgres.Config) { c.PoolSize = 1 })
	holder, c := w.wire(), w.wire()
	row, plain, bad := 0, uint64(0), uint64(0)
	for _, text := range []string{"INSERT INTO t VALUES (%d)", "/* file:a.go line:7 tag:x nightly */ INSERT INTO t VALUES (%d)", `INSERT INTO t VALUES (length('\x')+ %d)`} {
		for _, conforming := range []string{"on", "off"} {
			c.ask("SET standard_conforming_strings = " + conforming)
			const times = 5
			proxytest.Reads(t, text+", "+conforming, times, 3*times, func() uint64 { return w.Scans(t.Context()) }, func() {
				row++
				if strings.Contains(text, "(%d)") {
					plain++
				}
				if strings.Contains(text, "nightly") {
					bad++
				}
				holder.ask("BEGIN")
				before := w.Scans(t.Context())
				c.send(query(fmt.Sprintf(text, row)))
				eventually(t, "it waits", func() bool { return w.Scans(t.Context()) > before })
				holder.ask("COMMIT")
				if e := errorIn(c.ready()); e != nil {
					t.Fatal(e)
				}
			})
		}
	}
	if sh := w.shape("insert into t values (?)"); sh.Runs != plain {
		t.Errorf("%d statements: %+v", plain, sh)
	}
	c.ask("CREATE TEMP TABLE pin ()")
	for range 3 {
		bad++
		c.ask("/* batch:x */ INSERT INTO t VALUES (1)")
	}
	if got := w.snapshot().BadHints; got != bad {
		t.Errorf("%d invalid hints were counted, want %d", got, bad)
	}
}

// A client is told of an invalid hint also if weir first reads it while an answer is under way.
func TestAnInvalidHintBehindAReadIsToldOf(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (a int)"), nil)
	c := w.wire()
	for range 20 { // until the read may share a connection
		c.send(query("SELECT a FROM t"), query("/* batch:x */ INSERT INTO t VALUES (1)"))
		if e := errorIn(c.ready()); e != nil {
			t.Fatal(e)
		}
		if noticeIn(c.ready()) != nil {
			return
		}
	}
	t.Error("no notice came")
}
