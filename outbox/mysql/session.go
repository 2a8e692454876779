package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"
)

// session is a connection with settings of its own, whatever the pool's are. One goroutine uses
// it at a time.
type session struct {
	*sql.Conn
	pool       *pool
	id         int64     // connection id
	place      string    // the server: see placeText
	began      time.Time // zero: unknown
	used       time.Time
	gone       bool // discarded
	keysOnly   bool // the binary log gets the keys of changed rows alone
	generation int  // pool.generation when it began
}

// settings override those of the server and the pool: reads take no locks and see committed
// rows, times are in UTC, and waits for locks of rows and tables are bounded (in seconds).
var settings = []string{
	"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
	"SET NAMES utf8mb4 COLLATE utf8mb4_bin",
	"SET time_zone='+00:00', sql_mode='STRICT_ALL_TABLES', autocommit=1, innodb_lock_wait_timeout=5, lock_wait_timeout=10, completion_type=NO_CHAIN, sql_select_limit=18446744073709551615",
}

// logRows sets binlog_format to ROW for this session if the server's is STATEMENT, with which
// InnoDB refuses changes at READ COMMITTED.
func (c *session) logRows(ctx context.Context) error {
	var name, format string
	err := c.QueryRowContext(ctx, "SHOW SESSION VARIABLES LIKE 'binlog_format'").Scan(&name, &format)
	if errors.Is(err, sql.ErrNoRows) || err == nil && format != "STATEMENT" {
		return nil
	}
	if err != nil {
		return err
	}
	err = c.exec(ctx, "SET SESSION binlog_format = 'ROW'")
	if isError(err, errAccessDenied) {
		return fmt.Errorf("the server logs statements as texts, which InnoDB refuses at READ COMMITTED: set binlog_format to MIXED or ROW, or let the account set it (BINLOG ADMIN, in MySQL SYSTEM_VARIABLES_ADMIN): %w", err)
	}
	return err
}

// logKeys sets whether the binary log gets only the keys of rows that this session deletes,
// not their payloads, or whole rows, as the server's setting says: a tail needs whole inserts.
// Accounts without the privilege for it keep the server's setting.
func (c *session) logKeys(ctx context.Context, lean bool) error {
	if c.keysOnly == lean {
		return nil
	}
	image := "@@GLOBAL.binlog_row_image"
	if lean {
		image = "'MINIMAL'"
	}
	if err := c.exec(ctx, "SET SESSION binlog_row_image = "+image); err != nil && !isError(err, errAccessDenied) {
		return err
	}
	c.keysOnly = lean
	return nil
}

// discard closes the connection; it does not return to the pool.
func (c *session) discard() {
	c.gone = true
	_ = c.Raw(func(any) error { return driver.ErrBadConn })
	_ = c.Close() // the error says that it is closed already
}

// exec runs a statement.
func (c *session) exec(ctx context.Context, text string, args ...any) error {
	_, err := c.ExecContext(ctx, text, args...)
	return err
}

// affected runs a statement and returns how many rows it changed.
func (c *session) affected(ctx context.Context, text string, args ...any) (int64, error) {
	result, err := c.ExecContext(ctx, text, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// sessions lends sessions.
type sessions func(ctx context.Context) (*session, error)

// with runs f with a borrowed session.
func (borrow sessions) with(ctx context.Context, f func(c *session) error) error {
	return borrow.withKeyLogging(ctx, false, f)
}

// withKeyLogging is with, for a session that logs only keys if lean is set.
func (borrow sessions) withKeyLogging(ctx context.Context, lean bool, f func(c *session) error) error {
	c, err := borrow(ctx)
	if err != nil {
		return err
	}
	if err = c.logKeys(ctx, lean); err == nil {
		err = f(c)
	}
	c.release(err)
	return err
}

// retry repeats f, which must be idempotent, while the server rolls it back because of other
// sessions' locks.
func retry(ctx context.Context, f func() error) error {
	const most = 12
	for attempt := 1; ; attempt++ {
		err := f()
		if err == nil || attempt == most || !isError(err, errDeadlock, errLockWait) {
			return err
		}
		pause := time.NewTimer(rand.N(min(time.Millisecond<<attempt, 100*time.Millisecond)))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return err
		}
	}
}

// inTx runs f in a transaction of a borrowed session, and again after a deadlock. f must find
// nothing left to do if the transaction has committed although its commit returned an error.
func (borrow sessions) inTx(ctx context.Context, f func(c *session) error) error {
	return retry(ctx, func() error {
		return borrow.with(ctx, func(c *session) error {
			if err := c.exec(ctx, "START TRANSACTION"); err != nil {
				return err
			}
			err := f(c)
			if err == nil {
				err = c.exec(ctx, "COMMIT")
			}
			if err != nil {
				return errors.Join(err, c.rollback())
			}
			return nil
		})
	})
}

// inSnapshot runs f in a borrowed session, in one snapshot.
func (borrow sessions) inSnapshot(ctx context.Context, f func(c *session) error) error {
	return borrow.with(ctx, func(c *session) error {
		for _, text := range []string{"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "START TRANSACTION READ ONLY"} {
			if err := c.exec(ctx, text); err != nil {
				return err
			}
		}
		err := f(c)
		if !c.gone {
			err = errors.Join(err, c.rollback())
		}
		return err
	})
}

// rollback rolls back a transaction, even if its context has ended. If it fails, it discards the
// session, which ends the transaction.
func (c *session) rollback() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := c.exec(ctx, "ROLLBACK"); err != nil {
		c.discard()
		return err
	}
	return nil
}

// Server error numbers.
const (
	errShutdown     = 1053
	errKilledByUser = 1926 // MariaDB: by a shutdown or a kill
	errNoTable      = 1146
	errLockWait     = 1205
	errSyntax       = 1064
	errDeadlock     = 1213
	errAccessDenied = 1227 // a privilege is missing
	errInterrupted  = 1317
	errKilled       = 1927 // MariaDB
	errConvert      = 3854 // MySQL 9: a statement that is being executed has characters beyond utf8mb3
	errIdle         = 4031 // MySQL: the session was idle for too long
)

// isServerError reports whether err is the server's answer to a statement and leaves the session
// usable.
func isServerError(err error) bool {
	var e *mysqldriver.MySQLError
	return errors.As(err, &e) && !isError(err, errShutdown, errKilled, errIdle, errKilledByUser)
}

// isError reports whether err is a server error with one of the numbers.
func isError(err error, numbers ...uint16) bool {
	var e *mysqldriver.MySQLError
	return errors.As(err, &e) && slices.Contains(numbers, e.Number)
}
