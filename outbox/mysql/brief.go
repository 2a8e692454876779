package mysql

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Maintenance must have the table for itself, and anyone who wants it meanwhile
// queues up behind it while it waits. So it asks only when no transaction is old,
// and waits no longer than it must: MariaDB not at all, MySQL its least, a second.
const (
	lockTries = 25
	lockPause = 200 * time.Millisecond
	oldTxSeconds      = 1 // seconds
)

// errOld is of a transaction that maintenance would have to wait for.
var errOldTx = errors.New("a transaction has been open for longer than a second: see information_schema.INNODB_TRX")

// briefly runs a statement that needs the table for itself, again and again while
// it is in use; what cannot be had is left for the next time.
func (c *session) execLocking(ctx context.Context, v *server, text string) error {
	wait := 1
	if v.mariadb {
		wait = 0
	}
	if err := c.exec(ctx, fmt.Sprintf("SET lock_wait_timeout = %d", wait)); err != nil {
		return err
	}
	for try := 1; ; try++ {
		err := c.checkOldTx(ctx, v)
		if err == nil {
			err = c.exec(ctx, text)
		}
		switch {
		case err == nil:
			return c.exec(ctx, settings[len(settings)-1])
		case !isError(err, errLockWait) && !errors.Is(err, errOldTx):
			return err
		case try == lockTries:
			return fmt.Errorf("the table was in use each time in %d attempts; nothing was changed, try again later: %w", try, err)
		}
		timer := time.NewTimer(lockPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(err, ctx.Err())
		}
	}
}

// unhindered looks for transactions that are old. The server does not tell every
// account whether they use the table. An account without PROCESS sees none.
func (c *session) checkOldTx(ctx context.Context, v *server) error {
	if !v.process {
		return nil
	}
	var old bool
	err := c.QueryRowContext(ctx, fmt.Sprintf(
		"SELECT EXISTS (SELECT 1 FROM information_schema.INNODB_TRX WHERE trx_started < NOW() - INTERVAL %d SECOND)", oldTxSeconds)).Scan(&old)
	if isError(err, errConvert) {
		old, err = c.hasOldWriter(ctx)
	}
	if err != nil {
		return fmt.Errorf("look for old transactions: %w", err)
	}
	if old {
		return errOldTx
	}
	return nil
}

// oldWriter looks for read-write transactions that are old, which are those that
// InnoDB's monitor shows. A report that was cut is of many.
func (c *session) hasOldWriter(ctx context.Context) (bool, error) {
	m, ok, err := c.monitor(ctx, fmt.Sprintf("weir-%016x", rand.Uint64()))
	if err != nil || !ok {
		return true, err
	}
	for _, age := range m.ages {
		if age > oldTxSeconds {
			return true, nil
		}
	}
	return false, nil
}
