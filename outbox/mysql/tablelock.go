package mysql

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Maintenance needs an exclusive lock of the table, and other sessions queue up behind it
// while it waits. So it asks for the lock only if no transaction is old, and waits as short
// as possible: not at all on MariaDB, one second, the minimum, on MySQL.
const (
	lockTries    = 25
	lockPause    = 200 * time.Millisecond
	oldTxSeconds = 1 // seconds
)

// errOldTx is the error for a transaction that maintenance would have to wait for.
var errOldTx = errors.New("a transaction has been open for longer than a second: see information_schema.INNODB_TRX")

// execLocking runs a statement that needs an exclusive lock of the table, and retries while
// the table is in use.
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

// checkOldTx returns errOldTx if there are old transactions, of any table. An account without
// PROCESS cannot see any.
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

// hasOldWriter reports whether InnoDB's monitor shows an old read-write transaction. A
// truncated report means that there are many transactions, so it returns true.
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
