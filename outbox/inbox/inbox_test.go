package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/outbox/inbox"
)

// database is one kind of them, with a table effects(id) that counts.
type database struct {
	*sql.DB
	handle func(inbox.Execer) inbox.Tx
	insert string
}

// The servers of all tests, each of which has a database of its own.
var (
	sharedPostgres = labtest.Share(func(ctx context.Context) (*lab.Postgres, error) {
		return lab.StartPostgres(ctx, lab.PostgresConfig{Durability: lab.Fast})
	})
	sharedMariaDB = labtest.Share(func(ctx context.Context) (*lab.MySQL, error) {
		return lab.StartMariaDB(ctx, lab.MySQLConfig{Durability: lab.Fast, Light: true})
	})
	databases atomic.Int64
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// postgres returns the DSN of a database of the test's own.
func postgres(t *testing.T) string {
	t.Helper()
	p := sharedPostgres.Get(t)
	name := fmt.Sprintf("d%d", databases.Add(1))
	if _, err := connect(t, "pgx", p.DSN("postgres")).ExecContext(t.Context(), p.CreateDatabase(name)); err != nil {
		t.Fatal(err)
	}
	return p.DSN(name)
}

// each runs a test on every kind.
func each(t *testing.T, test func(*testing.T, database)) {
	t.Helper()
	kinds := map[string]func(t *testing.T) database{
		"PostgreSQL": func(t *testing.T) database {
			return database{connect(t, "pgx", postgres(t)), inbox.Postgres, "INSERT INTO effects VALUES ($1)"}
		},
		"MariaDB": func(t *testing.T) database {
			m := sharedMariaDB.Get(t)
			name := fmt.Sprintf("d%d", databases.Add(1))
			// Another time zone, and the flag that changes what "affected" means.
			dsn := "root@unix(" + m.Socket() + ")/" + name + "?clientFoundRows=true&time_zone=%27%2B05%3A00%27"
			if err := m.Exec(t.Context(), "CREATE DATABASE "+name+" CHARACTER SET utf8mb4"); err != nil {
				t.Fatal(err)
			}
			return database{connect(t, "mysql", dsn), inbox.MySQL, "INSERT INTO effects VALUES (?)"}
		},
		"SQLite": func(t *testing.T) database {
			file := filepath.Join(t.TempDir(), "db")
			dsn := "file:" + file + "?_pragma=journal_mode(WAL)&_pragma=busy_timeout(30000)&_txlock=immediate"
			return database{connect(t, "sqlite", dsn), inbox.SQLite, "INSERT INTO effects VALUES (?)"}
		},
	}
	for name, start := range kinds {
		t.Run(name, func(t *testing.T) {
			db := start(t)
			if _, err := db.ExecContext(t.Context(), "CREATE TABLE effects (id varchar(255))"); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second time does nothing
				if err := inbox.Migrate(t.Context(), db.handle(db.DB)); err != nil {
					t.Fatal(err)
				}
			}
			test(t, db)
		})
	}
}

func connect(t *testing.T, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// consume handles a message as a consumer does.
func (db database) consume(ctx context.Context, source, id string, commit bool) (first bool, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer tx.Rollback() // after a commit it does nothing
	if first, err = inbox.Once(ctx, db.handle(tx), source, id); err != nil {
		return false, err
	}
	if first {
		if _, err := tx.ExecContext(ctx, db.insert, id); err != nil {
			return false, err
		}
	}
	if !commit {
		return first, nil
	}
	return first, tx.Commit()
}

// deliver consumes until that is no deadlock, as a broker delivers again: where
// two wait for a third that rolls back, InnoDB ends one of them.
func (db database) deliver(ctx context.Context, source, id string, commit bool) error {
	for {
		_, err := db.consume(ctx, source, id, commit)
		var refused *mysql.MySQLError
		if !errors.As(err, &refused) || refused.Number != 1213 {
			return err
		}
	}
}

func (db database) effects(t testing.TB, id string) (n int) {
	t.Helper()
	query := strings.Replace(db.insert, "INSERT INTO effects VALUES (", "SELECT count(*) FROM effects WHERE id = (", 1)
	if err := db.QueryRowContext(t.Context(), query, id).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestOnce(t *testing.T) {
	each(t, func(t *testing.T, db database) {
		step := func(source, id string, commit, want bool) {
			t.Helper()
			first, err := db.consume(t.Context(), source, id, commit)
			if err != nil || first != want {
				t.Errorf("%s %q: first %v, %v, want %v", source, id, first, err, want)
			}
		}
		step("a", "1", false, true) // rolled back: it never was
		step("a", "1", true, true)
		step("a", "1", true, false)
		step("b", "1", true, true) // of another source
		step("a", "x", true, true)
		step("a", "X", true, true) // compared byte by byte
		step("a", "x ", true, true)
		step("a", "é€😀", true, true)
		step("a", "é€😀", true, false)
		step("", strings.Repeat("y", inbox.MaxLen), true, true)
		if n := db.effects(t, "1"); n != 2 {
			t.Errorf("%d effects of message 1 of two sources, want 2", n)
		}
	})
}

func TestTwoConsumersOneEffect(t *testing.T) {
	each(t, func(t *testing.T, db database) {
		const messages, consumers = 30, 4
		var wg sync.WaitGroup
		for c := range consumers {
			wg.Go(func() {
				for m := range messages {
					// Every other attempt of the first consumer fails and is repeated.
					if c == 0 && m%2 == 0 {
						if err := db.deliver(t.Context(), "s", fmt.Sprint(m), false); err != nil {
							t.Errorf("message %d: %v", m, err)
						}
					}
					if err := db.deliver(t.Context(), "s", fmt.Sprint(m), true); err != nil {
						t.Errorf("message %d: %v", m, err)
					}
				}
			})
		}
		wg.Wait()
		for m := range messages {
			if n := db.effects(t, fmt.Sprint(m)); n != 1 {
				t.Errorf("%d effects of message %d, want 1", n, m)
			}
		}
	})
}

// TestSecondWaits has the first consumer's transaction open while the second
// asks. SQLite lets only one write at a time anyway.
func TestSecondWaits(t *testing.T) {
	each(t, func(t *testing.T, db database) {
		for _, commit := range []bool{true, false} {
			id := fmt.Sprint("commit ", commit)
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if first, err := inbox.Once(t.Context(), db.handle(tx), "s", id); !first || err != nil {
				t.Fatal(first, err)
			}
			type answer struct {
				first bool
				err   error
			}
			second := make(chan answer, 1)
			go func() {
				first, err := db.consume(t.Context(), "s", id, true)
				second <- answer{first, err}
			}()
			if commit {
				err = tx.Commit()
			} else {
				err = tx.Rollback()
			}
			if err != nil {
				t.Fatal(err)
			}
			if a := <-second; a.err != nil || a.first == commit {
				t.Errorf("commit %v: the second consumer is first: %v, %v", commit, a.first, a.err)
			}
		}
	})
}

func TestPurge(t *testing.T) {
	each(t, func(t *testing.T, db database) {
		// More than one batch, in one transaction to be quick.
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		const n = 5003
		for i := range n {
			if _, err := inbox.Once(t.Context(), db.handle(tx), "old", fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		purge := func(before time.Time, want int64) {
			t.Helper()
			if got, err := inbox.Purge(t.Context(), db.handle(db.DB), before); err != nil || got != want {
				t.Errorf("purge: %d, %v, want %d", got, err, want)
			}
		}
		purge(time.Now().Add(-time.Hour), 0)
		purge(time.Now().Add(time.Hour), n)
		if first, err := db.consume(t.Context(), "old", "1", true); !first || err != nil {
			t.Errorf("after the purge: first %v, %v, want true", first, err)
		}
	})
}

func TestPgx(t *testing.T) {
	conn, err := pgx.Connect(t.Context(), postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.Exec(t.Context(), "CREATE SCHEMA shop"); err != nil {
		t.Fatal(err)
	}
	db := inbox.Pgx(conn).Table("shop.inbox")
	if err := inbox.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{true, false} {
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		first, err := inbox.Once(t.Context(), inbox.Pgx(tx).Table("shop.inbox"), "s", "1")
		if err != nil || first != want {
			t.Errorf("first %v, %v, want %v", first, err, want)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestBadIdentities(t *testing.T) {
	none := inbox.Tx{} // never reached
	for _, c := range [][2]string{{"s", ""}, {"s", strings.Repeat("x", 256)}, {strings.Repeat("x", 256), "1"}, {"s", "\xff"}, {"s", "a\x00"}} {
		if _, err := inbox.Once(t.Context(), none, c[0], c[1]); err == nil {
			t.Errorf("%q: no error", c)
		}
	}
}
