// Package pooled detects poolers that change a client's server connection between transactions.
// A relay leads by a lock of its session, which such a pooler would give to another client.
package pooled

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weirdb/weir/outbox"
)

// patience bounds a check: a pooler without a free connection makes it wait.
const patience = 15 * time.Second

// rounds is how often the sessions are checked.
const rounds = 3

// busySessions is how many other sessions are in a transaction while one is checked. A pooler gives
// them idle connections, likely that of the checked session; only with as many other idle
// connections could all of them miss it in every round.
const busySessions = 3

// Session is a session of a client.
type Session interface {
	// Number returns the server's id of the session that answers.
	Number(ctx context.Context) (int64, error)
	Begin(ctx context.Context) (Tx, error)
	Close()
}

// Tx is a transaction of a session.
type Tx interface {
	Number(ctx context.Context) (int64, error)
	Rollback(ctx context.Context) error
}

// Check checks one connection string or pool. After a success it does not check again.
type Check struct {
	mu     sync.Mutex
	direct bool
}

// Run returns [outbox.ErrPooled] unless each session has a server session of its own, and an idle
// one keeps it while the others are in transactions. unbroken, which may be nil, is a cheaper
// check whether a connection leads directly to the server.
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

// checkIdle checks that a session keeps its number, first, while others are in transactions.
func checkIdle(ctx context.Context, s Session, rest []Session, first int64) (err error) {
	// Before the transactions: in a pool with one connection they would block each other.
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
	// More than once: a pooler that uses its connections in turn may return the same one by
	// chance.
	for range 2 {
		if n, err := s.Number(ctx); err != nil || n != first {
			return pooled(err)
		}
	}
	return nil
}

// pooled returns err, or ErrPooled if it is nil.
func pooled(err error) error {
	if err == nil {
		err = outbox.ErrPooled
	}
	return err
}
