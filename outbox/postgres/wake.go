package postgres

import (
	"context"
	"fmt"
)

// Wake returns a channel that receives a value soon after a transaction that
// inserted messages has committed. Many commits may share one value. Without
// the trigger of [Options.Notify] there are no notifications, and the channel is
// nil. It is closed when ctx ends or the connection that listens breaks; then call
// Wake again, and read the table meanwhile: what is committed between is not
// notified later.
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
	woken := make(chan struct{}, 1)
	go func() {
		defer close(woken)
		defer closeConn(c)
		for {
			if _, err := c.WaitForNotification(ctx); err != nil {
				return
			}
			select {
			case woken <- struct{}{}:
			default: // one that nobody has taken yet says the same
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
