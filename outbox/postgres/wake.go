package postgres

import (
	"context"
	"fmt"
)

// Wake returns a channel that receives a value soon after a transaction that inserted
// messages commits. One value may stand for many commits. The channel is nil without the
// trigger of [Options.Notify]. It is closed when ctx ends or the connection breaks. Then
// call Wake again and read the table: commits in between are not notified.
func (s *Store) Wake(ctx context.Context) (<-chan struct{}, error) {
	n, _, err := s.ready(ctx)
	if err != nil {
		return nil, err
	}
	if notifies, err := hasWakeTrigger(ctx, s.pool, n); err != nil || !notifies {
		if err != nil {
			err = s.wrap("listen to", err)
		}
		return nil, err
	}
	c, err := s.connectToWait(ctx)
	if err != nil {
		return nil, s.wrap("listen to", err)
	}
	if _, err = c.Exec(ctx, "LISTEN "+n.channel()); err != nil {
		closeConn(c)
		return nil, s.wrap("listen to", err)
	}
	ctx, leave := context.WithCancel(ctx)
	s.locks.mu.Lock()
	s.listening[c] = leave
	s.locks.mu.Unlock()
	woken := make(chan struct{}, 1)
	go func() {
		defer close(woken)
		defer closeConn(c)
		defer func() {
			leave()
			s.locks.mu.Lock()
			defer s.locks.mu.Unlock()
			delete(s.listening, c)
		}()
		for {
			if _, err := c.WaitForNotification(ctx); err != nil {
				return
			}
			select {
			case woken <- struct{}{}:
			default: // a value is waiting already
			}
		}
	}()
	return woken, nil
}

// hasWakeTrigger reports whether the outbox table has the trigger of [Options.Notify].
func hasWakeTrigger(ctx context.Context, q querier, n names) (has bool, err error) {
	err = q.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgrelid = to_regclass($1) AND tgname = 'weir_wake')",
		n.q("")).Scan(&has)
	if err != nil {
		return false, fmt.Errorf("look for the trigger that notifies: %w", err)
	}
	return has, nil
}
