package mysql_test

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"golang.org/x/sync/errgroup"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// Many clients on few backends ask for what their own last statement left: it is
// right, or refused, and never another's.
func questionsAboutTheLastStatementAreNeverWrong(t *testing.T, server *lab.MySQL) {
	db := databaseOn(t, server, stateSetup...)
	w := startFor(t, server, db, twoBackends)
	const clients, rounds = 12, 60
	var g errgroup.Group
	for n := range clients {
		c := w.dial(nil)
		g.Go(func() error {
			defer func() { _ = c.Close() }() // it may hold a backend, for which others wait
			q := &questioner{c: c, n: n, rnd: rand.New(rand.NewPCG(uint64(n), 7))}
			for range rounds {
				if err := q.round(); err != nil {
					return fmt.Errorf("client %d: %w", n, err)
				}
			}
			if q.right == 0 {
				return fmt.Errorf("client %d: all of %d questions were refused", n, q.refused)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

// A questioner is a client that knows what the answers must be.
type questioner struct {
	c              *wire
	n              int
	rnd            *rand.Rand
	id             uint64
	right, refused int
}

func (q *questioner) exec(statement string) (mywire.OK, error) {
	ok, err := q.c.Exec(ctxFor(q.c.tb), statement)
	if err != nil && mywire.CodeOf(err) != mywire.ErrDuplicateKey {
		return ok, fmt.Errorf("%s: %w", statement, err)
	}
	return ok, nil
}

// is asks for one value, which may be refused.
func (q *questioner) is(query, want string) error {
	rows, err := q.c.Query(ctxFor(q.c.tb), query)
	switch {
	case mywire.CodeOf(err) == mywire.ErrNotSupportedYet:
		q.refused++
		return nil
	case err != nil:
		return fmt.Errorf("%s: %w", query, err)
	}
	got := "nothing"
	if len(rows) > 0 {
		got = rows[0][len(rows[0])-1].String
	}
	if !strings.Contains(got, want) {
		return fmt.Errorf("%s: %s, want %s", query, got, want)
	}
	q.right++
	return nil
}

func (q *questioner) round() error {
	mark := fmt.Sprintf("c%dx%d", q.n, q.rnd.IntN(1000))
	hint := []string{"", "/* batch */ "}[q.rnd.IntN(2)]
	kinds := 3 // which need no connection of their own
	if q.n%4 == 0 {
		kinds = 6
	}
	switch q.rnd.IntN(kinds) {
	case 0:
		ok, err := q.exec(hint + "INSERT INTO t (v) VALUES ('" + mark + "')")
		if err != nil {
			return err
		}
		q.id = ok.LastInsertID
	case 1: // explicit: LAST_INSERT_ID() stays
		if _, err := q.exec(hint + fmt.Sprintf("INSERT INTO t (id, v) VALUES (%d, '%s') ON DUPLICATE KEY UPDATE v = 'x'", 100000+q.n, mark)); err != nil {
			return err
		}
	case 2: // fails, or not
		if _, err := q.exec(hint + fmt.Sprintf("INSERT INTO plain VALUES (%d, 1)", q.n)); err != nil {
			return err
		}
	case 3:
		if _, err := q.exec("SELECT CAST('" + mark + "' AS SIGNED)"); err != nil {
			return err
		}
		return q.is("SHOW WARNINGS", mark)
	case 4:
		n := 1 + q.rnd.IntN(4)
		if _, err := q.exec(fmt.Sprintf("DELETE FROM noauto WHERE x BETWEEN %d AND %d", 10*q.n, 10*q.n+9)); err != nil {
			return err
		}
		values := make([]string, n)
		for i := range values {
			values[i] = fmt.Sprintf("(%d)", 10*q.n+i)
		}
		if _, err := q.exec("INSERT INTO noauto VALUES " + strings.Join(values, ", ")); err != nil {
			return err
		}
		if q.rnd.IntN(2) == 0 {
			return q.is("SELECT ROW_COUNT()", fmt.Sprint(n))
		}
	default:
		if err := q.is("SELECT SQL_CALC_FOUND_ROWS id FROM t WHERE id < 5 LIMIT 1", "1"); err != nil {
			return err
		}
		return q.is("SELECT FOUND_ROWS()", "4")
	}
	return q.is("SELECT LAST_INSERT_ID()", fmt.Sprint(q.id))
}

// Sequences, on a server that has them.
func sequencesAreNeverAnothers(t *testing.T, server *lab.MySQL) {
	if !isMariaDB(server) {
		t.Skip("MySQL has no sequences")
	}
	w := startFor(t, server, databaseOn(t, server, "CREATE SEQUENCE s"), twoBackends)
	var g errgroup.Group
	for n := range 6 {
		c := w.dial(nil)
		if c.one("SELECT @@binlog_format") == "STATEMENT" { // which does not know sequences
			c.must("SET SESSION binlog_format = 'ROW'")
		}
		g.Go(func() error {
			defer func() { _ = c.Close() }() // it may hold a backend, for which others wait
			q := &questioner{c: c, n: n}
			for range 30 {
				rows, err := c.Query(ctxFor(t), "SELECT NEXTVAL(s)")
				if err != nil {
					return err
				}
				if err := q.is("SELECT LASTVAL(s)", rows[0][0].String); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

// Statements are shared by content: clients, settings and changes of the schema
// do not get in each other's way, and more statements than one backend keeps all
// work.
func preparedStatementsAreShared(t *testing.T, server *lab.MySQL) {
	db := databaseOn(t, server, stateSetup...)
	w := startFor(t, server, db, func(c *mysql.Config) { c.PoolSize = 2 })
	handle := open(t, w.Addr().String(), db, func(c *driver.Config) { c.InterpolateParams = false })
	handle.SetMaxOpenConns(4)
	ctx := ctxFor(t)
	const many = 600 // more than one backend keeps
	all := make([]*sql.Stmt, many)
	for i := range all {
		st, err := handle.PrepareContext(ctx, fmt.Sprintf("SELECT %d + ?", i))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = st.Close() }()
		all[i] = st
	}
	for range 2 {
		for i, st := range all {
			var got int
			if err := st.QueryRowContext(ctx, 5).Scan(&got); err != nil || got != i+5 {
				t.Fatalf("statement %d: %d, %v", i, got, err)
			}
		}
	}
	star, err := handle.PrepareContext(ctx, "SELECT * FROM noauto WHERE x = ?")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = star.Close() }()
	columns := func() int {
		rows, err := star.QueryContext(ctx, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = rows.Close() }()
		names, err := rows.Columns()
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	for i, ddl := range []string{"DO 0", "ALTER TABLE noauto ADD y INT", "ALTER TABLE noauto DROP y, ADD z INT, ADD zz INT"} {
		sqlOn(t, server, "USE "+db, ddl)
		if n := columns(); n != i+1 {
			t.Errorf("after %s the statement has %d columns, want %d", ddl, n, i+1)
		}
	}
	sqlOn(t, server, "USE "+db, "DROP TABLE noauto")
	if _, err := star.QueryContext(ctx, 1); code(err) != 1146 {
		t.Errorf("its table is gone: %v", err)
	}
	sqlOn(t, server, "USE "+db, "CREATE TABLE noauto (x INT)")
	if n := columns(); n != 1 {
		t.Errorf("its table is back: %d columns", n)
	}
}

// The same text means something else in another sql_mode or database.
func preparedStatementsKeepTheirSettings(t *testing.T, server *lab.MySQL) {
	db, second := databaseOn(t, server, stateSetup...), databaseOn(t, server, "CREATE TABLE t (v INT)", "INSERT INTO t VALUES (99)")
	w := startFor(t, server, db, twoBackends)
	churn := newChurner(w, nil)
	direct, through := speakerTo(t, server.Addr(), db, nil), w.speaker(nil)
	const text = `SELECT "v", v FROM t LIMIT 1`
	prepare := func(c speaker) uint32 {
		got, p := c.told(mywire.ComStmtPrepare, mywire.AppendPrepare(nil, text))
		if strings.HasPrefix(got, "ERROR") {
			t.Fatal(got)
		}
		return p.StmtID
	}
	run := func(c speaker, id uint32) string {
		got, _ := c.told(mywire.ComStmtExecute, mywire.AppendExecute(nil, 0, id, 0, nil, nil))
		return got
	}
	var ids [2][]uint32
	for _, set := range []string{"DO 0", "SET sql_mode = 'ANSI_QUOTES'", "USE " + second, "SET sql_mode = ''", "SET time_zone = '+04:00'"} {
		for i, c := range []speaker{direct, through} {
			if i == 1 {
				churn.run()
			}
			c.must(set)
			ids[i] = append(ids[i], prepare(c))
		}
		for n := range ids[0] {
			churn.run()
			if want, got := run(direct, ids[0][n]), run(through, ids[1][n]); got != want {
				t.Errorf("statement %d after %s:\n  through weir: %s\n  direct:       %s", n, set, got, want)
			}
		}
	}
}
