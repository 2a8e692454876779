package mysql_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
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

// So is what LAST_INSERT_ID() is afterwards.
func TestIDsOfPreparedWritesFollowTheirOwnTable(t *testing.T) {
	t.Parallel()
	perFlavor(t, func(t *testing.T, server *lab.MySQL) {
		ids := databaseOn(t, server, "CREATE TABLE t (id BIGINT AUTO_INCREMENT PRIMARY KEY, k BIGINT)")
		none := databaseOn(t, server, "CREATE TABLE t (id BIGINT, k BIGINT)")
		w := startFor(t, server, none, nil)
		through, past := w.dial(nil), dialAt(t, server.Addr(), none, nil)
		through.must("USE " + ids)
		past.must("USE " + ids)
		const sql = "INSERT INTO t (id, k) VALUES (?, ?)"
		p, q := through.prepare(sql), past.prepare(sql)
		through.must("USE " + none)
		past.must("USE " + none)
		for i := range int64(20) { // weir gets to know the tables
			through.must("INSERT INTO t (id, k) VALUES (1, 1)")
			for _, r := range []reply{through.try(p.execute(1000 + 2*i)), past.try(q.execute(1001 + 2*i))} {
				if r.err != nil || r.lost != nil {
					t.Fatalf("%s %v", r.text, r.lost)
				}
			}
			const ask = "SELECT LAST_INSERT_ID()"
			if got, want := through.one(ask), past.one(ask); got != want {
				t.Fatalf("LAST_INSERT_ID() is %s, direct %s", got, want)
			}
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

// A long text is judged by what it says itself, though a reading of the one before it ends
// late, on a connection that its client has lost by then.
func TestALateReadingOfALongTextIsForgotten(t *testing.T) {
	t.Parallel()
	relay := labtest.Relay(t, server(t).Addr())
	w := start(t, database(t), func(c *mysql.Config) { c.MySQL.Address, c.PoolSize = relay.Addr(), 1 })
	pad := "/* " + strings.Repeat("x", 8<<20) + " */"
	for round := range 3 {
		var c *wire
		for lost := true; lost; {
			c = w.dial(nil)
			before := w.Scans(ctxFor(t))
			c.send(c.query("SELECT 7 " + pad))
			eventually(t, "the text is being read", func() bool { return w.Scans(ctxFor(t)) > before })
			relay.Cut()
			r, _ := c.hear(mywire.ComQuery)
			if r.lost != nil {
				t.Fatal(r.lost)
			}
			if lost = r.err != nil; lost { // it was read, and sent, before the connection was lost
				_ = c.Close()
			}
		}
		c.must(fmt.Sprintf("SET @v = %d %s", round, pad))
		if w.pool().Pinned != 1 {
			t.Fatal("a session with a user variable does not keep its connection")
		}
		if got := c.one("SELECT @v"); got != fmt.Sprint(round) {
			t.Fatalf("the client's variable is %s, want %d", got, round)
		}
		_ = c.Close()
	}
}
