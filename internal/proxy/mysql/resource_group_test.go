package mysql_test

import (
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// groupOf asks in which resource group a session is.
const groupOf = "SELECT RESOURCE_GROUP FROM performance_schema.threads WHERE PROCESSLIST_ID = CONNECTION_ID()"

// needsResourceGroups makes a group and a database with code that joins it.
func needsResourceGroups(t *testing.T) (server *lab.MySQL, group, db string) {
	t.Helper()
	server = shared.server
	if isMariaDB(server) {
		t.Skip("MariaDB has no resource groups")
	}
	group = strings.ToLower(t.Name())
	if err := server.Exec(t.Context(), "CREATE RESOURCE GROUP "+group+" TYPE = USER"); err != nil {
		t.Skipf("the server gives no resource group: %v", err)
	}
	t.Cleanup(func() { _ = server.Exec(t.Context(), "DROP RESOURCE GROUP "+group+" FORCE") })
	return server, group, database(t,
		"CREATE PROCEDURE runs(x TEXT) BEGIN SET @x = x; PREPARE s FROM @x; EXECUTE s; DEALLOCATE PREPARE s; END",
		"CREATE PROCEDURE outer_runs(x TEXT) CALL runs(x)",
		"CREATE PROCEDURE sets() SET RESOURCE GROUP "+group,
		"CREATE FUNCTION f() RETURNS INT BEGIN SET RESOURCE GROUP "+group+"; RETURN 1; END",
		"CREATE TABLE fires (a INT)",
		"CREATE TRIGGER joins BEFORE INSERT ON fires FOR EACH ROW SET RESOURCE GROUP "+group,
		"CREATE PROCEDURE plain() DO 1")
}

// TestResourceGroupsStayWithTheirSessions: no reset ends that a session is in a resource
// group, and the server does not tell of it. The next client of the connection is in the
// default one, however the client before has left that.
func TestResourceGroupsStayWithTheirSessions(t *testing.T) {
	t.Parallel()
	server, group, db := needsResourceGroups(t)
	texts := []struct {
		text   string
		unseen bool // what the modes that ignore the state of sessions do not look for
	}{
		{text: "SET RESOURCE GROUP g"},
		{text: "CALL sets()"},
		{text: "SELECT f()"},
		{text: "INSERT INTO fires VALUES (1)"},
		{text: "PREPARE s FROM 'SET RESOURCE GROUP g'; EXECUTE s"},
		{text: "CALL runs('SET RESOURCE GROUP g')", unseen: true},
		{text: "CALL outer_runs('SET RESOURCE GROUP g')", unseen: true},
		{text: "SET @x = 'SET RESOURCE GROUP g'; PREPARE s FROM @x; EXECUTE s; DEALLOCATE PREPARE s", unseen: true},
	}
	for _, mode := range []session.Mode{session.ModeAuto, session.ModeSession, session.ModeTransaction, session.ModeStatement} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			w := startFor(t, server, db, func(c *mysql.Config) { c.PoolSize, c.Mode = 1, mode })
			keeps := mode == session.ModeAuto || mode == session.ModeSession
			for _, tc := range texts {
				if tc.unseen && !keeps {
					continue
				}
				c := w.dial(nil)
				for sql := range strings.SplitSeq(strings.ReplaceAll(tc.text, "GROUP g", "GROUP "+group), "; ") {
					if r := c.try(c.query(sql)); r.err != nil || r.lost != nil {
						t.Fatalf("%s: %v %v", sql, r.err, r.lost)
					}
				}
				if got := c.one(groupOf); keeps && got != group {
					t.Errorf("after %s its client runs in %s", tc.text, got)
				}
				_ = c.Close()
				c = w.dial(nil)
				if got := c.one(groupOf); got != "USR_default" {
					t.Errorf("after %s the next client runs in %s", tc.text, got)
				}
				_ = c.Close()
			}
			before := w.dial(nil)
			before.must("CALL plain()")
			id := before.one("SELECT CONNECTION_ID()")
			_ = before.Close()
			if got := w.dial(nil).one("SELECT CONNECTION_ID()"); got != id {
				t.Errorf("connection %s ran a procedure that joins no group, and was not kept: the next is %s", id, got)
			}
		})
	}
}

// TestUnjudgedStatementsMayHaveJoinedAGroup: what ran while weir did not know what a procedure
// does may have joined a resource group, also if the session is reset or over before weir
// has looked.
func TestUnjudgedStatementsMayHaveJoinedAGroup(t *testing.T) {
	t.Parallel()
	server, group, db := needsResourceGroups(t)
	w := startFor(t, server, db, func(c *mysql.Config) { c.PoolSize = 1 })
	for name, leave := range map[string]func(c *wire){
		"its end":              func(c *wire) { _ = c.Close() },
		"COM_RESET_CONNECTION": func(c *wire) { c.try(mywire.AppendResetConnection(nil)) },
	} {
		c := w.dial(nil)
		c.must("SET @x = 1") // keeps the connection
		c.must("CREATE OR REPLACE VIEW v AS SELECT 1")
		c.must("CALL sets()")
		if got := c.one(groupOf); got != group {
			t.Errorf("%s: the client runs in %s", name, got)
		}
		leave(c)
		next := w.dial(nil)
		if got := next.one(groupOf); got != "USR_default" {
			t.Errorf("after %s the next client runs in %s", name, got)
		}
		_ = next.Close()
		_ = c.Close()
	}
}
