package mysql_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/proxytest"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// The text of an INSERT is read once, whichever way it takes; that of a prepared one
// when it is prepared, and never again.
func TestAnInsertIsReadOnce(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (a int PRIMARY KEY)"), nil)
	c := w.dial(nil)
	row := 0
	insert := func(hint string) {
		row++
		c.must(fmt.Sprintf("%s INSERT INTO t VALUES (%d)", hint, row))
	}
	eventually(t, "a group of one", func() bool { // weir gets to know the table
		insert("/* batch */")
		return w.pool().Grouped > 0
	})
	const times = 5
	read := func(what string, want uint64, run func()) {
		t.Helper()
		proxytest.Reads(t, what, times, want, func() uint64 { return w.Scans(t.Context()) }, run)
	}
	read("an INSERT with a hint", times, func() { insert("/* batch */") })
	read("an INSERT without one", times, func() { insert("") })
	c.must("BEGIN")
	read("an INSERT in a transaction", times, func() { insert("") })
	c.must("COMMIT")
	pinned := w.dial(nil)
	pinned.must("CREATE TEMPORARY TABLE pin (a int)")
	read("an INSERT of a pinned client", times, func() {
		row++
		pinned.must(fmt.Sprintf("/* batch */ INSERT INTO t VALUES (%d)", row))
	})
	c.send(mywire.AppendPrepare(nil, "/* batch */ INSERT INTO t VALUES (?)"))
	_, payload := c.packet()
	prepared, err := mywire.ParsePrepared(payload)
	if err != nil {
		t.Fatal(err)
	}
	for range 1 { // the parameter's definition
		c.packet()
	}
	if !c.Caps.Has(mywire.CapDeprecateEOF) {
		c.packet()
	}
	read("a prepared INSERT", 0, func() {
		row++
		c.send(mywire.AppendExecute(nil, 0, prepared.StmtID, 0, []byte{0}, []byte{3, 0}, []byte{byte(row), byte(row >> 8), 0, 0}))
		if _, payload := c.packet(); !mywire.IsOK(payload) {
			t.Fatalf("execute: %x", payload)
		}
	})
}

// The text of an INSERT that waits for a connection is read once, and a hint in it that is invalid
// is counted once.
func TestAWaitingInsertIsReadOnce(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (a int PRIMARY KEY)"), func(c *mysql.Config) { c.PoolSize = 1 })
	holder, c := w.dial(nil), w.dial(nil)
	row := 0
	const times = 5
	for _, mode := range []string{"", "ANSI_QUOTES,NO_BACKSLASH_ESCAPES,STRICT_TRANS_TABLES"} {
		c.must("SET sql_mode = '" + mode + "'")
		for _, text := range []string{"INSERT INTO t VALUES (%d)", "/* file:a.go line:7 tag:x batch:x */ INSERT INTO t VALUES (%d)"} {
			rounds, before := 0, proxytest.Snapshot(t, w).BadHints
			proxytest.Reads(t, text+", "+mode, times, 3*times, func() uint64 { return w.Scans(t.Context()) }, func() {
				row++
				rounds++
				holder.must("BEGIN")
				before := w.Scans(t.Context())
				c.send(c.query(fmt.Sprintf(text, row)))
				eventually(t, "it waits", func() bool { return w.Scans(t.Context()) > before })
				holder.must("COMMIT")
				if _, payload := c.packet(); !mywire.IsOK(payload) {
					t.Fatalf("%x", payload)
				}
			})
			want := uint64(0)
			if strings.Contains(text, "batch:x") {
				want = uint64(rounds)
			}
			if got := proxytest.Snapshot(t, w).BadHints - before; got != want {
				t.Errorf("%s: %d invalid hints in %d statements, want %d", text, got, rounds, want)
			}
		}
	}
}

// TestConnectionsOpenedAtOnceReadTheCatalogueOnce: what the server's views, routines and
// triggers do is read by the first connection of many that are opened together.
func TestConnectionsOpenedAtOnceReadTheCatalogueOnce(t *testing.T) {
	t.Parallel()
	const clients = 6
	w := start(t, database(t), func(c *mysql.Config) { c.PoolSize = clients })
	all := w.dials(clients)
	messages := make([][]byte, clients)
	for i, c := range all {
		messages[i] = c.query("BEGIN")
	}
	together(all, messages)
	if n := w.CatalogueReadings(ctxFor(t)); w.pool().Backends != clients || n > clients/2 { // what other tests create has it read again each second
		t.Errorf("%d connections have read it %d times", w.pool().Backends, n)
	}
}
