package postgres_test

import (
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/session"
)

// TestModeStatementRefusesTransactions: whatever the road, a session that is in a
// transaction behind its message ends, and the transaction is rolled back. A text that ends
// the transaction that it begins is one message, and passes, as in PgBouncer.
func TestModeStatementRefusesTransactions(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE n (i int)"), func(c *postgres.Config) { c.Mode = session.ModeStatement })
	c := w.wire()
	for _, whole := range []string{"BEGIN; INSERT INTO n VALUES (1); COMMIT", "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE", "DO $$ BEGIN INSERT INTO n VALUES (1); END $$"} {
		if got := c.ask(whole); !strings.HasSuffix(got, " I") {
			t.Errorf("%s: %s", whole, got)
		}
	}
	for name, message := range map[string][]byte{
		"BEGIN":                       query("BEGIN"),
		"prepared":                    run("BEGIN"),
		"behind another":              query("SELECT 1; START TRANSACTION; INSERT INTO n VALUES (7)"),
		"by COMMIT AND CHAIN":         query("BEGIN; INSERT INTO n VALUES (1); COMMIT AND CHAIN"),
		"that has failed":             query("BEGIN; SELECT 1; COMMIT; BEGIN; INSERT INTO n VALUES (7); SELECT 1/0"),
		"prepared, behind its others": append(append(parse("", "BEGIN"), append(bind("", ""), execute("", 0)...)...), run("INSERT INTO n VALUES (7)")...),
	} {
		c := w.wire()
		c.send(message)
		if got := render(c.end()); !strings.Contains(got, "FATAL:0A000") {
			t.Errorf("%s: %s", name, got)
		}
		w.wire().want("SELECT count(*) AS n FROM n WHERE i = 7", "[n] (0) SELECT_1 I")
	}
}
