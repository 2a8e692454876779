package postgres_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
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

// A statement that names application_name in capitals, or computes the name, reads it as well:
// its answer is each client's own.
func TestApplicationNameIsReadByAnyName(t *testing.T) {
	t.Parallel()
	const read = "current_setting('APPLICATION' || '_Name')"
	w := start(t, database(t,
		"CREATE TABLE named (who text); INSERT INTO named VALUES ('one'), ('two')",
		"CREATE VIEW capitals AS SELECT who FROM named WHERE who = current_setting('Application_Name')",
		"CREATE VIEW computed AS SELECT who FROM named WHERE who = current_setting('application' || '_name')",
		"CREATE FUNCTION setting(name text) RETURNS text STABLE RETURN current_setting(name, true)",
		"CREATE TABLE stamped (who text, capitals text DEFAULT current_setting('APPLICATION_NAME'), computed text DEFAULT "+read+")",
	), func(c *postgres.Config) { c.PoolSize, c.Loops = 1, 1 })
	w.warm()
	for _, hint := range []string{"", "/* ttl:3600 */ "} {
		for _, sql := range []string{"SELECT who FROM capitals", "SELECT who FROM computed", "SELECT setting('Application_Name') AS who"} {
			for range 2 {
				for _, who := range []string{"one", "two"} {
					c := w.wire(pgwire.Param{Name: "application_name", Value: who})
					if got, want := c.ask(hint+sql), "[who] ("+who+") SELECT_1 I"; !strings.HasSuffix(got, want) { // behind a notice
						t.Errorf("%s%s as %s: %s", hint, sql, who, got)
					}
					c.close()
				}
			}
		}
	}
	for range 3 {
		for _, who := range []string{"one", "two"} {
			c := w.wire(pgwire.Param{Name: "application_name", Value: who})
			c.want("/* batch */ INSERT INTO stamped VALUES ('"+who+"')", "INSERT_0_1 I")
			c.close()
		}
	}
	dialWire(t, server(t).Addr(), w.db).want("SELECT DISTINCT who, capitals, computed FROM stamped ORDER BY 1", "[who,capitals,computed] (one,one,one) (two,two,two) SELECT_2 I")
}
