package mysql_test

import (
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// TestDiagnosticsOfNewSessions: what the last statement left is known, and as on a direct
// connection, where there was none, or only some that set something.
func TestDiagnosticsOfNewSessions(t *testing.T) {
	t.Parallel()
	onFlavors(t, func(t *testing.T, server *lab.MySQL) {
		db := databaseOn(t, server, "CREATE TABLE t (a INT)", "INSERT INTO t VALUES (1), (2)")
		w := startFor(t, server, db, func(c *mysql.Config) { c.PoolSize = 1 })
		other := w.dial(nil)
		for _, first := range []string{"", "SET autocommit = 0", "SET NAMES latin1; SET time_zone = '+01:00'", "reset"} {
			for _, question := range []string{
				"SELECT ROW_COUNT()", "SELECT FOUND_ROWS()", "SELECT @@warning_count, @@error_count", "SHOW WARNINGS",
				"SELECT ROW_COUNT(), FOUND_ROWS(), @@warning_count, @@error_count, LAST_INSERT_ID()",
			} {
				if isMariaDB(server) && strings.Contains(question, "FOUND_ROWS()") {
					continue // there it is what the session before in the server's thread has left
				}
				ask := func(c *wire, prepared bool) string {
					other.try(other.query("INSERT INTO t VALUES ('x')"))
					other.try(other.query("SELECT a FROM t"))
					for sql := range strings.SplitSeq(first, "; ") {
						switch sql {
						case "":
						case "reset":
							c.try(mywire.AppendResetConnection(nil))
						default:
							c.must(sql)
						}
					}
					defer func() { _ = c.Close() }()
					if prepared {
						return c.try(c.prepare(question).execute(0)).text
					}
					return c.try(c.query(question)).text
				}
				for _, prepared := range []bool{false, true} {
					if prepared && !strings.HasSuffix(question, "ROWS()") && !strings.HasSuffix(question, "COUNT()") {
						continue // MySQL prepares no such question
					}
					want := ask(dialAt(t, server.Addr(), db, nil), prepared)
					if got := ask(w.dial(nil), prepared); got != want {
						t.Errorf("%q, then %q, prepared %v:\n  weir %s\ndirect %s", first, question, prepared, got, want)
					}
				}
			}
		}
		c := w.dial(nil)
		c.must("UPDATE t SET a = 3")
		other.must("UPDATE t SET a = 4")
		if r := c.try(c.query("SELECT FOUND_ROWS(), ROW_COUNT()")); r.code() != mywire.ErrNotSupportedYet {
			t.Errorf("what was not kept was answered with %s", r.text)
		}
	})
}
