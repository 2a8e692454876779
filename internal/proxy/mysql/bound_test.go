package mysql_test

import (
	"testing"

	"github.com/weirdb/weir/internal/lab"
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
