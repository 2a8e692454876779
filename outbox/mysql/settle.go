package mysql

import (
	"context"
	"database/sql/driver"
	"maps"
	"slices"
	"time"

	"github.com/weirdb/weir/outbox"
)

// settle returns when all sessions can see the rows of the log.
//
// A transaction is in the log before it is visible: until the engine has
// committed it, and with semi-synchronous replication (after_sync) until a
// replica has answered. A row that is delivered within that time tells a
// consumer of what it cannot find, and its acknowledgement finds nothing to
// delete. Every row is looked for: what the log has in one order becomes visible in
// another when the server is told so (binlog_order_commits).
func (t *tail) awaitVisible(ctx context.Context, rows []outbox.Row) error {
	if t.status < 0 { // where a number may be there once only
		if all, err := t.allVisible(ctx, rows); all || err != nil {
			return err
		}
	}
	missing := make(map[int64]struct{}, len(rows))
	for i := range rows {
		missing[rows[i].Seq] = struct{}{}
	}
	return waitVisible(ctx, missing, t.findRows)
}

// sight is what a look shows.
type readMode int

const (
	plainRead   readMode = iota // what all sessions see
	lockingRead              // also what is not visible yet: it waits for who has inserted it
)

// settle looks until a plain read has shown each of the rows, or none is left to
// show. One that a plain read does not find is either not visible yet or gone
// already, and one that locks tells the two apart.
//
// A row that the locking read finds need not be visible. InnoDB calls a transaction committed,
// so that its rows are not locked, before it takes it off the list of those that snapshots leave
// out:
//
//	commit_state()         deregister_rw()        release_locks()
//	------|----------------------|----------------------|------> time
//	  locking reads find     plain reads find      who waits for a
//	  the row at once        it from here on       lock goes on
//
// A thread that is not scheduled between the two makes that milliseconds (7 of
// 210,000 rows on a busy machine). So the last word is a plain read's.
func waitVisible(ctx context.Context, missing map[int64]struct{}, look func(ctx context.Context, seqs []int64, how readMode) ([]int64, error)) error {
	for pause := visiblePause; ; pause = min(2*pause, maxVisiblePause) {
		seen, err := look(ctx, slices.Collect(maps.Keys(missing)), plainRead)
		if err != nil {
			return err
		}
		for _, seq := range seen {
			delete(missing, seq)
		}
		if len(missing) == 0 {
			return nil
		}
		there, err := look(ctx, slices.Collect(maps.Keys(missing)), lockingRead)
		if isError(err, errLockWait, errDeadlock) {
			there, err = slices.Collect(maps.Keys(missing)), nil
		}
		if err != nil {
			return err
		}
		clear(missing)
		for _, seq := range there {
			missing[seq] = struct{}{}
		}
		if len(missing) == 0 {
			return nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// settlePause is the time between a locking read and the plain one after it; it
// doubles up to the longest.
const (
	visiblePause   = 50 * time.Microsecond
	maxVisiblePause = 10 * time.Millisecond
)

// look returns which of the rows it finds.
func (t *tail) findRows(ctx context.Context, seqs []int64, how readMode) (found []int64, err error) {
	err = t.l.s.with(ctx, func(c *session) error {
		query := "SELECT o.seq FROM " + numbersTable(seqs) + t.l.s.sql(" STRAIGHT_JOIN {outbox} o FORCE INDEX (PRIMARY) ON o.seq = d.s")
		switch {
		case how == lockingRead && t.l.v.mariadb:
			query += " LOCK IN SHARE MODE"
		case how == lockingRead: // MySQL would lock d as well, and says that it cannot
			query += " FOR SHARE OF o"
		}
		return c.scan(ctx, query, func(values []driver.Value) (bool, error) {
			seq, _, err := integer(values[0])
			found = append(found, seq)
			return true, err
		})
	})
	return found, err
}
