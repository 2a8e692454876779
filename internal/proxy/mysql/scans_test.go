package mysql_test

import (
	"fmt"
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
