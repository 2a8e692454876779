package mysql_test

import (
	"fmt"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// TestExecutionsThatAreCutShort checks that a client that sends too few parameters, or no types,
// gets the server's own error, whatever others have executed on the connection.
func TestExecutionsThatAreCutShort(t *testing.T) {
	t.Parallel()
	onFlavors(t, func(t *testing.T, server *lab.MySQL) {
		db := databaseOn(t, server, "CREATE TABLE t (a INT, b VARCHAR(20))")
		w := startFor(t, server, db, func(c *mysql.Config) { c.PoolSize, c.ReadLanes = 1, 1 })
		other := w.dial(nil)
		for _, sql := range []string{"SELECT ?, ?", "INSERT INTO t VALUES (?, ?)", "/* batch */ INSERT INTO t VALUES (?, ?)"} {
			for range 2 {
				if r := other.try(other.prepare(sql).execute(7)); r.err != nil || r.lost != nil {
					t.Fatalf("%s: %s %v", sql, r.text, r.lost)
				}
			}
			const value = "\x01\x00\x00\x00\x00\x00\x00\x00"
			for _, values := range []string{
				"", "\x00", "\x00\x01", "\x00\x01\x08\x00", "\x00\x01\x08\x00\x08\x00", "\x00\x01\x08\x00\x08\x00\x01\x02\x03",
				"\x00\x01\x08\x00\x08\x00" + value, "\x00\x01\x08\x00\xfd\x00" + value + "\x14x",
				"\x00\x00" + value + value, "\x01\x00" + value,
				"\x00\x01\x08\x00\x08\x00" + value + value + "more", "\x00\x01\x63\x00\x08\x00" + value + value,
			} {
				for _, begin := range []bool{false, true} {
					answer := func(addr string) string {
						c := dialAt(t, addr, db, nil)
						defer c.Close()
						p := c.prepare(sql)
						if begin {
							c.must("BEGIN")
						}
						r := c.try(mywire.AppendCommand(nil, mywire.ComStmtExecute, string([]byte{byte(p.id), byte(p.id >> 8), byte(p.id >> 16), byte(p.id >> 24), 0, 1, 0, 0, 0})+values))
						return fmt.Sprint(r.text, r.lost, " then ", c.try(c.query("SELECT 5")).text)
					}
					want := answer(server.Addr())
					if got := answer(w.Addr().String()); got != want {
						t.Errorf("%s with %q, in a transaction %v\n  weir %s\ndirect %s", sql, values, begin, got, want)
					}
				}
			}
		}
	})
}
