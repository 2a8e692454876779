package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/weirdb/weir/outbox"
)

// checkPatience bounds a check: a pooler without a free connection keeps it waiting.
const checkPatience = 15 * time.Second

// checkRounds is how often sessions are looked at.
const checkRounds = 3

// Check implements [outbox.Checker]: two sessions are two threads of the server, by
// the numbers that the server itself lists, and each stays the one that it is
// while the other is in a transaction.
func (s *Store) Check(ctx context.Context) error {
	s.mu.Lock()
	known := s.direct
	s.mu.Unlock()
	if known {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	if err := s.check(ctx); err != nil {
		return s.fail("check the sessions of", err)
	}
	s.mu.Lock()
	s.direct = true
	s.mu.Unlock()
	return nil
}

func (s *Store) check(ctx context.Context) error {
	var sessions [2]*session
	for i := range sessions {
		conn, err := s.db.Conn(ctx)
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		sessions[i] = &session{Conn: conn, store: s}
		defer sessions[i].discard()
	}
	first, err := sessions[0].thread(ctx)
	if err != nil {
		return err
	}
	for range checkRounds {
		if err := sessions[0].besides(ctx, sessions[1], first); err != nil {
			return err
		}
	}
	return nil
}

// besides checks that the session, whose number is first, keeps it while another
// one is in a transaction.
func (c *session) besides(ctx context.Context, other *session, first int64) (err error) {
	// Before the transaction: in a pool of one it would keep the other out.
	if id, err := other.thread(ctx); err != nil || id == first {
		return pooled(err)
	}
	tx, err := other.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { err = errors.Join(err, tx.Rollback()) }()
	var id int64
	if err := tx.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&id); err != nil || id == first {
		return pooled(err)
	}
	// More than once: a pooler that takes its connections in turn may give it the
	// same by chance.
	for range 2 {
		if id, err := c.thread(ctx); err != nil || id != first {
			return pooled(err)
		}
	}
	return nil
}

// thread is the number of the session, which must be the one that the server lists
// with this statement.
func (c *session) thread(ctx context.Context) (id int64, err error) {
	var listed sql.NullInt64
	never := fmt.Sprintf("weir-%016x", rand.Uint64())
	err = c.QueryRowContext(ctx, "SELECT CONNECTION_ID(), (SELECT MAX(ID) FROM information_schema.PROCESSLIST WHERE INFO LIKE '%"+never+"%')").Scan(&id, &listed)
	if err == nil && listed.Int64 != id {
		err = outbox.ErrPooled
	}
	return id, err
}

// pooled is ErrPooled unless asking has failed.
func pooled(err error) error {
	if err == nil {
		err = outbox.ErrPooled
	}
	return err
}
