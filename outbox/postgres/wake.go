package postgres

import (
	"context"
	"fmt"
)

// Wake returns a channel that receives a value soon after a transaction that
// inserted messages has committed. Many commits may share one value. It needs
// the trigger of [Options.Notify]. The channel is closed when ctx ends or the
// connection that listens breaks; then call Wake again, and read the table
// meanwhile: what is committed while nobody listens is not told later.
func (s *Store) Wake(ctx context.Context) (<-chan struct{}, error) {
	n, _, err := s.ready(ctx)
	if err != nil {
		return nil, err
	}
	c, err := s.connectToWait(ctx)
	if err != nil {
		return nil, s.wrap("listen to", err)
	}
	var notifies bool
	err = c.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgrelid = to_regclass($1) AND tgname = 'weir_wake')",
		n.q("")).Scan(&notifies)
	if err == nil && !notifies {
		err = fmt.Errorf("no trigger notifies: migrate with Options.Notify")
	}
	if err == nil {
		_, err = c.Exec(ctx, "LISTEN "+n.channel())
	}
	if err != nil {
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
