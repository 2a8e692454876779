package postgres_test

import (
	"fmt"
	"testing"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// makesFunction is behind which the catalogue is read, on the client's own backend.
const makesFunction = "CREATE OR REPLACE FUNCTION one() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN 1; END'"

func TestMessagesBehindNewFunctionsWaitForTheReading(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), nil)
	c, other := w.wire(), w.wire()
	for _, m := range []struct {
		parts  [][]byte
		answer string
	}{
		{[][]byte{closing('S', "s"), parse("s", "SELECT 1 AS x"), describe('S', "s"), sync()}, "closed parsed t:2 [x] I"},
		{[][]byte{closing('S', "s"), parse("", "SELECT 1 AS x"), bind("", ""), execute("", 0), sync()}, "closed parsed bound (1) SELECT_1 I"},
		{[][]byte{closing('P', "p"), sync(), query("SELECT 1 AS x")}, "closed I"},
		{[][]byte{execute("p", 0), parse("", "SELECT 1 AS x"), sync()}, "ERROR:34000 I"},
	} {
		c.want(makesFunction, "CREATE_FUNCTION I")
		c.send(m.parts...)
		if got := render(c.ready()); got != m.answer {
			t.Errorf("got %s\nwant %s", got, m.answer)
		}
		other.want("SELECT 2 AS y", "[y] (2) SELECT_1 I")
		if len(m.parts) == 3 && m.answer == "closed I" {
			c.ready()
		}
	}
}

func TestTheReadingDoesNotDependOnTheClientsSettings(t *testing.T) {
	t.Parallel()
	w := start(t, database(t, "CREATE TABLE t (n int)"), nil)
	deferrable := []pgwire.Param{{Name: "options", Value: "-c default_transaction_isolation=serializable -c default_transaction_read_only=on -c default_transaction_deferrable=on -c jit=on"}}
	for _, params := range [][]pgwire.Param{
		deferrable, // waits for serializable transactions to end
		{{Name: "options", Value: "-c jit=on -c jit_above_cost=0 -c jit_optimize_above_cost=0 -c jit_inline_above_cost=0 -c enable_seqscan=off"}},
	} {
		maker, other := w.wire(params...), w.wire()
		other.ask("BEGIN ISOLATION LEVEL SERIALIZABLE")
		other.ask("INSERT INTO t SELECT count(*) FROM t")
		maker.want("BEGIN READ WRITE ISOLATION LEVEL READ COMMITTED; "+makesFunction+"; COMMIT", "BEGIN CREATE_FUNCTION COMMIT I")
		other.want("COMMIT", "COMMIT I") // patience ends the wait
		maker.want("SHOW jit", "[jit] (on) SHOW I")
	}
}

// Settings of SET TRANSACTION end with the transaction, although the server goes on to say that
// the session has set them.
func TestTheAuditKnowsSettingsOfATransaction(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *postgres.Config) { c.PoolSize = 1 })
	c := w.wire()
	for _, sql := range []string{
		"BEGIN; SET TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY, DEFERRABLE; SELECT 1; COMMIT",
		"BEGIN; SET TRANSACTION READ ONLY; ROLLBACK",
	} {
		c.ask(sql)
	}
	w.audited()
	if n := w.pool().Strays; n != 0 {
		t.Errorf("%d strays", n)
	}
}

// TestClientsThatMakeFunctionsAtOnceKeepNoConnection has two clients make functions,
// so that one makes its own while the catalogue is read for the other's.
func TestClientsThatMakeFunctionsAtOnceKeepNoConnection(t *testing.T) {
	t.Parallel()
	w := start(t, database(t), func(c *postgres.Config) { c.PoolSize = 3 })
	all := []*wire{w.wire(), w.wire(), w.wire()}
	for range 10 {
		var messages [][]byte
		for i := range all {
			messages = append(messages, query(fmt.Sprintf("CREATE OR REPLACE FUNCTION f%d() RETURNS int LANGUAGE sql AS 'SELECT 1'", i)))
		}
		for _, got := range together(all, messages) {
			if render(got) != "CREATE_FUNCTION I" {
				t.Fatal(render(got))
			}
		}
		eventually(t, "all connections are free", func() bool {
			p := w.pool()
			return p.Owned == 0 && p.Free == p.Backends
		})
	}
}
