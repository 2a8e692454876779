package mysql

import (
	"context"
	"database/sql"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/outbox"
)

// patience bounds every wait. Only a defect reaches it.
const testPatience = 2 * time.Minute

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// connect takes one session of a pool, which ends with the test.
func connect(t *testing.T, db *sql.DB) *sql.Conn {
	t.Helper()
	c, err := db.Conn(t.Context())
	check(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func run(t *testing.T, c interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, texts ...string,
) {
	t.Helper()
	for _, text := range texts {
		if _, err := c.ExecContext(t.Context(), text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
}

func leadIt(t *testing.T, s *Store) *lease {
	t.Helper()
	l, err := s.Lead(t.Context(), 0)
	check(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l.(*lease)
}

func markIt(t *testing.T, l *lease) outbox.Mark {
	t.Helper()
	m, err := l.Mark(t.Context())
	check(t, err)
	return m
}

func isSettled(t *testing.T, l *lease, m outbox.Mark) bool {
	t.Helper()
	ok, err := l.Settled(t.Context(), m)
	check(t, err)
	return ok
}

// looked asks about the mark until a look has answered, which is not settled.
func looked(t *testing.T, l *lease, m outbox.Mark) {
	t.Helper()
	testkit.Eventually(t, "a look at the server", func() bool {
		if isSettled(t, l, m) {
			t.Fatal("settled too early")
		}
		return m.(*mark).complete
	})
}

func pageOf(t *testing.T, l *lease, after int64) []outbox.Row {
	t.Helper()
	page, err := l.Read(t.Context(), outbox.ReadRequest{After: after, Limit: 10_000, MaxBytes: 1 << 30})
	check(t, err)
	return page.Rows
}

// TestMarkOnServers has transactions of every kind stand between a number and
// its commit.
func TestMarkOnServers(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) {
		db := database(t, m)
		s := migrated(t, m, db, Options{}, outbox.Plan{})
		l := leadIt(t, s)
		pool := producers(t, m, db)
		const insert = "INSERT INTO weir_outbox (topic, payload) VALUES ('t', 'p')"

		t.Run("a statement between two of its rows", func(t *testing.T) {
			// The statement takes both numbers with the first row. It waits for the
			// lock in the middle.
			holder, slow := connect(t, pool), connect(t, pool)
			run(t, holder, "DO GET_LOCK('between', 0)")
			before := pageOf(t, l, 0)
			done := make(chan error, 1)
			go func() {
				_, err := slow.ExecContext(t.Context(), "INSERT INTO weir_outbox (topic, payload) VALUES ('t', 'one'), ('t', CONCAT('two', GET_LOCK('between', 100)))")
				done <- err
			}()
			testkit.Eventually(t, "a session that waits for the lock", func() bool {
				var n int
				check(t, pool.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = 'User lock'").Scan(&n))
				return n > 0
			})
			run(t, pool, insert)
			after := pageOf(t, l, 0)
			if got, was := after[len(after)-1].Seq, lastSeq(before); got < was+3 {
				t.Fatalf("number %d comes after %d: the statement has not taken two numbers between", got, was)
			}
			mark := markIt(t, l)
			looked(t, l, mark)
			run(t, holder, "DO RELEASE_LOCK('between')")
			check(t, <-done)
			testkit.Eventually(t, "the mark is settled", func() bool { return isSettled(t, l, mark) })
			if rows := pageOf(t, l, 0); len(rows) != len(before)+3 {
				t.Errorf("%d rows, want %d", len(rows), len(before)+3)
			}
		})
		t.Run("a transaction that is prepared and belongs to nobody", func(t *testing.T) {
			c := connect(t, pool)
			run(t, c, "XA START 'a'", insert, "XA END 'a'", "XA PREPARE 'a'")
			mark := markIt(t, l)
			looked(t, l, mark)

			run(t, c, "XA COMMIT 'a'")
			testkit.Eventually(t, "the mark is settled", func() bool { return isSettled(t, l, mark) })
		})
		t.Run("a transaction that only reads", func(t *testing.T) {
			reader := connect(t, pool)
			run(t, reader, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
			var n int
			check(t, reader.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM weir_outbox").Scan(&n))
			mark := markIt(t, l)
			testkit.Eventually(t, "the mark is settled", func() bool { return isSettled(t, l, mark) })
			// It begins to write, and the next mark waits for it.
			run(t, reader, insert)
			mark = markIt(t, l)
			looked(t, l, mark)
			run(t, reader, "ROLLBACK")
			testkit.Eventually(t, "the mark is settled", func() bool { return isSettled(t, l, mark) })
		})
		t.Run("others read the server's copy all the time", func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			other := connect(t, pool)
			wg.Go(func() {
				for ctx.Err() == nil {
					var n int
					if err := other.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM information_schema.INNODB_TRX").Scan(&n); err != nil {
						t.Error(err)
						return
					}
				}
			})
			tx := connect(t, pool)
			run(t, tx, "START TRANSACTION", insert)
			mark := markIt(t, l)
			for range 300 {
				if isSettled(t, l, mark) {
					t.Fatal("settled while its transaction is open")
				}
				time.Sleep(time.Millisecond)
			}
			cancel()
			wg.Wait()
			looked(t, l, mark)
			run(t, tx, "COMMIT")
			testkit.Eventually(t, "the mark is settled", func() bool { return isSettled(t, l, mark) })
		})
	})
}

func lastSeq(rows []outbox.Row) int64 {
	if len(rows) == 0 {
		return 0
	}
	return rows[len(rows)-1].Seq
}

// TestWithoutPrivileges: what an account that has the tables alone can do.
func TestWithoutPrivileges(t *testing.T) {
	servers(t, func(t *testing.T, m *lab.MySQL) {
		db := database(t, m)
		check(t, m.Exec(t.Context(), "CREATE USER IF NOT EXISTS plain@'%' IDENTIFIED BY 'word'", "GRANT ALL ON "+db+".* TO plain@'%'"))
		dsn := strings.Replace(m.DSN(db), "root@", "plain:word@", 1)
		s, err := Open(t.Context(), dsn, Options{MaxTxAge: 50 * time.Millisecond})
		check(t, err)
		t.Cleanup(func() { check(t, s.Close()) })
		_, err = s.Migrate(t.Context(), outbox.Plan{})
		check(t, err)
		d, err := s.Describe(t.Context())
		check(t, err)
		if !strings.Contains(d.Server, "PROCESS") || !strings.Contains(d.Server, "50ms") {
			t.Errorf("the description %q does not say that PROCESS is missing", d.Server)
		}
		if d.CanTail == nil || !strings.Contains(d.CanTail.Error(), "REPLICATION SLAVE") {
			t.Errorf("following the log: %v, want the missing privilege", d.CanTail)
		}
		l := leadIt(t, s)
		pool := producers(t, m, db)
		tx := connect(t, pool)
		run(t, tx, "START TRANSACTION", "INSERT INTO weir_outbox (topic, payload) VALUES ('t', 'p')")
		began := time.Now()
		mark := markIt(t, l)
		testkit.Eventually(t, "the mark is settled by its age", func() bool { return isSettled(t, l, mark) })
		if age := time.Since(began); age < 50*time.Millisecond {
			t.Errorf("settled at the age of %v", age)
		}
		run(t, tx, "ROLLBACK")
	})
}
