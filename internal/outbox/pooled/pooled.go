// Package pooled finds out whether a pooler gives the sessions of a database other
// connections between their transactions. A relay leads by a lock of its session, which
// such a pooler would give to another client.
package pooled

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weirdb/weir/outbox"
)

// patience bounds a check: a pooler without a free connection keeps it waiting.
const patience = 15 * time.Second

// rounds is how often sessions are looked at.
const rounds = 3

// others is how many sessions are in a transaction beside the one that is looked at. A
// pooler gives them its idle connections, of which one would be that of this session:
// with as many idle connections besides, each could get another one in every round.
const busySessions = 3

// Session is a session as its client sees it.
type Session interface {
	// Number is the server's own number of the session that answers.
	Number(ctx context.Context) (int64, error)
	Begin(ctx context.Context) (Tx, error)
	Close()
}

// Tx is a transaction of a session.
type Tx interface {
	Number(ctx context.Context) (int64, error)
	Rollback(ctx context.Context) error
}

// Check is of one way to a database. Once it has found that sessions stay what they
// are, it asks no more.
type Check struct {
	mu     sync.Mutex
	direct bool
}

// Run returns [outbox.ErrPooled] unless each session is one of the server, and one that
// is idle stays the one that it is while the others are in transactions. unbroken, unless
// nil, says for less whether nobody is between a session and the server.
func (c *Check) Run(ctx context.Context, unbroken func(context.Context) (bool, error), open func(context.Context) (Session, error)) error {
	c.mu.Lock()
	known := c.direct
	c.mu.Unlock()
	if known {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var direct bool
	var err error
	if unbroken != nil {
		direct, err = unbroken(ctx)
	}
	if err == nil && !direct {
		err = compare(ctx, open)
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.direct = true
	c.mu.Unlock()
	return nil
}

func compare(ctx context.Context, open func(context.Context) (Session, error)) error {
	var sessions [1 + busySessions]Session
	for i := range sessions {
		s, err := open(ctx)
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		defer s.Close()
		sessions[i] = s
	}
	first, err := sessions[0].Number(ctx)
	if err != nil {
		return err
	}
	for range rounds {
		if err := checkIdle(ctx, sessions[0], sessions[1:], first); err != nil {
			return err
		}
	}
	return nil
}

// besides checks that a session, whose number is first, keeps it while others are in
// transactions.
func checkIdle(ctx context.Context, s Session, rest []Session, first int64) (err error) {
	// Before the transactions: in a pool of one they would keep each other out.
	if n, err := rest[0].Number(ctx); err != nil || n == first {
		return pooled(err)
	}
	for _, other := range rest {
		tx, err := other.Begin(ctx)
		if err != nil {
			return fmt.Errorf("begin: %w", err)
		}
		defer func() { err = errors.Join(err, tx.Rollback(ctx)) }()
		if n, err := tx.Number(ctx); err != nil || n == first {
			return pooled(err)
		}
	}
	// More than once: a pooler that takes its connections in turn may give it the
	// same by chance.
	for range 2 {
		if n, err := s.Number(ctx); err != nil || n != first {
			return pooled(err)
		}
	}
	return nil
}

// pooled is ErrPooled unless asking has failed.
func pooled(err error) error {
	if err == nil {
		err = outbox.ErrPooled
	}
	return err
}
