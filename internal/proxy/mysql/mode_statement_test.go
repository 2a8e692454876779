package mysql_test

import (
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// TestModeStatementRefusesTransactions: whatever the road. What a text shows is refused;
// of what only its answer shows, the session ends, and the transaction is rolled back.
func TestModeStatementRefusesTransactions(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE n (i INT)", "CREATE PROCEDURE pbegin() BEGIN START TRANSACTION; INSERT INTO n VALUES (7); END",
		"CREATE PROCEDURE poff() BEGIN SET autocommit = 0; END", "CREATE PROCEDURE pwhole() BEGIN START TRANSACTION; INSERT INTO n VALUES (1); COMMIT; END")
	w := start(t, db, func(c *mysql.Config) { c.Mode, c.PoolSize = session.ModeStatement, 1 })
	c := w.dial(nil)
	refused := func(what string, r reply) {
		t.Helper()
		if r.code() != mywire.ErrNotSupportedYet {
			t.Errorf("%s: %q %v", what, r.text, r.lost)
		}
	}
	for _, sql := range []string{"BEGIN", "START TRANSACTION READ ONLY", "SET autocommit = 0", "SET time_zone = '+01:00', @@session.autocommit = 'off'", "SET @@autocommit=FALSE"} {
		refused(sql, c.try(c.query(sql)))
		if strings.HasPrefix(sql, "SET") || isMariaDB(server(t)) { // MySQL prepares no BEGIN
			refused(sql+", prepared", c.try(c.prepare(sql).execute(0)))
		}
	}
	c.must("SET autocommit = 1")
	c.must("INSERT INTO n VALUES (1)")
	c.must("CALL pwhole()")
	roads := map[string][]string{
		"by EXECUTE":           {"PREPARE p FROM 'BEGIN'", "EXECUTE p"},
		"by EXECUTE IMMEDIATE": {"EXECUTE IMMEDIATE 'START TRANSACTION'"},
		"by an expression":     {"SET @off = 0", "SET autocommit = @off", "INSERT INTO n VALUES (7)"},
		"by a procedure":       {"CALL pbegin()"},
		"by its autocommit":    {"CALL poff()", "INSERT INTO n VALUES (7)"},
		"by XA":                {"XA START 'weir'"},
	}
	if !isMariaDB(server(t)) {
		roads["by EXECUTE"] = []string{"PREPARE p FROM 'SET autocommit = 0'", "EXECUTE p", "INSERT INTO n VALUES (7)"}
		delete(roads, "by EXECUTE IMMEDIATE")
	}
	for name, road := range roads {
		c := w.dial(nil)
		for _, sql := range road {
			if r := c.try(c.query(sql)); r.lost != nil || r.err != nil {
				break
			}
		}
		_, payload, err := c.tryPacket() // as a server says by itself why it hangs up
		if e, perr := mywire.ParseError(payload); err != nil || perr != nil || e.Code != mywire.ErrNotSupportedYet {
			t.Errorf("%s: the session goes on with %q, %v", name, payload, err)
		}
		if _, _, err := c.tryPacket(); err == nil {
			t.Errorf("%s: the connection stays", name)
		}
		if got := w.dial(nil).one("SELECT COUNT(*) FROM n WHERE i = 7"); got != "0" {
			t.Errorf("%s: %s rows were written", name, got)
		}
	}
}
