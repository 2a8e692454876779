package mysql_test

import (
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/mysql"
)

// TestResourceGroupsStayWithTheirSessions: no reset ends that a session is in a resource
// group, and the server does not tell of it. The next client of the connection is in the
// default one, however the client before has left that.
func TestResourceGroupsStayWithTheirSessions(t *testing.T) {
	t.Parallel()
	if isMariaDB(server(t)) {
		t.Skip("MariaDB has no resource groups")
	}
	if err := shared.server.Exec(t.Context(), "CREATE RESOURCE GROUP weir_test TYPE = USER"); err != nil {
		t.Skipf("the server gives no resource group: %v", err)
	}
	t.Cleanup(func() { _ = shared.server.Exec(t.Context(), "DROP RESOURCE GROUP weir_test FORCE") })
	db := database(t,
		"CREATE PROCEDURE runs(x TEXT) BEGIN SET @x = x; PREPARE s FROM @x; EXECUTE s; DEALLOCATE PREPARE s; END",
		"CREATE PROCEDURE outer_runs(x TEXT) CALL runs(x)",
		"CREATE PROCEDURE sets() SET RESOURCE GROUP weir_test",
		"CREATE FUNCTION f() RETURNS INT BEGIN SET RESOURCE GROUP weir_test; RETURN 1; END",
		"CREATE PROCEDURE plain() DO 1")
	w := startFor(t, shared.server, db, func(c *mysql.Config) { c.PoolSize = 1 })
	const group = "SELECT RESOURCE_GROUP FROM performance_schema.threads WHERE PROCESSLIST_ID = CONNECTION_ID()"
	for _, text := range []string{
		"SET RESOURCE GROUP weir_test",
		"CALL runs('SET RESOURCE GROUP weir_test')",
		"CALL outer_runs('SET RESOURCE GROUP weir_test')",
		"CALL sets()",
		"SELECT f()",
		"PREPARE s FROM 'SET RESOURCE GROUP weir_test'; EXECUTE s; DEALLOCATE PREPARE s",
		"SET @x = 'SET RESOURCE GROUP weir_test'; PREPARE s FROM @x; EXECUTE s; DEALLOCATE PREPARE s",
	} {
		c := w.dial(nil)
		for sql := range strings.SplitSeq(text, "; ") {
			if r := c.try(c.query(sql)); r.err != nil || r.lost != nil {
				t.Fatalf("%s: %v %v", sql, r.err, r.lost)
			}
		}
		if got := c.one(group); got != "weir_test" {
			t.Errorf("after %s its client runs in %s", text, got)
		}
		_ = c.Close()
		c = w.dial(nil)
		if got := c.one(group); got != "USR_default" {
			t.Errorf("after %s the next client runs in %s", text, got)
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
}
