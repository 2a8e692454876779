package postgres

import "context"

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
	c, err := s.connectToWait(ctx)
	if err != nil {
		return nil, s.wrap("listen to", err)
	}
	var notifies bool
	err = c.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgrelid = to_regclass($1) AND tgname = 'weir_wake')",
		n.q("")).Scan(&notifies)
	if err == nil && notifies {
		_, err = c.Exec(ctx, "LISTEN "+n.channel())
	}
	if err != nil || !notifies {
		closeConn(c)
		if err != nil {
			err = s.wrap("listen to", err)
		}
		return nil, err
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
