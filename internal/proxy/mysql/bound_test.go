package mysql_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// A prepared write goes to the table of the database in which it was prepared, whatever
// its session uses by then: whether it may join a group is that table's matter.
func TestPreparedWritesAreJudgedByTheirOwnTable(t *testing.T) {
	t.Parallel()
	perFlavor(t, func(t *testing.T, server *lab.MySQL) {
		for _, sql := range []string{"INSERT INTO t (k) VALUES (?)", "UPDATE t SET k = k + 1 WHERE k = ?"} {
			t.Run(sql[:6], func(t *testing.T) {
				t.Parallel()
				plain := databaseOn(t, server, "CREATE TABLE t (k BIGINT)")
				other := databaseOn(t, server, "CREATE TABLE t (k BIGINT) ENGINE=MyISAM")
				w := startFor(t, server, plain, nil)
				preparedIn := func(db string) prepared {
					c := w.dial(nil)
					c.must("USE " + db)
					p := c.prepare("/* batch */ " + sql)
					c.must("USE " + map[string]string{plain: other, other: plain}[db])
					return p
				}
				run := func(p prepared) (grouped bool) {
					before := w.pool().Grouped
					if r := p.c.try(p.execute(1)); r.err != nil || r.lost != nil {
						t.Fatalf("%s %v", r.text, r.lost)
					}
					return w.pool().Grouped > before
				}
				eventually(t, "one to a plain table joins a group, whatever the session's database", func() bool { return run(preparedIn(plain)) })
				p := w.dial(nil).prepare("/* batch */ " + sql)
				eventually(t, "so does one in the session's database", func() bool { return run(p) })
				p = preparedIn(other)
				for range 10 {
					if run(p) {
						t.Fatal("one to a MyISAM table of another database joins a group")
					}
				}
			})
		}
	})
}

// An execution that goes to another connection has the types that its client gave it, not
// those of a later one that was sent behind it.
func TestExecutionsKeepTheirTypesElsewhere(t *testing.T) {
	t.Parallel()
	relay := labtest.Relay(t, server(t).Addr())
	w := start(t, database(t, "CREATE TABLE d (k INT)", "INSERT INTO d VALUES (7)"), func(c *mysql.Config) {
		c.MySQL.Address, c.PoolSize, c.ReadLanes = relay.Addr(), 1, 1
	})
	c := w.dial(nil)
	p := c.prepare("SELECT k, ? FROM d")
	const (
		bigint  = 8
		varchar = 253
	)
	one := binary.LittleEndian.AppendUint64(nil, 0x3131313131313107) // seven ones, as a string
	execute := func(kind byte) []byte {
		return mywire.AppendExecute(nil, c.Caps, p.id, 0, []byte{0}, []byte{kind, 0}, one)
	}
	untyped := mywire.AppendExecute(nil, c.Caps, p.id, 0, nil, nil, append([]byte{0, 0}, one...))
	var want [2]string
	eventually(t, "executions share", func() bool {
		before := w.pool().Reads
		want[1], want[0] = c.try(execute(varchar)).text, c.try(execute(bigint)).text
		return w.pool().Reads == before+2
	})
	if want[0] == want[1] {
		t.Fatalf("both types are answered alike: %s", want[0])
	}
	for range 5 {
		relay.CutAfter(lab.ToServer, 5)
		c.send(slices.Concat(untyped, untyped, execute(varchar)))
		for i := range 3 {
			r, _ := c.hear(mywire.ComStmtExecute)
			if i == 0 {
				if r.code() != mywire.ErrNetRead {
					t.Fatalf("the first execution: %s %v, want error %d", r.text, r.lost, mywire.ErrNetRead)
				}
				continue
			}
			r.mustBe(t, fmt.Sprintf("execution %d", i), want[i-1])
		}
		c.try(execute(bigint)).mustBe(t, "afterwards", want[0])
	}
}
