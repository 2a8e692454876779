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

// patience bounds each part of a check: a pooler without a free connection makes it wait. Not the
// whole: behind a pooler that is far away, or slow to log in to, the new sessions of all rounds take
// longer.
const patience = 15 * time.Second

// rounds is how often a session is checked; poolerRounds is how often if there certainly is
// a pooler.
const (
	rounds       = 3
	poolerRounds = 10
)

// busySessions is how many other sessions are in a transaction while one is checked. A pooler gives
// them idle connections, likely that of the checked session; only with as many other idle
// connections could all of them miss it in every round. With a pooler of several processes that
// share no connections, the others must also reach the process of the checked session: there they
// are new sessions in each round.
const busySessions = 3

// Path is what is known of the way from a client to its server.
type Path int

const (
	Unknown Path = iota
	Direct       // no pooler is on it
	Pooler       // a pooler is on it, which may keep sessions apart
)

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
	mu    sync.Mutex
	fine  bool // guarded by mu
	moved bool // guarded by mu: see Moved
}

// Moved records that a session was seen on another server connection than before, although the
// check had succeeded.
func (c *Check) Moved() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.moved = true
}

// Err returns [outbox.ErrPooled] after Moved.
func (c *Check) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.moved {
		return outbox.ErrPooled
	}
	return nil
}

// Run returns [outbox.ErrPooled] unless each session has a server session of its own, and an idle
// one keeps it while the others are in transactions. look, which may be nil, is a cheaper look at
// the path; it returns ErrPooled if the pooler itself says that it changes connections.
func (c *Check) Run(ctx context.Context, look func(context.Context) (Path, error), open func(context.Context) (Session, error)) error {
	c.mu.Lock()
	fine := c.fine
	c.mu.Unlock()
	if err := c.Err(); err != nil || fine {
		return err
	}
	path := Unknown
	var err error
	if look != nil {
		looking, cancel := context.WithTimeout(ctx, patience)
		path, err = look(looking)
		cancel()
	}
	if err == nil && path != Direct {
		err = compare(ctx, path, open)
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.fine = true
	c.mu.Unlock()
	return nil
}

func compare(ctx context.Context, path Path, open func(context.Context) (Session, error)) error {
	opening, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s, err := open(opening)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer s.Close()
	first, err := s.Number(opening)
	if err != nil {
		return err
	}
	if path == Pooler {
		for range poolerRounds {
			if err := checkBeside(ctx, s, first, 1, open); err != nil {
				return err
			}
		}
		return nil
	}
	return checkBeside(ctx, s, first, rounds, open)
}

// checkBeside opens the other sessions, and checks s some times.
func checkBeside(ctx context.Context, s Session, first int64, times int, open func(context.Context) (Session, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var rest [busySessions]Session
	for i := range rest {
		other, err := open(ctx)
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		defer other.Close()
		rest[i] = other
	}
	for range times {
		if err := checkIdle(ctx, s, rest[:], first); err != nil {
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
