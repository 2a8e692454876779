package mysql

import (
	"context"
	"database/sql/driver"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weirdb/weir/outbox"
)

// awaitVisible returns when all sessions can see the rows of the log.
//
// A transaction is in the log before it is visible: until the engine has committed it, and
// with semi-synchronous replication (after_sync) until a replica has answered. If a row were
// delivered in that time, the consumer could not find what the message is about, and the
// acknowledgement would find no row to delete. It checks every row, because with
// binlog_order_commits = OFF rows become visible in another order than that of the log.
func (t *tail) awaitVisible(ctx context.Context, rows []outbox.Row) error {
	if t.status < 0 { // numbers are unique
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

// readMode says which rows a read finds.
type readMode int

const (
	plainRead   readMode = iota // rows visible to all sessions
	lockingRead                 // also rows that are not visible yet: it waits for their transactions
)

// waitVisible reads until a plain read has found each of the rows, or the rows are gone. A row
// that a plain read does not find is not visible yet or is gone already; a locking read tells
// which.
//
// A row that the locking read finds need not be visible yet. InnoDB marks a transaction as
// committed, so that locking reads find its rows, before it removes it from the list of
// transactions that snapshots exclude:
//
//	commit_state()         deregister_rw()        release_locks()
//	------|----------------------|----------------------|------> time
//	  locking reads find     plain reads find      sessions that wait
//	  the row at once        it from here on       for a lock continue
//
// If the thread is descheduled between the two, that takes milliseconds (7 of 210,000 rows on
// a busy machine). So a plain read decides.
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

// visiblePause is the pause between a locking read and the next plain one; it doubles up to
// maxVisiblePause.
const (
	visiblePause    = 50 * time.Microsecond
	maxVisiblePause = 10 * time.Millisecond
)

// findRows returns which of the rows a read finds.
func (t *tail) findRows(ctx context.Context, seqs []int64, how readMode) (found []int64, err error) {
	err = t.l.with(ctx, func(c *session) error {
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

// allVisible reports whether a plain read returns all of the rows. It returns false if that would
// take more than maxLooks ranges.
func (t *tail) allVisible(ctx context.Context, rows []outbox.Row) (all bool, err error) {
	seqs := make([]int64, len(rows))
	for i := range rows {
		seqs[i] = rows[i].Seq
	}
	slices.Sort(seqs)
	var runs []outbox.Range
	for i, seq := range seqs {
		if i > 0 && seq <= runs[len(runs)-1].Last+1 {
			runs[len(runs)-1].Last = seq
			continue
		}
		if len(runs) == maxLooks {
			return false, nil
		}
		runs = append(runs, outbox.Range{First: seq, Last: seq})
	}
	var want int64
	var b strings.Builder
	b.WriteString(t.l.s.sql("SELECT COUNT(*) FROM {outbox} o FORCE INDEX (PRIMARY) WHERE "))
	for i, r := range runs {
		if i > 0 {
			b.WriteString(" OR ")
		}
		fmt.Fprintf(&b, "o.seq BETWEEN %d AND %d", r.First, r.Last)
		want += r.Last - r.First + 1
	}
	var got int64
	err = t.l.with(ctx, func(c *session) error { return c.QueryRowContext(ctx, b.String()).Scan(&got) })
	return got == want, err
}
