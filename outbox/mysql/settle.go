package mysql

import (
	"context"
	"database/sql/driver"

	"github.com/weirdb/weir/outbox"
)

// settle returns when rows of the log can be seen by everybody.
//
// A transaction is in the log before it is visible: until the engine has
// committed it, and with semi-synchronous replication (after_sync) until a
// replica has answered. A row that is delivered within that time tells a
// consumer of what it cannot find, and its acknowledgement finds nothing to
// delete. Every row is looked for: what the log has in one order becomes visible in
// another when the server is told so (binlog_order_commits).
//
// A row that a plain read does not find is either not visible yet or gone
// already. A read that locks tells the two apart: it waits for the transaction
// that has inserted the row, and finds nothing of one that is gone.
func (t *tail) settle(ctx context.Context, rows []outbox.Row) error {
	missing := make(map[int64]struct{}, len(rows))
	for i := range rows {
		missing[rows[i].Seq] = struct{}{}
	}
	if err := t.look(ctx, missing, ""); err != nil || len(missing) == 0 {
		return err
	}
	for {
		err := t.look(ctx, missing, " LOCK IN SHARE MODE")
		if !isError(err, errLockWait, errDeadlock) || ctx.Err() != nil {
			return err
		}
	}
}

// look takes the rows that it finds out of missing.
func (t *tail) look(ctx context.Context, missing map[int64]struct{}, how string) error {
	seqs := make([]int64, 0, len(missing))
	for seq := range missing {
		seqs = append(seqs, seq)
	}
	return t.l.s.with(ctx, func(c *session) error {
		query := "SELECT o.seq FROM " + numbersTable(seqs) + t.l.s.sql(" STRAIGHT_JOIN {outbox} o FORCE INDEX (PRIMARY) ON o.seq = d.s") + how
		return c.scan(ctx, query, func(values []driver.Value) (bool, error) {
			seq, _, err := integer(values[0])
			delete(missing, seq)
			return true, err
		})
	})
}
