package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"
)

// session is a connection with settings of its own, whatever the pool's are. One goroutine uses
// it at a time.
type session struct {
	*sql.Conn
	store      *Store
	id         int64     // connection id
	place      string    // the server: see placeText
	began      time.Time // zero: unknown
	used       time.Time
	gone       bool // discarded
	keysOnly   bool // the binary log gets the keys of changed rows alone
	generation int  // Store.generation when it began
}

// settings override those of the server and the pool: reads take no locks and see committed
// rows, times are in UTC, and waits for locks of rows and tables are bounded (in seconds).
var settings = []string{
	"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
	"SET NAMES utf8mb4 COLLATE utf8mb4_bin",
	"SET time_zone='+00:00', sql_mode='STRICT_ALL_TABLES', autocommit=1, innodb_lock_wait_timeout=5, lock_wait_timeout=10, completion_type=NO_CHAIN, sql_select_limit=18446744073709551615",
}

// maxIdle is the most idle sessions that a store keeps.
const maxIdle = 8

// errClosed is the error of a closed store.
var errClosed = errors.New("the store is closed")

// session borrows a session; the caller releases it.
func (s *Store) session(ctx context.Context) (*session, error) {
	for hangs := false; ; {
		s.mu.Lock()
		closed, n := s.closed, len(s.idle)
		var c *session
		if n > 0 {
			c, s.idle = s.idle[n-1], s.idle[:n-1]
		}
		era, place := s.generation, s.place
		s.mu.Unlock()
		switch {
		case closed:
			return nil, errClosed
		case c == nil:
			return s.newSession(ctx, era)
		case hangs, c.generation != era, c.place != place:
			c.discard()
			continue
		case time.Since(c.used) < time.Second:
			return c, nil
		}
		// The server may have restarted, or hang.
		asking, cancel := context.WithTimeout(ctx, s.patience)
		err := c.PingContext(asking)
		hangs = asking.Err() != nil // and the others will not answer either
		cancel()
		if err == nil {
			return c, nil
		}
		c.discard()
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

// expireSessions ends all idle sessions, and others when they are released, because a session
// keeps the server's settings of the time when it began.
func expireSessions(s *Store) {
	s.mu.Lock()
	s.generation++
	s.mu.Unlock()
}

// placeText is an expression that identifies a server and its version.
const placeText = "CONCAT_WS(' ', @@hostname, @@port, @@server_id, @@datadir, VERSION())"

// newSession returns a session on the server that the address leads to. The application's pool
// may have connections to the one that it led to before, which may hang.
func (s *Store) newSession(ctx context.Context, era int) (*session, error) {
	patience := s.patience
	if s.owned {
		patience = max(patience, connectPatience)
	}
	c, err := s.connect(ctx, era, patience)
	switch {
	case err != nil && (s.owned || ctx.Err() != nil):
		return nil, err
	case err != nil:
		return s.renew(ctx, nil)
	}
	if !s.owned {
		c.began = time.Time{} // it may be older than the application's last use of it
	}
	s.mu.Lock()
	s.place = cmp.Or(s.place, c.place)
	moved := c.place != s.place
	s.mu.Unlock()
	if moved {
		return s.renew(ctx, c)
	}
	return c, nil
}

// renew discards a session for a fresh one. Later sessions are on its server.
func (s *Store) renew(ctx context.Context, old *session) (*session, error) {
	if old != nil {
		old.discard()
	}
	c, err := s.fresh(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.place = c.place
	s.mu.Unlock()
	return c, nil
}

// fresh returns a session of a new connection, which is on the server that the address leads to
// now: it borrows all idle connections of the pool, so that the pool opens one. If the pool may not
// open any more, it closes one of them. The session may be of an old connection all the same, if
// the application releases one meanwhile, or if opening one waits for longer than they are
// borrowed; the next look finds out.
func (s *Store) fresh(ctx context.Context) (*session, error) {
	s.mu.Lock()
	era := s.generation
	s.mu.Unlock()
	patience := max(s.patience, connectPatience)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// One at a time: two that each hold a half of the connections would wait for each other.
	s.borrowing.Lock()
	idle := borrowIdle(ctx, s.db, s.patience/borrowShare)
	giveBack := sync.OnceFunc(func() {
		for _, conn := range idle {
			_ = conn.Close() // it goes back to the pool
		}
		s.borrowing.Unlock()
	})
	defer giveBack()
	defer time.AfterFunc(s.patience/borrowShare, giveBack).Stop() // the new one may hang
	return s.connect(ctx, era, patience)
}

// borrowShare is which part of its patience a store takes to borrow idle connections, and again
// to open another one meanwhile, 0.1 s each: the application may have to wait for them.
const borrowShare = 30

// borrowIdle borrows the idle connections of a pool, and closes one of them if the pool is full.
func borrowIdle(ctx context.Context, db *sql.DB, patience time.Duration) (idle []*sql.Conn) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pool := db.Stats()
	full := pool.MaxOpenConnections > 0 && pool.OpenConnections >= pool.MaxOpenConnections
	for range pool.Idle {
		conn, err := db.Conn(ctx)
		if err != nil {
			break // the application has taken the others
		}
		if full {
			(&session{Conn: conn}).discard()
			full = false
			continue
		}
		idle = append(idle, conn)
	}
	return idle
}

// connectPatience is how long a server may take to accept a session. The address of one that
// hangs may lead to another by now.
const connectPatience = 10 * time.Second

func (s *Store) connect(ctx context.Context, era int, patience time.Duration) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	c := &session{Conn: conn, store: s, began: time.Now(), generation: era}
	for _, text := range settings {
		if err := c.exec(ctx, text); err != nil {
			c.discard()
			return nil, fmt.Errorf("prepare the session: %w", err)
		}
	}
	err = conn.QueryRowContext(ctx, "SELECT CONNECTION_ID(), "+placeText).Scan(&c.id, &c.place)
	if err == nil {
		err = c.logRows(ctx)
	}
	if err != nil {
		c.discard()
		return nil, fmt.Errorf("look at the server: %w", err)
	}
	return c, nil
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

// release returns the session to the idle ones, or discards it if err may have broken it.
func (c *session) release(err error) {
	if c.gone {
		return
	}
	if err != nil && !isServerError(err) {
		c.discard()
		return
	}
	c.used = time.Now()
	s := c.store
	s.mu.Lock()
	keep := !s.closed && len(s.idle) < maxIdle
	if keep {
		s.idle = append(s.idle, c)
	}
	s.mu.Unlock()
	if !keep {
		c.discard()
	}
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
