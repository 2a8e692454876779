package postgres

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// settling holds rows of the log back until their transactions can be seen.
//
// A transaction is in the log before it is visible. Mostly the time between is
// too short to matter, but with synchronous replication it lasts until the
// standbys have answered. A row delivered within it would be delivered again,
// because its ack finds no row to delete; and were the primary lost, a message
// would have been delivered whose transaction nobody else knows of.
type settling struct {
	asked   time.Time // when the server was asked whether it waits for standbys
	replica bool      // it does
}

// settingAge is for how long the answer holds.
const settingAge = 10 * time.Second

// stillRunning tells whether a transaction has not ended, by the lock that it
// holds on its own number until it is visible.
const stillRunning = "SELECT EXISTS (SELECT FROM pg_catalog.pg_locks WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted" +
	" AND transactionid = ANY($1::text[]::xid[]))"

// wait returns when all of the transactions have ended, at once if the server
// waits for no standby.
func (s *settling) wait(ctx context.Context, l *lease, xids []uint32) error {
	if time.Since(s.asked) > settingAge {
		err := l.do(ctx, "ask for standbys of", &l.write, func(c *pgx.Conn) error {
			return c.QueryRow(ctx, "SELECT current_setting('synchronous_standby_names') <> ''").Scan(&s.replica)
		})
		if err != nil {
			return err
		}
		s.asked = time.Now()
	}
	if !s.replica {
		return nil
	}
	numbers := make([]string, len(xids))
	for i, xid := range xids {
		numbers[i] = strconv.FormatUint(uint64(xid), 10)
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		var running bool
		err := l.do(ctx, "wait for transactions of", &l.write, func(c *pgx.Conn) error {
			return c.QueryRow(ctx, stillRunning, numbers).Scan(&running)
		})
		if err != nil || !running {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return l.store.wrap("tail", ctx.Err())
		}
	}
}
