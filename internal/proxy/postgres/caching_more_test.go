package postgres_test

import (
	"fmt"
	"testing"

	"github.com/weirdb/weir/internal/proxy/postgres"
)

// Answers are kept by the role's name: they end with the role, and with the defaults in
// which they were read.
func TestCacheEndsWithTheRole(t *testing.T) {
	t.Parallel()
	for _, over := range []bool{false, true} {
		t.Run(fmt.Sprintf("over weir %v", over), func(t *testing.T) {
			t.Parallel()
			w := startCache(t, func(c *postgres.Config) { c.LoginCheckInterval = -1 })
			role := "r" + w.db
			admin := dialWire(t, server(t).Addr(), w.db)
			if over {
				admin = w.wire()
			}
			admin.want("CREATE ROLE "+role+" LOGIN", "CREATE_ROLE I")
			defer onServer(t, "DROP ROLE IF EXISTS "+role)
			const read = "SELECT oid::text || ' ' || at::text AS n FROM pg_roles, kept WHERE rolname = current_user AND k = 1"
			for _, change := range [][]string{
				nil,
				{"ALTER ROLE " + role + " SET timezone = 'Asia/Tokyo'", "ALTER_ROLE I"},
				{"ALTER DATABASE " + w.db + " SET datestyle = 'German'", "ALTER_DATABASE I"},
				{"DROP ROLE " + role, "DROP_ROLE I", "CREATE ROLE " + role + " LOGIN", "CREATE_ROLE I"},
			} {
				for i := 0; i < len(change); i += 2 {
					admin.want(change[i], change[i+1])
				}
				direct := dialWireAs(t, server(t).Addr(), w.db, role)
				want := direct.ask(read)
				direct.close()
				eventually(t, fmt.Sprintf("after %q a login reads %s", change, want), func() bool {
					c := dialWireAs(t, w.Addr().String(), w.db, role)
					defer c.close()
					return c.ask("/* ttl:3600 */ "+read) == want
				})
			}
		})
	}
}

// A client sees what the transaction has written that it commits by its name.
func TestCacheShowsWhatWasPrepared(t *testing.T) {
	t.Parallel()
	w := startCache(t, nil)
	const read = "/* ttl:3600 */ SELECT v FROM kept WHERE k = 1"
	name := "p" + w.db
	past := dialWire(t, server(t).Addr(), w.db)
	for _, sql := range []string{"BEGIN", "UPDATE kept SET v = 'new'", "PREPARE TRANSACTION '" + name + "'"} {
		past.ask(sql)
	}
	c := w.wire()
	c.want(read, "[v] (old) SELECT_1 I")
	c.want("COMMIT PREPARED '"+name+"'", "COMMIT_PREPARED I")
	c.want(read, "[v] (new) SELECT_1 I")
}

// The server reads a statement's constants when it is prepared, in the settings of then.
func TestCacheKnowsWhenItWasPrepared(t *testing.T) {
	t.Parallel()
	w := startCache(t, nil)
	const sql = "/* ttl:3600 */ SELECT timestamptz '2026-02-03 04:05:06' AS at, length('\xc3\xbc') AS n"
	before, within := w.wire(), w.wire()
	for _, c := range []*wire{before, within} {
		c.ask("SET timezone = 'UTC'")
	}
	before.send(parse("s", sql), sync())
	before.ready()
	for _, c := range []*wire{before, within} {
		c.ask("SET timezone = 'Asia/Tokyo'")
	}
	within.send(parse("s", sql), sync())
	within.ready()
	misses := w.cached().Misses
	for range 2 {
		for _, c := range []*wire{before, within} {
			c.send(bind("", "s"), describe('P', ""), execute("", 0), sync())
			c.ready()
		}
	}
	if n := w.cached().Misses - misses; n != 2 {
		t.Errorf("%d statements were told apart, want those of 2 time zones", n)
	}
}
